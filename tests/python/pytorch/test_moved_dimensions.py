"""Views that give a dimension another place, and those that split and merge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tdbg
import tdbg.pytorch as td
from tdbg.hooks.pytorch.checks.data.scrambled_layouts import faults_of_views
from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.rules import WrongDimension

N, STEPS, WIDTH, HEADS = 32, 12, 32, 4
SIZE = WIDTH // HEADS


def made(*shape: int) -> Tensor:
    """Return what a layer has made."""
    return torch.randn(*shape, requires_grad=True) * 1.0


def attention(x: Tensor) -> Tensor:
    return (x @ x.transpose(-1, -2)).softmax(-1) @ x


def fast_attention(x: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(x, x, x)


def states(*, layers: int = 1, bidirectional: bool = False) -> Tensor:
    lstm = nn.LSTM(3, 24, layers, batch_first=True, bidirectional=bidirectional)
    last: Tensor = lstm(torch.randn(N, 5, 3))[1][0]
    return last


def maps() -> Tensor:
    convolution = nn.Conv2d(1, 16, 3, padding=1)
    found: Tensor = convolution(torch.randn(N, 1, 4, 10))
    return found


def mixed_heads(attend: Callable[[Tensor], Tensor]) -> Tensor:
    return attend(made(N, STEPS, WIDTH).view(N, HEADS, STEPS, SIZE))


def merged_heads(attend: Callable[[Tensor], Tensor]) -> Tensor:
    heads = attend(made(N, STEPS, HEADS, SIZE).transpose(1, 2))
    merged: Tensor = nn.Linear(WIDTH, 3)(heads.reshape(N, STEPS, WIDTH))
    return merged


MOVED: dict[str, Callable[[], Tensor]] = {
    "heads": lambda: mixed_heads(attention),
    "heads of a fused attention": lambda: mixed_heads(fast_attention),
    "merged heads": lambda: merged_heads(attention),
    "merged heads of a fused attention": lambda: merged_heads(fast_attention),
    "data before a convolution": lambda: nn.Conv1d(6, 4, 3)(
        torch.randn(N, 24, 6).view(N, 6, 24)
    ),
    "features before a convolution": lambda: nn.Conv1d(6, 4, 3)(
        made(N, 24, 6).view(N, 6, 24)
    ),
    "columns of an image": lambda: maps().reshape(N, 10, 64),
    "steps and samples": lambda: made(14, N, 24).view(N, 14, 24),
    "all steps": lambda: nn.Linear(14 * 24, 2)(made(14, N, 24).reshape(N, -1)),
    "states of layers": lambda: nn.Linear(48, 2)(states(layers=2).view(N, -1)),
    "states of directions": lambda: states(bidirectional=True).reshape(N, 48),
}


def relative() -> Tensor:
    """Shift each row by its number, as attentions with relative positions do."""
    padded = functional.pad(made(2, 3, 9, 7), (1, 0))
    return padded.view(2, 3, 8, 9)[:, :, 1:]


def module(samples: int, steps: int, *, is_batch_first: bool) -> Tensor:
    layer = nn.MultiheadAttention(32, 4, batch_first=is_batch_first)
    shape = (samples, steps, 32) if is_batch_first else (steps, samples, 32)
    x = made(*shape)
    answer: Tensor = layer(x, x, x)[0] + layer(x, x, x, need_weights=False)[0]
    return answer


MEANT: dict[str, Callable[[], Tensor]] = {
    "heads": lambda: (
        attention(made(N, STEPS, WIDTH).view(N, STEPS, HEADS, SIZE).transpose(1, 2))
        .transpose(1, 2)
        .reshape(N, STEPS, WIDTH)
    ),
    "relative positions": relative,
    "steps that are joined by two": lambda: made(8, 64, 32).view(8, 32, 64),
    "steps that are joined by three": lambda: made(8, 66, 32).view(8, 22, 96),
    "steps by sample": lambda: made(N * STEPS, WIDTH).view(N, STEPS * WIDTH),
    "as many samples as features": lambda: made(32 * 12, 32).view(32, 12 * 32),
    "patches": lambda: (
        made(8, 3, 16, 16)
        .view(8, 3, 4, 4, 4, 4)
        .permute(0, 2, 4, 1, 3, 5)
        .reshape(8, 16, 48)
    ),
    "groups of channels": lambda: made(8, 64, 8, 8).view(8, 8, -1),
    "channels that are shuffled": lambda: (
        made(8, 24, 5, 5).view(8, 4, 6, 5, 5).transpose(1, 2).reshape(8, 24, 5, 5)
    ),
    "an order that nobody sees": lambda: made(8, 12, 7).view(8, 7, 12).view(8, -1),
    "maps of a vector": lambda: made(8, 7 * 7 * 64).view(8, 64, 7, 7),
    "frames": lambda: made(8, 5, 3, 6, 6).view(40, 3, 6, 6),
    "beams": lambda: made(4 * 3, 6, 10).view(4, 3, 6, 10),
    "one channel": lambda: nn.Conv1d(1, 4, 3)(torch.randn(N, 24, 1).view(N, 1, 24)),
    "channels of a flat row": lambda: nn.Conv1d(4, 4, 3)(
        torch.randn(N, 96).view(N, 4, 24)
    ),
    "states of layers": lambda: states(layers=2).transpose(0, 1).reshape(N, -1),
}


def moved(answer: Tensor) -> list[str]:
    return [words["to"] for _, _, words in faults_of_views(Graph(answer.sum()))]


@pytest.mark.parametrize("name", MOVED)
def test_a_view_that_moves_a_dimension_is_named(name: str) -> None:
    assert len(moved(MOVED[name]())) == 1


@pytest.mark.parametrize("name", MEANT)
def test_a_view_that_splits_and_merges_is_left_alone(name: str) -> None:
    assert moved(MEANT[name]()) == []


@pytest.mark.parametrize("is_batch_first", [False, True])
def test_attentions_of_pytorch_are_left_alone_whatever_their_sizes(
    is_batch_first: bool,
) -> None:
    sizes = [(8, 4), (8, 8), (16, 8), (32, 32), (4, 16)]
    for samples, steps in sizes:
        answer = module(samples, steps, is_batch_first=is_batch_first)
        assert moved(answer) == [], (samples, steps)


@pytest.mark.parametrize("is_view", [False, True])
def test_a_training_on_series_with_their_steps_for_channels(
    run_dir: Path, is_view: bool
) -> None:
    layers = nn.Sequential(nn.Conv1d(6, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1))
    model = nn.Sequential(layers, nn.Flatten(), nn.Linear(8, 2))
    rules = [WrongDimension()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        hook.register_module(model)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(6):
            series, labels = torch.randn(16, 24, 6), torch.randint(0, 2, (16,))
            given = series.view(16, 6, 24) if is_view else series.transpose(1, 2)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(given), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            hook.save_scalar("loss", float(loss.detach()))
    findings = tdbg.rules.check(run_dir, rules=rules).findings
    assert ["(16, 6, 24)" in each.message for each in findings] == [True] * is_view
