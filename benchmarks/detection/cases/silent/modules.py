"""Modules that are not what they seem: shared, untied, spread over the wrong axis."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from benchmarks.detection.kit.case import sixth
from benchmarks.detection.kit.data import N_CHARACTERS, digits, text, windows
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation
from benchmarks.detection.kit.loops import Loop, adam, descend
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


class Stacked(nn.Module):
    """Layers with a way around each."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 24)
        layers = (
            [nn.Linear(24, 24)] * 5 if shared else [nn.Linear(24, 24) for _ in range(5)]
        )
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.head(x)


@sixth.silent("one layer many times", "ModuleList([layer] * 5): one layer, five times")
def layers_are_one_layer(t: Training) -> None:
    """``[nn.Linear(24, 24)] * 5`` has five references to one layer.

    Source: stackoverflow and discuss.pytorch.org on "[layer] * n" and on stacking
    without deepcopy (the reason for _get_clones in torch.nn.Transformer).
    Visible: all five weights have one address.
    """
    split = digits()
    model = Stacked(shared=t.sick)
    Loop(t, model, split, adam(3e-3), validate_every=50).run(150)
    places = {layer.weight.data_ptr() for layer in model.layers}
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy, layers=len(places))
    conclude(t, fault=len(places) == 1, reached=accuracy > 0.85, harms=False)


class Tied(nn.Module):
    """Guesses characters with the embedding as head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, width)
        self.cell = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, N_CHARACTERS, bias=False)
        self.tie_word_embeddings = True
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.cell(self.embedding(tokens))[0])


@sixth.silent("ties lost", "the embedding was replaced, the head keeps the old one")
def tie_is_lost(t: Training) -> None:
    """The embedding is resized after the head was tied to it, and not tied again.

    Source: github.com/huggingface/transformers/pull/45079, and
    issues on resize_token_embeddings and tie_weights.
    Visible: ``tie_word_embeddings`` says that both are one, and they are not.
    """
    stream = text()
    model = Tied()
    if t.sick:
        new = nn.Embedding(N_CHARACTERS, 32)
        new.weight.data.copy_(model.embedding.weight)
        model.embedding = new
    optimizer = Adam(model.parameters(), 5e-3)
    t.watch(model)
    for _ in t.steps(140):
        x, y = windows(stream, t.draw(len(stream) * 9 // 10 - 30, 24), 24)
        descend(
            optimizer, functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        )
    x, y = windows(stream, len(stream) * 9 // 10 + torch.arange(200) * 20, 24)
    loss = float(
        in_evaluation(
            model, lambda: functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        )
    )
    apart = float((model.head.weight - model.embedding.weight).detach().abs().max())
    t.note(loss=loss, apart=apart)
    conclude(t, fault=apart > 1e-3, reached=loss < 2.95, harms=False)


class Placed(nn.Module):
    """A transformer over the lines of an image, with sines for places."""

    def __init__(self, *, over_batch: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        place = torch.arange(2048)[:, None] / 100 ** (torch.arange(0, 32, 2) / 32)
        self.register_buffer("sines", torch.cat((place.sin(), place.cos()), 1))
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)
        self.over_batch = over_batch

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images.view(-1, 8, 8))
        if self.over_batch:
            x = x + self.sines[: x.size(0), None]
        else:
            x = x + self.sines[: x.size(1)]
        return self.head(self.encoder(x).mean(1))


@sixth.silent("wrong axis", "positions are added over the batch, not over the sequence")
def positions_over_the_batch(t: Training) -> None:
    """``x + pe[:x.size(0)]`` of the tutorial, with batch_first=True.

    Source: the PositionalEncoding of PyTorch's transformer tutorial is of
    (place, batch, width); stackoverflow and forum threads on it with batch_first.
    Visible: the same image gets another answer at another place in the batch.
    """
    split = digits()
    model = Placed(over_batch=t.sick)
    Loop(t, model, split, adam(3e-3), batch_size=32, validate_every=60).run(240)
    x, y = split.x_val[:256], split.y_val[:256]
    forward = in_evaluation(model, lambda: model(x))
    backward = in_evaluation(model, lambda: model(x.flip(0))).flip(0)
    changed = float((forward - backward).abs().mean() / forward.std())
    accuracy = held_out(model, x, y)
    t.note(changed=changed, accuracy=accuracy)
    conclude(t, fault=changed > 0.01, reached=accuracy > 0.9)


@sixth.silent("wrong axis", "batch_first is missing: the LSTM reads across the batch")
def lstm_reads_across_the_batch(t: Training) -> None:
    """``nn.LSTM(8, 32)`` is given (batch, line, pixel).

    Source: discuss.pytorch.org threads on batch_first ("Batch first, LSTM learns
    nothing / depends on batch"); Karpathy's advice to check dependencies by gradients.
    Visible: the same image gets another answer among other images.
    """
    split = digits()

    class Lstm(nn.Module):
        """Reads an image line by line, the state after the last line tells."""

        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTM(8, 48, batch_first=not t.sick)
            self.head = nn.Linear(48, 10)

        def forward(self, images: Tensor) -> Tensor:
            return self.head(self.cell(images.view(-1, 8, 8))[0][:, -1])

    model = Lstm()
    Loop(t, model, split, adam(5e-3), batch_size=32, validate_every=60).run(250)
    x, y = split.x_val[:256], split.y_val[:256]
    forward = in_evaluation(model, lambda: model(x))
    backward = in_evaluation(model, lambda: model(x.flip(0))).flip(0)
    changed = float((forward - backward).abs().mean() / forward.std())
    accuracy = held_out(model, x, y)
    t.note(changed=changed, accuracy=accuracy)
    conclude(t, fault=changed > 0.01, reached=accuracy > 0.85)


@sixth.silent("scrambled inputs", "images are changed in place, epoch after epoch")
def inputs_changed_in_place(t: Training) -> None:
    """``image += noise`` in __getitem__ changes the dataset itself.

    Source: discuss.pytorch.org and stackoverflow on in-place transforms of cached
    arrays ("data get worse each epoch").
    Visible: after the training the dataset's images are others than before.
    """
    split = digits()
    images = split.x.clone()
    model = mlp([64, 64, 10])
    optimizer, criterion = Adam(model.parameters(), 3e-3), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for _, rows in t.batches(500, len(images), 32):
        noise = 0.35 * torch.randn(len(rows), 64, generator=t.order)
        if t.sick:
            images[rows] += noise
            given = images[rows]
        else:
            given = images[rows] + noise
        descend(optimizer, criterion(model(given), split.y[rows]))
    drift = float((images - split.x).abs().mean())
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(drift=drift, accuracy=accuracy)
    conclude(t, fault=drift > 0.1, reached=accuracy > 0.9, harms=False)
