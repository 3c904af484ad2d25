"""CodeMisuse, on real trainings: layers that compute less than they could."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import Tensor, nn

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

N, PLACES, WORDS, WIDTH = 64, 8, 30, 32


def fit(run_dir: Path, model: nn.Module, x: Tensor, y: Tensor) -> list[Finding]:
    """Train for a few steps, and return what is found."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0) as hook:
        for rows in torch.arange(N).split(16):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    assert hook.counters()["internal_errors"] == 0
    found = tdbg.rules.check(run_dir, rules=[tdbg.rules.CodeMisuse()]).findings
    return list(found)


def of_numbers(run_dir: Path, model: nn.Module) -> list[Finding]:
    x = torch.randn(N, WIDTH, generator=torch.Generator().manual_seed(1))
    return fit(run_dir, model, x, (x[:, 0] > 0).long())


def of_words(run_dir: Path, model: nn.Module, x: Tensor | None = None) -> list[Finding]:
    luck = torch.Generator().manual_seed(1)
    x = torch.randint(1, WORDS, (N, PLACES), generator=luck) if x is None else x
    return fit(run_dir, model, x, (x[:, 0] > x[:, 1]).long())


# ---- layers in a row -----------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, middle: int = 48, *, activates: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.activates = activates
        self.fc1, self.fc2 = nn.Linear(WIDTH, middle), nn.Linear(middle, 24)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Any:
        x = self.drop(self.fc1(x))
        x = self.fc2(x.relu() if self.activates else x)
        return self.head(x.relu())


class Convolutions(nn.Module):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Conv1d(1, 16, 3, padding=1)
        self.two = nn.Conv1d(16, 16, 3, padding=1, **kwargs)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.two(self.one(x[:, None])).relu().mean(-1))


def test_two_linear_layers_with_nothing_between_are_an_info(tmp_path: Path) -> None:
    (finding,) = of_numbers(tmp_path, Net())
    assert finding.severity is Severity.INFO
    assert "Net.fc1 and Net.fc2, of 32 to 48 to 24 features" in finding.message


def test_two_convolutions_with_nothing_between_are_an_info(tmp_path: Path) -> None:
    (finding,) = of_numbers(tmp_path, Convolutions())
    assert "Two convolutions" in finding.message


class Shared(Net):
    """What the first layer gives is used by another one, too."""

    def forward(self, x: Tensor) -> Any:
        x = self.fc1(x)
        return self.head(self.fc2(x).relu()) + x[:, :2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Net(activates=True),
        lambda: Net(middle=8),  # Of low rank on purpose.
        Shared,
        lambda: Convolutions(groups=16),
    ],
)
def test_layers_that_may_be_two_on_purpose_are_fine(
    tmp_path: Path, make: Callable[[], nn.Module]
) -> None:
    assert not of_numbers(tmp_path, make())


# ---- attention -----------------------------------------------------------------------


class Attention(nn.Module):
    """Attention as people write it by hand."""

    def __init__(self, scale: float, width: int = WIDTH) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.scale = scale

    def forward(self, x: Tensor) -> Any:
        scores = self.query(x) @ self.key(x).transpose(-2, -1)
        if self.scale != 1:
            scores = scores * self.scale
        return self.out(scores.softmax(-1) @ self.value(x))


class Reader(nn.Module):
    """Tells which of two words comes first."""

    def __init__(
        self, *, places: str = "added", scale: float = WIDTH**-0.5, size: float = 1.0
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.pos_embed = None
        if places != "none":
            self.pos_embed = nn.Parameter(torch.randn(1, PLACES, WIDTH))
        self.is_added = places == "added"
        with torch.no_grad():
            self.words.weight *= size
        self.attention = Attention(scale)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Any:
        hidden = self.words(x)
        if self.is_added and self.pos_embed is not None:
            hidden = hidden + self.pos_embed
        hidden = self.norm(hidden + self.attention(hidden))
        return self.head(hidden.mean(1))


def test_scores_that_nobody_divides_are_an_info(tmp_path: Path) -> None:
    (finding,) = of_words(tmp_path, Reader(scale=1.0))
    assert finding.severity is Severity.INFO
    assert f"queries have {WIDTH}" in finding.message
    assert f"Divide by {math.sqrt(WIDTH):.3g}" in (finding.advice or "")


def test_attention_that_is_scaled_is_fine(tmp_path: Path) -> None:
    assert not of_words(tmp_path, Reader())


def test_scores_that_are_small_anyway_are_fine(tmp_path: Path) -> None:
    model = Reader(scale=1.0)
    with torch.no_grad():
        model.attention.query.weight *= 0.05
        model.attention.query.bias *= 0.05
    assert not of_words(tmp_path, model)


# ---- places --------------------------------------------------------------------------


def test_attention_without_places_is_an_info(tmp_path: Path) -> None:
    (finding,) = of_words(tmp_path, Reader(places="none"))
    assert finding.severity is Severity.INFO
    assert "does not see the order of its tokens" in finding.message


def test_places_that_the_model_has_and_does_not_use_are_a_warning(
    tmp_path: Path,
) -> None:
    (finding,) = of_words(tmp_path, Reader(places="unused"))
    assert finding.severity is Severity.WARNING
    assert "`pos_embed`" in finding.message


class BagOfWords(Reader):
    """A mean of words has no attention, and nobody expects an order of it."""

    def __init__(self) -> None:
        super().__init__(places="none")
        del self.attention

    def forward(self, x: Tensor) -> Any:
        return self.head(self.words(x).mean(1))


class Recurrent(Reader):
    """A recurrent layer sees the order."""

    def __init__(self) -> None:
        super().__init__(places="none")
        self.recurrent = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        hidden = self.recurrent(self.words(x))[0]
        return self.head(self.norm(hidden + self.attention(hidden)).mean(1))


@pytest.mark.parametrize("make", [BagOfWords, Recurrent])
def test_models_that_see_the_order_or_need_none_are_fine(
    tmp_path: Path, make: Callable[[], nn.Module]
) -> None:
    assert not of_words(tmp_path, make())


def test_columns_with_tokens_of_their_own_need_no_places(tmp_path: Path) -> None:
    luck = torch.Generator().manual_seed(1)
    columns = 3 * torch.arange(PLACES) + torch.randint(
        0, 3, (N, PLACES), generator=luck
    )
    assert not of_words(tmp_path, Reader(places="none"), columns)


# ---- dropout -------------------------------------------------------------------------


class Dropping(nn.Module):
    def __init__(self, keep_prob: float, *, turns: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(WIDTH, 24), nn.Linear(24, 2)
        self.drop = nn.Dropout(1 - keep_prob)
        if not turns:
            self.drop = make_dropout(keep_prob)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.drop(self.first(x).relu()))


def make_dropout(share: float) -> nn.Module:
    return nn.Dropout(share)


def test_a_dropout_that_leaves_little_is_an_info(tmp_path: Path) -> None:
    (finding,) = of_numbers(tmp_path, Dropping(0.9, turns=False))
    assert finding.severity is Severity.INFO
    assert "sets 0.9 of its inputs to zero" in finding.message


def test_a_dropout_of_the_rest_is_fine(tmp_path: Path) -> None:
    assert not of_numbers(tmp_path, Dropping(0.9, turns=True))


PROGRAM = """
import torch
from torch import nn
import tdbg.pytorch as td

keep_prob = 0.8
drop = nn.Dropout(p={share})
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), drop, nn.Linear(16, 2))
labels = torch.arange(8) % 2
optimizer = torch.optim.Adam(model.parameters())
with td.watch(model, out={run!r}, min_free_bytes=0):
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 8)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(("share", "n"), [("keep_prob", 1), ("1 - keep_prob", 0)])
def test_a_share_to_keep_that_is_dropped_is_a_warning(
    tmp_path: Path, share: str, n: int
) -> None:
    file, run = tmp_path / "program.py", tmp_path / "run"
    file.write_text(PROGRAM.format(share=share, run=str(run)))
    runpy.run_path(str(file), run_name="program")
    found = tdbg.rules.check(run, rules=[tdbg.rules.CodeMisuse()]).findings
    assert [each.severity for each in found] == [Severity.WARNING] * n
    assert all("what `keep_prob` says is to be kept" in e.message for e in found)
