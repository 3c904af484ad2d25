"""DataLeakage, of windows of a series that overlap, and of those that do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, random_split

import tdbg
import tdbg.pytorch as td
from tdbg.hooks.pytorch.checks.data.input_statistics import WindowOverlap
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

STEPS = 16
Split = tuple[Tensor, list[Tensor]]


def series(n: int = 500, width: int = 1) -> Tensor:
    """A wandering signal, as no two stretches are equal."""
    found: Tensor = torch.randn(n, width).cumsum(0)
    return found / found.std(0)


def windows(values: Tensor, every: int = 1) -> Tensor:
    """All stretches (n, time, features), or (n, time) of one feature."""
    found = values.unfold(0, STEPS, every).movedim(-1, 1)
    return found[..., 0] if found.shape[-1] == 1 else found


def at_random(cut: Tensor) -> Split:
    order = torch.randperm(len(cut))
    n = len(cut) // 5
    return cut[order[n:]], [cut[order[:n]]]


def by_time(cut: Tensor) -> Split:
    n = len(cut) // 5
    return cut[:-n], [cut[-n:]]


def with_training(split: Split) -> Split:
    """Evaluation tells the loss on training data, too."""
    trained, evaluated = split
    return trained, [trained[:100], *evaluated]


class Windows(Dataset[Tensor]):
    """Cuts its windows when it is asked for them."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values) - STEPS

    def __getitem__(self, i: int) -> Tensor:
        return self.values[i : i + STEPS].t()


def by_torch() -> Split:
    parts = random_split(Windows(series(width=2)), [0.8, 0.2])
    trained, evaluated = (
        torch.cat([*DataLoader(part, 32, shuffle=True)]) for part in parts
    )
    return trained, [evaluated]


def crops(values: Tensor, n: int) -> Tensor:
    return windows(values)[torch.randint(len(values) - STEPS, (n,))]


def of_two_series() -> Split:
    return windows(series()), [windows(series(200))]


def of_training_only() -> Split:
    cut = windows(series())
    return cut, [cut[:200]]


SICK: dict[str, Callable[[], Split]] = {
    "split at random": lambda: at_random(windows(series())),
    "of several features": lambda: at_random(windows(series(width=3))),
    "with every third window": lambda: at_random(windows(series(1500), 3)),
    "by random_split": by_torch,
    "beside training data": lambda: with_training(at_random(windows(series()))),
}
SOUND: dict[str, Callable[[], Split]] = {
    "split by time": lambda: by_time(windows(series())),
    "training data, too": lambda: with_training(by_time(windows(series()))),
    "windows apart": lambda: at_random(windows(series(4000), STEPS)),
    "two series": of_two_series,
    "training data only": of_training_only,
    "rows of a table": lambda: at_random(torch.randn(400, STEPS)),
    "flags": lambda: at_random(windows((torch.rand(500, 1) > 0.5).float())),
}


def judged(run_dir: Path, split: Callable[[], Split]) -> list[Finding]:
    torch.manual_seed(0)
    trained, evaluated = split()
    model = nn.Sequential(nn.Flatten(), nn.Linear(trained[0].numel(), 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0) as hook:
        for step in range(60):
            x = trained[torch.randint(len(trained), (32,))]
            loss = functional.mse_loss(model(x), x.flatten(1)[:, :1])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % 15 == 14:
                model.eval()
                with torch.no_grad():
                    for each in evaluated:
                        model(each)
                model.train()
    assert hook.counters()["internal_errors"] == 0
    rule = tdbg.rules.DataLeakage()
    return list(tdbg.rules.check(run_dir, rule, record=False).findings)


@pytest.mark.parametrize("split", SICK.values(), ids=SICK)
def test_windows_between_those_of_training(
    run_dir: Path, split: Callable[[], Split]
) -> None:
    (finding,) = judged(run_dir, split)
    assert finding.severity is Severity.WARNING
    assert "evaluation windows overlap training windows" in finding.message
    assert "Split the series by time" in finding.advice


@pytest.mark.parametrize("split", SOUND.values(), ids=SOUND)
def test_windows_that_are_apart(run_dir: Path, split: Callable[[], Split]) -> None:
    assert judged(run_dir, split) == []


def test_crops_that_were_not_drawn_in_training_by_chance() -> None:
    torch.manual_seed(0)
    values, seen = series(), WindowOverlap()
    for _ in range(10):
        seen.train(crops(values, 32))
    assert seen.evaluate(crops(values, 200)) is None
