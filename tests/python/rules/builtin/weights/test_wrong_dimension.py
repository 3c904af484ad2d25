"""WrongDimension, on real models: attentions, recurrent layers, softmaxes, norms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tdbg
import tdbg.pytorch as td
from tdbg.rules import WrongDimension
from tdbg.run.findings import Finding, Severity

N, PLACES, WIDTH, CLASSES = 16, 5, 8, 4
# What a model gives for (samples, places, features).
Forward = Callable[[Any, Tensor], Tensor]


class Parts(nn.Module):
    """Layers from which each forward takes what it needs."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.parts = nn.Linear(WIDTH, 3 * WIDTH)
        self.places_first = nn.LSTM(WIDTH, WIDTH)
        self.cells = nn.GRU(WIDTH, WIDTH, 2, bidirectional=True)
        self.samples_first = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.wide = nn.Linear(2 * WIDTH, CLASSES)
        self.slots = nn.Parameter(torch.randn(PLACES, WIDTH))
        self.classes = nn.Parameter(torch.randn(N, CLASSES))
        self.to_samples = nn.Linear(WIDTH, N)
        self.last = nn.Linear(WIDTH, CLASSES)
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


def attention(dim: int, *, dropout: float = 0.0) -> Forward:
    def forward(m: Any, x: Tensor) -> Tensor:
        query, key, value = m.parts(x).chunk(3, -1)
        scores = query @ key.transpose(-2, -1) / 3
        later = torch.ones(PLACES, PLACES).triu(1).bool()
        weights = scores.masked_fill(later, -1e9).softmax(dim)
        mixed = functional.dropout(weights, dropout) @ value
        answer: Tensor = m.last(mixed.mean(1))
        return answer

    return forward


def heads(dim: int, *, by_name: bool = False) -> Forward:
    def forward(m: Any, x: Tensor) -> Tensor:
        query, key, value = (
            each.view(N, PLACES, 2, WIDTH // 2).transpose(1, 2)
            for each in m.parts(x).chunk(3, -1)
        )
        if by_name:
            scores = torch.einsum("bhid,bhjd->bhij", query, key)
            mixed = torch.einsum("bhij,bhjd->bhid", scores.softmax(dim), value)
        else:
            mixed = (query @ key.transpose(-2, -1)).softmax(dim) @ value
        answer: Tensor = m.last(mixed.transpose(1, 2).flatten(2).mean(1))
        return answer

    return forward


def of_image(m: Any, x: Tensor) -> Tensor:
    """Self-attention of GANs, whose values stand on the left."""
    query, key, value = (each.transpose(1, 2) for each in m.parts(x).chunk(3, -1))
    weights = (query.transpose(1, 2) @ key).softmax(-1)
    answer: Tensor = m.last((value @ weights.transpose(1, 2)).mean(-1))
    return answer


def of_channels(m: Any, x: Tensor) -> Tensor:
    query, key, value = (each.transpose(1, 2) for each in m.parts(x).chunk(3, -1))
    weights = (query @ key.transpose(1, 2)).softmax(-1)
    answer: Tensor = m.last((weights @ value).mean(-1))
    return answer


def linear_attention(m: Any, x: Tensor) -> Tensor:
    query, key, value = m.parts(x).chunk(3, -1)
    context = key.softmax(1).transpose(1, 2) @ value
    answer: Tensor = m.last((query.softmax(-1) @ context).mean(1))
    return answer


def slots(m: Any, x: Tensor) -> Tensor:
    """Slots compete for places, and then take a mean over them."""
    _, key, value = m.parts(x).chunk(3, -1)
    weights = (m.slots.expand(N, -1, -1) @ key.transpose(1, 2)).softmax(1) + 1e-8
    weights = weights / weights.sum(-1, keepdim=True)
    answer: Tensor = m.last((weights @ value).mean(1))
    return answer


def pooled(m: Any, x: Tensor) -> Tensor:
    """Places are assigned to clusters (DiffPool)."""
    clusters = m.last(x).softmax(-1)
    answer: Tensor = m.last((clusters.transpose(1, 2) @ x).mean(1))
    return answer


def last_of_places_first(m: Any, x: Tensor) -> Tensor:
    answer: Tensor = m.last(m.places_first(x)[0][:, -1])
    return answer


def last_of_cells(m: Any, x: Tensor) -> Tensor:
    answer: Tensor = m.wide(m.cells(x)[0])[:, -1]
    return answer


def last_of_samples_first(m: Any, x: Tensor) -> Tensor:
    answer: Tensor = m.last(m.samples_first(x)[0][:, -1])
    return answer


def transposed(m: Any, x: Tensor) -> Tensor:
    states = m.cells(x.transpose(0, 1))[1]
    answer: Tensor = m.wide(torch.cat((states[-2], states[-1]), 1))
    return answer


def one_sequence(m: Any, x: Tensor) -> Tensor:
    """The rows of the loss are the places of one sequence."""
    answer: Tensor = m.last(m.places_first(x[:, 0])[0])
    return answer


def channels_as_batch(m: Any, x: Tensor) -> Tensor:
    """Places of a long recording with several channels, and a mean over these."""
    answer: Tensor = m.last(m.places_first(x)[0].mean(1))
    return answer


def gated(dim: int) -> Forward:
    def forward(m: Any, x: Tensor) -> Tensor:
        first = x[:, 0]
        answer: Tensor = m.last(first * m.body(first).softmax(dim))
        return answer

    return forward


def cosines(dim: int) -> Forward:
    def forward(m: Any, x: Tensor) -> Tensor:
        code = functional.normalize(m.body(x[:, 0]).relu(), dim=dim)
        return 12 * code @ functional.normalize(m.last.weight, dim=1).t()

    return forward


def columns_of_weights(m: Any, x: Tensor) -> Tensor:
    """As many features as samples, and a norm of each class (ArcFace)."""
    code = functional.normalize(m.to_samples(x[:, 0]), dim=1)
    return code @ functional.normalize(m.classes, dim=0)


def standardized(m: Any, x: Tensor) -> Tensor:
    code = m.body(x[:, 0])
    answer: Tensor = m.last((code - code.mean(0)) / code.std(0))
    return answer


def paired(m: Any, x: Tensor) -> Tensor:
    """Pairs of samples, with a softmax over either (CLIP, dual softmax)."""
    pairs = m.body(x[:, 0]) @ m.body(x[:, 1]).t()
    both: Tensor = pairs * pairs.softmax(0)
    return both


def sinkhorn(m: Any, x: Tensor) -> Tensor:
    pairs: Tensor = m.to_samples(x[:, 0])
    for _ in range(3):
        pairs = pairs.softmax(0)
        pairs = pairs / pairs.sum(1, keepdim=True)
    return pairs


def graph(m: Any, x: Tensor) -> Tensor:
    """Nodes of one graph attend to each other."""
    nodes = m.body(x[:, 0])
    answer: Tensor = m.last((nodes @ nodes.t()).softmax(-1) @ nodes)
    return answer


def bags(m: Any, x: Tensor) -> Tensor:
    """Each sample is a bag of instances, which are weighed."""
    every = [m.body(bag) for bag in x]
    mixed = [(bag * bag.mean(-1, keepdim=True).softmax(0)).sum(0) for bag in every]
    answer: Tensor = m.last(torch.stack(mixed))
    return answer


def judged(run_dir: Path, forward: Forward, *, numbers: bool = False) -> list[Finding]:
    torch.manual_seed(0)
    model = Parts(forward)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, labels = torch.randn(N, PLACES, WIDTH), torch.randint(CLASSES, (N,))
    rules = [WrongDimension()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        hook.register_module(model)
        for _ in range(6):
            optimizer.zero_grad()
            told = model(x)
            loss = (
                functional.mse_loss(told[:, :1], x[:, 0, :1])
                if numbers
                else functional.cross_entropy(told, labels)
            )
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            hook.save_scalar("loss", float(loss.detach()))
        assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=rules).findings)


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (attention(-2), "dim=1 of (16, 5, 5)"),
        (attention(-2, dropout=0.1), "dim=1 of (16, 5, 5)"),
        (heads(-2), "dim=2 of (16, 2, 5, 5)"),
        (heads(1), "dim=1 of (16, 2, 5, 5)"),
        (heads(-2, by_name=True), "dim=2 of (16, 2, 5, 5)"),
        (last_of_places_first, "dim=0 of (16, 5, 8)): the loss has one row"),
        (last_of_cells, "dim=0 of (16, 5, 8)): the loss has one row"),
        (gated(0), "the batch (dim=0 of (16, 8)): samples compete"),
        (cosines(0), "the batch (dim=0 of (16, 8)): each feature"),
    ],
    ids=[
        "queries", "with dropout", "heads", "over heads", "einsum", "LSTM", "GRU",
        "softmax", "norm",
    ],
)  # fmt: skip
def test_an_operation_over_the_wrong_dimension(
    run_dir: Path, forward: Forward, said: str
) -> None:
    (finding,) = judged(run_dir, forward)
    assert finding.severity is Severity.WARNING
    assert "wrong dimension" in finding.message
    assert said in finding.message


def test_a_recurrent_layer_over_the_batch_of_a_regression(run_dir: Path) -> None:
    (finding,) = judged(run_dir, last_of_places_first, numbers=True)
    assert "batch_first=True" in finding.advice


@pytest.mark.parametrize(
    "forward",
    [
        attention(-1), attention(-1, dropout=0.1), heads(-1), heads(-1, by_name=True),
        of_image, of_channels, linear_attention, slots, pooled, last_of_samples_first,
        transposed, one_sequence, channels_as_batch, gated(1), cosines(1),
        columns_of_weights, standardized, paired, sinkhorn, graph, bags,
    ],
    ids=[
        "attention", "with dropout", "heads", "einsum", "of an image", "of channels",
        "linear attention", "slots", "clusters", "LSTM", "GRU", "one sequence",
        "channels", "gate", "cosines", "columns of weights", "standardized", "pairs",
        "Sinkhorn", "graph", "bags",
    ],
)  # fmt: skip
def test_an_operation_over_a_dimension_that_is_meant(
    run_dir: Path, forward: Forward
) -> None:
    assert judged(run_dir, forward) == []


class StepsFirst(nn.Module):
    """A recurrent layer that gets steps first, and a result with samples first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.RNN(4, 8), nn.Linear(8, VOCABULARY)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.layer(x.transpose(0, 1))[0]).transpose(0, 1)


def test_with_a_loss_for_each_sample_the_rows_are_steps(run_dir: Path) -> None:
    def loss(told: Tensor, labels: Tensor) -> Any:
        own = labels.view(8, 8)
        return sum(functional.cross_entropy(told[i], own[i]) for i in range(8))

    assert judged_by(run_dir, StepsFirst(), loss, torch.randn(8, 8, 4)) == []


# ---- scores and labels ---------------------------------------------------------------

VOCABULARY = 7
# The loss of a model's scores (samples, places, classes), and of labels.
OfScores = Callable[[Tensor, Tensor], Tensor]


def judged_by(run_dir: Path, model: nn.Module, loss: OfScores, x: Tensor) -> list[str]:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    rules = [WrongDimension()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        hook.register_module(model)
        for _ in range(6):
            optimizer.zero_grad()
            told = model(x)
            labels = torch.randint(VOCABULARY, (told.numel() // VOCABULARY,))
            value = loss(told, labels)
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            hook.save_scalar("loss", float(value.detach()))
        assert hook.counters()["internal_errors"] == 0
    found = tdbg.rules.check(run_dir, rules=rules).findings
    return [each.message for each in found]


def places(*, is_batch_first: bool = True) -> nn.Module:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, x: Tensor) -> Tensor:
            told: Tensor = self.last(x if is_batch_first else x.transpose(0, 1))
            return told

    return Tagger()


def entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(scores, labels)


@pytest.mark.parametrize(
    "loss",
    [
        lambda told, y: entropy(told.view(N, VOCABULARY, PLACES), y.view(N, PLACES)),
        lambda told, y: nn.CrossEntropyLoss()(
            told.reshape(N, VOCABULARY, -1), y.view(N, PLACES)
        ),
        lambda told, y: functional.nll_loss(
            told.transpose(1, 2).reshape(-1, VOCABULARY).log_softmax(-1), y
        ),
    ],
    ids=["view", "reshape", "flat"],
)
def test_scores_that_a_view_mixes(run_dir: Path, loss: OfScores) -> None:
    (message,) = judged_by(run_dir, places(), loss, torch.randn(N, PLACES, WIDTH))
    assert "takes its classes from the wrong dimension" in message


def test_maps_that_a_view_flattens(run_dir: Path) -> None:
    (message,) = judged_by(
        run_dir,
        nn.Conv2d(3, VOCABULARY, 1),
        lambda told, y: entropy(told.view(-1, VOCABULARY), y),
        torch.randn(4, 3, 5, 5),
    )
    assert "dim=1 of (100, 7)" in message


@pytest.mark.parametrize(
    "loss",
    [
        lambda told, y: entropy(told.transpose(1, 2), y.view(N, PLACES)),
        lambda told, y: entropy(
            told.reshape(-1, VOCABULARY), y.view(N, PLACES).flatten()
        ),
        lambda told, y: entropy(told.flatten(0, 1), y),
        lambda told, y: entropy(told[:, -1], y.view(N, PLACES)[:, -1]),
        # Places compete: the start and the end of an answer.
        lambda told, y: entropy(
            told.transpose(1, 2).flatten(0, 1), y.new_zeros(N * VOCABULARY)
        ),
        lambda told, y: entropy(
            told.transpose(0, 1).reshape(-1, VOCABULARY),
            y.view(N, PLACES).t().flatten(),
        ),
    ],
    ids=["transposed", "flat", "flat views", "last", "of places", "both turned"],
)
def test_scores_of_one_place_each(run_dir: Path, loss: OfScores) -> None:
    x = torch.randn(N, PLACES, WIDTH)
    assert judged_by(run_dir, places(), loss, x) == []


def test_maps_that_are_permuted(run_dir: Path) -> None:
    def flat(told: Tensor, labels: Tensor) -> Tensor:
        return entropy(told.permute(0, 2, 3, 1).reshape(-1, VOCABULARY), labels)

    images = torch.randn(4, 3, 5, 5)
    assert judged_by(run_dir, nn.Conv2d(3, VOCABULARY, 1), flat, images) == []


def flat_labels(_: Tensor) -> Tensor:
    return torch.randint(VOCABULARY, (N, PLACES)).flatten()


def test_outputs_and_labels_in_other_orders(run_dir: Path) -> None:
    def turned(told: Tensor, y: Tensor) -> Tensor:
        return entropy(told.transpose(0, 1).reshape(-1, VOCABULARY), flat_labels(y))

    x = torch.randn(N, PLACES, WIDTH)
    (message,) = judged_by(run_dir, places(), turned, x)
    assert "flattened in different orders: the outputs belong to (16, 5)" in message


def test_outputs_by_place_and_labels_by_sample(run_dir: Path) -> None:
    def flat(told: Tensor, y: Tensor) -> Tensor:
        return entropy(told.flatten(0, 1), flat_labels(y))

    model = places(is_batch_first=False)
    (message,) = judged_by(run_dir, model, flat, torch.randn(N, PLACES, WIDTH))
    assert "flattened in different orders: the outputs belong to (5, 16)" in message


def test_outputs_and_labels_in_one_order(run_dir: Path) -> None:
    def flat(told: Tensor, y: Tensor) -> Tensor:
        return entropy(told.transpose(0, 1).flatten(0, 1), flat_labels(y))

    model = places(is_batch_first=False)
    assert judged_by(run_dir, model, flat, torch.randn(N, PLACES, WIDTH)) == []


# ---- images ----------------------------------------------------------------------


def photographs(n: int = 16, size: int = 14) -> Tensor:
    """Smooth images (n, 3, size, size) whose channels differ, and go together."""
    light = torch.randn(n, 1, size, size).cumsum(2).cumsum(3)
    colors = 0.3 * torch.randn(n, 3, size, size).cumsum(2).cumsum(3)
    return light + colors + torch.tensor([4.0, 0.0, -6.0]).reshape(3, 1, 1)


def last(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1).contiguous()


def in_bytes(images: Tensor) -> Tensor:
    return (images * 5 + 128).clamp(0, 255).byte()


Made = Callable[[], Tensor]
MIXED: dict[str, Made] = {
    "reshaped": lambda: last(photographs()).reshape(-1, 3, 14, 14),
    "viewed": lambda: last(photographs()).view(16, 3, 14, 14) * 0.1,
    "bytes": lambda: in_bytes(last(photographs())).view(16, 3, 14, 14) / 255,
    "of another archive": lambda: photographs().reshape(-1, 14, 14, 3).movedim(3, 1),
}
AS_THEY_ARE: dict[str, Made] = {
    "planar": photographs,
    "permuted": lambda: last(photographs()).permute(0, 3, 1, 2),
    "in lines of channels": lambda: photographs().to(memory_format=torch.channels_last),
    "turned": lambda: last(photographs()).permute(0, 3, 2, 1),
    "gray": lambda: photographs()[:, :1].expand(-1, 3, -1, -1).contiguous(),
    "noise": lambda: torch.randn(16, 3, 12, 12),
    "stripes": lambda: (
        torch.arange(12) % 3 * torch.randn(16, 3, 1, 1)
        + 0.1 * torch.randn(16, 3, 12, 12)
    ),
    "lines": lambda: torch.randn(16, 3, 12, 1) + 0.1 * torch.randn(16, 3, 12, 12),
    "frames": lambda: photographs()[:, :1].repeat(1, 4, 1, 1) * torch.rand(16, 4, 1, 1),
    "flags": lambda: torch.randint(2, (16, 3, 12, 12)) * 1.0,
}


def seen_of(run_dir: Path, make: Made) -> list[Finding]:
    torch.manual_seed(0)
    n_channels = make().shape[1]
    model = nn.Sequential(
        nn.Conv2d(n_channels, 4, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    )
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    rules = [WrongDimension()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        hook.register_module(model)
        for _ in range(6):
            optimizer.zero_grad()
            loss = entropy(model(make()), torch.randint(2, (16,)))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            hook.save_scalar("loss", float(loss.detach()))
        assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=rules).findings)


@pytest.mark.parametrize("make", MIXED.values(), ids=MIXED)
def test_images_that_a_reshape_has_mixed(run_dir: Path, make: Made) -> None:
    (finding,) = seen_of(run_dir, make)
    assert finding.severity is Severity.WARNING
    assert "A reshape has scrambled the images of (16, 3, 14, 14)" in finding.message
    assert "ermute" in finding.advice


@pytest.mark.parametrize("make", AS_THEY_ARE.values(), ids=AS_THEY_ARE)
def test_images_as_they_are(run_dir: Path, make: Made) -> None:
    assert seen_of(run_dir, make) == []


# ---- two directions ------------------------------------------------------------------


class BothWays(nn.Module):
    """A layer of two directions, and what is read of it."""

    def __init__(self, layer: nn.Module, read: Callable[[Tensor, Any], Tensor]) -> None:
        super().__init__()
        self.layer, self.read = layer, read
        self.last = nn.LazyLinear(VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        told: Tensor = self.last(self.read(*self.layer(x)))
        return told


def both_ways(
    run_dir: Path, kind: Any, read: Callable[[Tensor, Any], Tensor], **how: Any
) -> list[str]:
    model = BothWays(kind(4, WIDTH, bidirectional=True, **how), read)
    x = torch.randn(64, 7, 4) if "batch_first" in how else torch.randn(7, 64, 4)
    model(x)
    return judged_by(run_dir, model, functional.cross_entropy, x)


@pytest.mark.parametrize(
    ("kind", "how", "read", "end"),
    [
        (nn.LSTM, {"batch_first": True}, lambda out, _: out[:, -1], "last"),
        (nn.LSTM, {"num_layers": 2}, lambda out, _: out[-1].relu(), "last"),
        (nn.GRU, {"batch_first": True}, lambda out, _: out[:, 6, :], "last"),
        (nn.RNN, {}, lambda out, _: out[0], "first"),
    ],
    ids=["LSTM", "two layers", "GRU", "the first"],
)
def test_a_way_back_that_has_just_begun(
    run_dir: Path, kind: Any, how: Any, read: Any, end: str
) -> None:
    (message,) = both_ways(run_dir, kind, read, **how)
    assert f"at the {end} place" in message
    assert "has read a single element" in message


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "read",
    [
        lambda _, state: torch.cat((last_of(state)[-2], last_of(state)[-1]), 1),
        lambda out, _: out.mean(1),
        lambda out, _: out[:, 3],
        lambda out, _: torch.cat((out[:, -1, :WIDTH], out[:, 0, WIDTH:]), 1),
        lambda out, _: out[:, -1, :WIDTH],
        lambda out, _: out[:, -1] + out[:, 0],
        lambda out, state: torch.cat((out[:, -1], last_of(state)[-1]), 1),
        lambda out, _: (
            (out @ out[:, -1, :, None]).softmax(1).transpose(1, 2) @ out
        ).squeeze(1),
    ],
    ids=[
        "states", "mean", "the middle", "both ends", "one direction", "sum of ends",
        "end and state", "attention",
    ],
)  # fmt: skip
def test_two_directions_that_are_read_whole(
    run_dir: Path, kind: Any, read: Any
) -> None:
    assert both_ways(run_dir, kind, read, batch_first=True) == []


def test_two_directions_of_a_single_step(run_dir: Path) -> None:
    model = BothWays(
        nn.GRU(4, WIDTH, bidirectional=True, batch_first=True), lambda out, _: out[:, 0]
    )
    x = torch.randn(64, 1, 4)
    model(x)
    assert judged_by(run_dir, model, functional.cross_entropy, x) == []


def last_of(state: Any) -> Tensor:
    """Return the last states of an LSTM, or of a layer with no cell."""
    h: Tensor = state[0] if isinstance(state, tuple) else state
    return h
