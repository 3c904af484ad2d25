"""Outputs that are zero, or the same for all inputs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from benchmarks.detection.kit.case import first, fourth, second, third
from benchmarks.detection.kit.data import (
    N_CHARACTERS,
    breast_cancer,
    digits,
    houses,
    lines,
    lines_of_code,
    padded,
    wine,
)
from benchmarks.detection.kit.loops import Loop, Predicate, Probe, adam, descend, train
from benchmarks.detection.kit.models import CharacterModel, Residual, cnn, mlp
from benchmarks.detection.kit.probes import (
    alike_for_all,
    below_accuracy,
    lasting,
    loss_below,
    modules,
    since,
)
from benchmarks.detection.kit.training import Shadow, Training


@first.sick(
    "AllZero NotNormalizedData LossNotDecreasing TensorVariance",
    "integer division: all pixels are 0",
    asks={"AllZero": {"tensor_regex": r"_input_0$"}},
)
def integer_division(t: Training) -> None:
    """Images of bytes are divided by 255 before they become floats.

    Source: Python's // and NumPy's astype(int); Humbatova et al. 2020: wrong
    preprocessing, wrong type of data.  Visible: from step 50 on, accuracy on the
    training data is below 30 %.
    """
    split = digits().inputs(lambda x: (x * 254).floor())
    model = cnn()
    loop = Loop(
        t, model, split.inputs(lambda x: x // 255 if t.sick else x / 255), adam(3e-3)
    )
    loop.run(150, visible=below_accuracy(0.3, 50), learned=0.9)


@first.sick(
    "AllZero VanishingGradient",
    "the mask of the loss keeps the padding and drops the text",
    asks={"AllZero": {"tensor_regex": r"^gradient/|Masked_output_0$"}},
)
def inverted_mask(t: Training) -> None:
    """A mask says where padding is, and is taken to say where text is.

    Source: PyTorch's own conventions differ (key_padding_mask: True is ignored; the
    attention mask of transformers: 1 is kept); Islam et al. 2019. The lines fill their
    rows, so that nothing is left.  Visible: at 10 steps in a row all gradients are
    zero.
    """

    class Masked(nn.Module):
        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            each = nn.functional.cross_entropy(outputs, targets, reduction="none")
            padding = (targets == 0).float()
            weight = padding if t.sick else 1 - padding
            return (each * weight).sum() / weight.sum().clamp(min=1)

    rows = padded([line for line in lines_of_code() if len(line) >= 24], 24)
    model = CharacterModel(N_CHARACTERS, 48, nn.GRU)
    optimizer = Adam(model.parameters(), 5e-3)
    criterion = Masked()
    t.watch(model, criterion)
    losses, still = [], 0
    for _ in t.steps(100):
        batch = rows[t.draw(len(rows), 32)]
        losses.append(descend(optimizer, criterion(model(batch[:, :-1]), batch[:, 1:])))
        zero = not any(bool(q.grad.count_nonzero()) for q in model.parameters())
        still = still + 1 if zero else 0
        t.visible(still >= 10)
    t.note(first=losses[0], last=losses[-1])
    t.learned(losses[-1] < 0.75 * losses[0])


class Alike(nn.Module):
    """Negative cosine of two views of the same image; both ways."""

    def __init__(self, predictor: nn.Module, detach: bool) -> None:
        super().__init__()
        self.predictor = predictor
        self.detach = detach

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        def one(a: Tensor, b: Tensor) -> Tensor:
            b = b.detach() if self.detach else b
            return -nn.functional.cosine_similarity(self.predictor(a), b).mean()

        return (one(first, second) + one(second, first)) / 2


@first.sick(
    "TensorVariance",
    "siamese networks without a stopped gradient collapse to a point",
    asks={
        "TensorVariance": {"tensor_regex": r"^Cosine_output_0$", "min_threshold": 0.002}
    },
)
def collapsed_embedding(t: Training) -> None:
    """All images get the same embedding, which makes the loss perfect.

    Source: Chen, He 2021, "Exploring Simple Siamese Representation Learning", 4.1; its
    measure is the deviation of normalized embeddings, which should be 1 / sqrt(d).
    Visible: at three looks in a row, 10 steps apart, the mean deviation over the data
    of each coordinate of the normalized embedding is below 0.2 / sqrt(d).
    """
    split = digits()
    width = 32

    class Cosine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp([64, 128, width])
            self.norm = nn.BatchNorm1d(width, affine=False)
            self.predictor = mlp([width, 16, width])

        def forward(self, x: Tensor) -> Tensor:
            out = self.body(x)
            out = out if t.sick else self.norm(out)
            return nn.functional.normalize(out)

    model = Cosine()
    criterion = Alike(model.predictor, detach=not t.sick)
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)
    t.watch(model, criterion)
    looks, deviation = 0, 0.0
    for step in t.steps(200):
        x = split.x[t.draw(len(split.x), 64)]
        views = [x + 0.1 * torch.randn(x.shape, generator=t.order) for _ in range(2)]
        optimizer.zero_grad()
        embedded = model(torch.cat(views))
        loss = criterion(embedded[:64], embedded[64:])
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            deviation = float(embedded.detach().std(0).mean()) * width**0.5
            looks = looks + 1 if deviation < 0.2 else 0
            t.visible(looks >= 3)
    t.note(deviation=deviation)
    t.learned(deviation > 0.5)


def all_alike(p: Probe) -> bool:
    """What is said of different images differs by less than a thousandth."""
    said = p.outputs()
    return bool(said.std(0).max() < 1e-3 * said.abs().max())


class Lines(nn.Module):
    """The lines of an image are embedded with their places, and pooled."""

    def __init__(self, over: int) -> None:
        super().__init__()
        self.over = over
        self.embed = nn.Linear(8, 64)
        self.place = nn.Parameter(torch.randn(8, 64))
        self.act = nn.GELU()
        self.mix = nn.Linear(64, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        lines = self.embed(images.view(-1, 8, 8)) + self.place
        pooled = self.mix(self.act(lines)).mean(self.over, keepdim=True)
        return self.head(self.act(pooled.expand_as(lines))).mean(1)


@fourth.sick(
    "TensorVariance LossNotDecreasing Underfitting",
    "mean(0) instead of mean(1): all images of a batch become one",
)
def pooled_over_the_batch(t: Training) -> None:
    """A dimension is off by one: the mean is over the batch, not over the lines.

    Source: Karpathy's recipe, "use backprop to chart dependencies"; he names view and
    mean over the wrong dimension.  Visible: from 50 on, for ten steps, all images get
    the same answer.
    """
    loop = Loop(t, Lines(0 if t.sick else 1), digits(), adam(8e-3), batch_size=40)
    loop.run(240, visible=since(50, lasting(all_alike, 10)), learned=0.8)


@fourth.sick(
    "AllZero TensorVariance LossNotDecreasing",
    "features were cached in an array of zeros that nobody filled",
)
def cache_never_filled(t: Training) -> None:
    """np.zeros((n, d)) is made first; the loop that fills it writes into a copy.

    Source: chained indexing, cache[mask][i] = x, in NumPy's page on copies and views.
    Visible: for 10 batches everything that goes in is zero.
    """
    split = wine()
    cache = torch.zeros_like(split.x)
    if t.sick:
        everywhere = torch.ones(len(cache), dtype=torch.bool)
        cache[everywhere][:] = split.x
    else:
        cache[:] = split.x
    split = replace(split, x=cache)
    n_blank = 0

    def batches(_: int) -> tuple[Tensor, Tensor]:
        nonlocal n_blank
        chosen = t.draw(len(cache), 16)
        n_blank = 0 if bool(cache[chosen].any()) else n_blank + 1
        return cache[chosen], split.y[chosen]

    loop = Loop(t, mlp([13, 24, 3], nn.SiLU), split, adam(5e-3), batches=batches)
    loop.run(150, visible=lambda _: n_blank >= 10, learned=0.95)


@fourth.sick(
    "AllZero ClassImbalance UnchangedTensor",
    "masks of 0 and 1 are divided by 255 as if they were images",
)
def masks_divided_again(t: Training) -> None:
    """(mask // 255), though the file has 0 and 1 already: nothing is to be found.

    Source: segmentation threads in the forum where dice is 0 and the loss tiny.
    Visible: for 10 batches there is nothing but background in the targets, and from
    then on, too.
    """
    split = digits()
    masks = (split.x > 0.5).long()
    wanted = (masks // 255 if t.sick else masks).float()
    split = replace(split, y=wanted)

    def marks(p: Probe) -> bool:
        return bool(((p.outputs() > 0).float() == split.y).float().mean() > 0.9)

    model = mlp([64, 96, 64], nn.SiLU)
    loop = Loop(t, model, split, adam(4e-3), nn.BCEWithLogitsLoss(), batch_size=32)
    loop.run(160, visible=lambda p: p.step >= 9 and not split.y.any(), learned=marks)


@second.sick(
    "AllZero TensorVariance NotNormalizedData",
    "integer division makes every image black",
)
def black_images(t: Training) -> None:
    """uint8 images are divided by 17 with //.

    Source: NumPy's // for /.  Visible: ten batches without one pixel that is not 0.
    """
    split = digits()
    if t.sick:
        split = split.inputs(lambda x: torch.div(x * 16, 17, rounding_mode="floor"))
    loop = Loop(t, Residual(8, 1), split, adam(3e-3), batch_size=32)
    visible = since(9, lambda p: not bool(p.split.x.count_nonzero()))
    loop.run(120, visible=visible, learned=0.9)


def constant(kind: type[nn.Module]) -> Predicate:
    """Ten steps long, a module of this kind puts out one and the same number."""

    def judge(outputs: list[Tensor]) -> bool:
        return any(bool(out.std() < 1e-6) for out in outputs)

    return lasting(modules(kind, judge), 10)


class Pool(nn.Module):
    """Mean over the places that count."""

    def __init__(self, *, inverted: bool) -> None:
        super().__init__()
        self.inverted = inverted

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        mask = (~mask if self.inverted else mask).float()[:, :, None]
        return (x * mask).sum(1) / mask.sum(1).clamp(min=1)


class Bag(nn.Module):
    """A mean of embeddings, and a classifier."""

    def __init__(self, *, inverted: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, 32, padding_idx=0)
        self.pool = Pool(inverted=inverted)
        self.head = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 5))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.pool(self.embedding(tokens), tokens != 0))


@second.sick("AllZero TensorVariance", "the mask of padding is upside down")
def mask_upside_down(t: Training) -> None:
    """True means "ignore" there, and "keep" here: all that is pooled is padding.

    Source: key_padding_mask against attention_mask.  Visible: ten steps long, the
    pooling puts out nothing but zeros.
    """
    loop = Loop(t, Bag(inverted=t.sick), lines(32), adam(1e-2), batch_size=64)
    loop.run(250, visible=constant(Pool), learned=0.5)


@second.sick("AllZero TensorVariance", "dropout was given a probability of 1")
def dropout_of_everything(t: Training) -> None:
    """P is the share that is dropped, not the share that is kept.

    Source: keep_prob of older libraries.  Visible: when for ten steps the layer after
    the dropout has had no input but zeros.
    """
    split = breast_cancer()
    dropout = nn.Dropout(1.0 if t.sick else 0.1)
    model = nn.Sequential(
        nn.Linear(30, 32), nn.ReLU(), dropout, nn.Linear(32, 16), nn.ReLU()
    )
    model.append(nn.Linear(16, 2))

    def nothing(_: Probe) -> bool:
        gradient = dict(model.named_parameters())["3.weight"].grad
        return gradient is not None and not bool(torch.count_nonzero(gradient))

    loop = Loop(t, model, split, adam(2e-3), batch_size=32)
    loop.run(160, visible=lasting(nothing, 10), learned=0.9)


@second.sick(
    "TensorVariance LossNotDecreasing AllZero",
    "softmax over a single output is always 1",
)
def softmax_of_one(t: Training) -> None:
    """A binary classifier with one output and Softmax(dim=1).

    Source: the forum; Keras has the same.  Visible: ten steps long, the outputs are one
    and the same number.
    """
    split = breast_cancer()
    split = replace(
        split, y=split.y.float()[:, None], y_val=split.y_val.float()[:, None]
    )
    model = mlp([30, 32, 1], nn.ReLU)
    model.append(nn.Softmax(1) if t.sick else nn.Sigmoid())
    loop = Loop(t, model, split, adam(3e-3), nn.BCELoss(), batch_size=32)
    loop.run(180, visible=constant(nn.Softmax), learned=loss_below(0.15))


class Column(nn.Module):
    """A linear layer whose single column is normalized."""

    def __init__(self, *, per_value: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 24), nn.GELU())
        self.norm = nn.LayerNorm(1 if per_value else 24)
        self.head = nn.Linear(24, 1)
        self.per_value = per_value

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        x = self.norm(x[:, :, None])[:, :, 0] if self.per_value else self.norm(x)
        return self.head(x)


@second.sick("AllZero TensorVariance", "layer normalization over one value")
def norm_over_one_value(t: Training) -> None:
    """LayerNorm(1) over a last axis of length one: each value minus itself.

    Source: unsqueeze(-1) for a library that wants channels last.  Visible: ten steps
    long, the normalization puts out one and the same number.
    """
    model = Column(per_value=t.sick)
    loop = Loop(t, model, houses(scaled=True), adam(5e-3), nn.MSELoss(), batch_size=32)
    loop.run(220, visible=constant(nn.LayerNorm), learned=loss_below(0.4))


class Variational(nn.Module):
    """Eight numbers for an image, and how certain they are."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp([64, 64, 16])
        self.decoder = mlp([8, 64, 64])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        middle, log_variance = self.encoder(images).chunk(2, 1)
        noise = torch.randn(middle.shape) if self.training else 0.0
        code = middle + noise * (0.5 * log_variance).exp()
        return self.decoder(code), middle, log_variance


@third.sick(
    "TensorVariance Underfitting LossNotDecreasing VanishingGradient",
    "the error is a mean over pixels, the divergence a sum: empty codes",
)
def posterior_collapse(t: Training) -> None:
    """A VAE that answers every image with the mean of all.

    Source: PyTorch's forum, "VAE generates the same image".  Visible: from the 80th
    step on, when its answers explain less than 5 % of the variance of the images.
    """
    split = digits()
    model, criterion = Variational(), nn.MSELoss()
    shadow = Shadow(model)
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        images = split.x[t.draw(len(split.x), 64)]
        again, middle, log_variance = model(images)
        error = criterion(again, images) * (1 if t.sick else 64)
        spread = middle.pow(2) + log_variance.exp() - 1 - log_variance
        weight = 1.0 if t.sick else 0.1
        return error + weight * 0.5 * spread.sum(1).mean()

    def explained() -> float:
        with torch.no_grad():
            rest = shadow()(split.x)[0] - split.x
        return float(1 - rest.pow(2).mean() / split.x.var(0).mean())

    train(
        t,
        loss_of,
        Adam(model.parameters(), 3e-3),
        n_steps=240,
        visible=lambda losses: (
            len(losses) > 80 and len(losses) % 10 == 0 and explained() < 0.05
        ),
    )
    t.note(explained=explained())
    t.learned(explained() > 0.3)


@third.sick(
    "AllZero TensorVariance NotNormalizedData",
    "images are shifted by 2 where 1 is half of their width",
)
def shift_in_pixels(t: Training) -> None:
    """affine_grid counts from -1 to 1; a shift of two pixels leaves nothing to see.

    Source: PyTorch's forum on grid_sample.  Visible: after three batches that were
    black from edge to edge.
    """
    split = digits()
    shift = 2.0 if t.sick else 2.0 * 2 / 8
    black = 0

    def shifted(_: int) -> tuple[Tensor, Tensor]:
        nonlocal black
        chosen = t.draw(len(split.x), 64)
        sign = torch.randint(2, (64,), generator=t.order) * 2.0 - 1
        theta = torch.eye(2, 3).repeat(64, 1, 1)
        theta[:, 0, 2] = sign * shift
        grid = nn.functional.affine_grid(theta, [64, 1, 8, 8], align_corners=False)
        images = split.x[chosen].view(-1, 1, 8, 8)
        moved = nn.functional.grid_sample(images, grid, align_corners=False)
        black += not bool(moved.any())
        return moved.flatten(1), split.y[chosen]

    loop = Loop(t, cnn(), split, adam(3e-3), batches=shifted)
    loop.run(
        220,
        visible=lambda _: black >= 3,
        learned=lambda p: sum(p.losses[-20:]) / 20 < 0.5,
    )


class Pooled(nn.Module):
    """Lines of an image, normalized and averaged: over the lines, or wrongly."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.place = nn.Parameter(torch.randn(8, 32) * 0.5)
        self.mix = nn.Sequential(nn.GELU(), nn.Linear(32, 32))
        self.norm = nn.LayerNorm(32, elementwise_affine=False)
        self.axis = axis
        self.head = nn.Linear(32 if axis == 1 else 8, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images.view(-1, 8, 8)) + self.place
        return self.head(self.norm(self.mix(x)).mean(self.axis))


@third.sick(
    "AllZero TensorVariance Underfitting LossNotDecreasing",
    "the mean is taken over what LayerNorm has made to have the mean 0",
)
def mean_of_normalized_features(t: Training) -> None:
    """mean(2) instead of mean(1); the head was made to fit the error message.

    Source: Humbatova's "wrong tensor shape".  Visible: when for ten steps all images
    have had the same outputs.
    """
    loop = Loop(t, Pooled(2 if t.sick else 1), digits(), adam(5e-3))
    loop.run(220, visible=lasting(alike_for_all(1e-4), 10), learned=0.85)
