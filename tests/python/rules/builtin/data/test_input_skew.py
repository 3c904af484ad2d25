"""InputSkew, on real trainings: other inputs in evaluation, and healthy ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

Inputs = Callable[[int], Tensor]


def images(n: int) -> Tensor:
    """Images that are red rather than blue, standardized."""
    of_channels = torch.tensor([1.5, 0.0, -1.0]).reshape(1, 3, 1, 1)
    spread = torch.tensor([0.5, 1.0, 1.5]).reshape(1, 3, 1, 1)
    light = 0.1 * torch.randn(n, 1, 1, 1)
    return of_channels + spread * torch.randn(n, 3, 5, 5) + light


def rows(n: int) -> Tensor:
    return torch.randn(n, 5) * torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0]) + 1


def standardized(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std(0)


def judged(
    run_dir: Path,
    of_training: Inputs,
    of_evaluation: Inputs,
    n_steps: int = 60,
    n_samples: int = 64,
) -> list[Finding]:
    torch.manual_seed(0)
    n = of_training(1).flatten(1).shape[1]
    model = nn.Sequential(nn.Flatten(), nn.Linear(n, 2))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with td.watch(
        model, criterion, out=run_dir, budget="off", min_free_bytes=0
    ) as hook:
        for step in range(n_steps):
            loss = criterion(model(of_training(32)), torch.randint(2, (32,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 19:
                model.eval()
                with torch.no_grad():
                    for _ in range(3):
                        model(of_evaluation(n_samples))
                model.train()
    assert hook.counters()["internal_errors"] == 0
    rule = tdbg.rules.InputSkew()
    return list(tdbg.rules.check(run_dir, rule, record=False).findings)


def test_channels_in_another_order(run_dir: Path) -> None:
    (finding,) = judged(run_dir, images, lambda n: images(n).flip(1))
    assert (finding.tensor, finding.severity) == (
        "Sequential_input_0",
        Severity.WARNING,
    )
    assert "channels 2, 1, 0 in training" in finding.message
    assert "COLOR_BGR2RGB" in finding.advice


def test_channels_that_come_last(run_dir: Path) -> None:
    (finding,) = judged(
        run_dir,
        lambda n: images(n).movedim(1, -1),
        lambda n: images(n).roll(1, 1).movedim(1, -1),
    )
    assert "changed places" in finding.message


def test_bytes_in_place_of_fractions(run_dir: Path) -> None:
    (finding,) = judged(
        run_dir,
        lambda n: torch.rand(n, 3, 5, 5),
        lambda n: 255 * torch.rand(n, 3, 5, 5),
    )
    assert finding.severity is Severity.WARNING
    assert "times as large" in finding.message


def test_a_smaller_factor_is_a_note(run_dir: Path) -> None:
    (finding,) = judged(
        run_dir,
        lambda n: torch.randn(n, 3, 5, 5),
        lambda n: torch.randn(n, 3, 5, 5) / 4,
    )
    assert finding.severity is Severity.INFO


def test_a_scaler_that_is_fitted_to_each_batch(run_dir: Path) -> None:
    (finding,) = judged(run_dir, rows, lambda n: standardized(rows(n)))
    assert finding.severity is Severity.WARNING
    assert "not fit_transform" in finding.advice


gray = torch.randn(64, 1, 5, 5)
all_rows = standardized(rows(64))


@pytest.mark.parametrize(
    ("of_training", "of_evaluation"),
    [
        (images, images),
        # Another camera.
        (images, lambda n: 1.2 * images(n) + 0.7),
        # Augmented in training: darker, and noisier.
        (lambda n: 0.8 * images(n) + 0.2 * torch.randn(n, 3, 5, 5), images),
        # Channels that hardly differ.
        (lambda n: torch.randn(n, 3, 5, 5), lambda n: torch.randn(n, 3, 5, 5).flip(1)),
        # Gray images in three channels.
        (lambda n: gray[:n].repeat(1, 3, 1, 1), lambda n: gray[:n].repeat(1, 3, 1, 1)),
        # All of the training data at once, which the scaler was fitted to.
        (lambda n: all_rows[torch.randperm(64)[:n]], lambda _: all_rows),
        # Each batch is standardized, in training, too.
        (lambda n: standardized(rows(max(2, n))), lambda n: standardized(rows(n))),
        # Noise of every strength, as diffusion has it.
        (lambda n: torch.randn(n, 3, 5, 5) * 10 * torch.rand(()), images),
    ],
    ids=[
        "same",
        "camera",
        "augmented",
        "alike",
        "gray",
        "whole_data",
        "both",
        "diffusion",
    ],
)
def test_healthy_evaluations(
    run_dir: Path, of_training: Inputs, of_evaluation: Inputs
) -> None:
    assert judged(run_dir, of_training, of_evaluation) == []


def test_few_samples_tell_nothing(run_dir: Path) -> None:
    def flipped_now_and_then(n: int) -> Tensor:
        return images(n) + torch.randn(1, 3, 1, 1)

    assert (
        judged(run_dir, flipped_now_and_then, flipped_now_and_then, n_samples=1) == []
    )


def test_numbers_of_tokens_are_not_compared(run_dir: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))
    with td.watch(model, out=run_dir, min_free_bytes=0) as hook:
        for _ in range(12):
            model(torch.randint(10, (8, 3))).sum().backward()
        model.eval()(torch.zeros(8, 3, dtype=torch.long))
    assert hook.counters()["internal_errors"] == 0
    rule = tdbg.rules.InputSkew()
    assert not tdbg.rules.check(run_dir, rule, record=False).findings


@pytest.mark.parametrize(
    ("scaling", "told"),
    [
        ("once", []),
        ("again", [("InputSkew", Severity.WARNING, "by their own statistics")]),
        ("all", [("DataLeakage", Severity.INFO, "fitted on rows that you evaluate")]),
    ],
)
def test_a_scaler_that_is_fitted_on_more_than_the_training_rows(
    run_dir: Path, scaling: str, told: list[tuple[str, Severity, str]]
) -> None:
    x = torch.randn(160, 5, generator=torch.Generator().manual_seed(2)) * 3 + 1
    fitted = {"once": x[:120], "again": x[:120], "all": x}[scaling]
    x_train, x_val = (
        (part - fitted.mean(0)) / fitted.std(0) for part in (x[:120], x[120:])
    )
    if scaling == "again":
        x_val = (x[120:] - x[120:].mean(0)) / x[120:].std(0)
    model, loss = nn.Linear(5, 2), nn.CrossEntropyLoss()
    train, val = (
        DataLoader(TensorDataset(part, (part[:, 0] > 0).long()), 10, shuffle=True)
        for part in (x_train, x_val)
    )
    optimizer = torch.optim.Adam(model.parameters())
    with td.watch(model, loss, out=run_dir, budget="off", min_free_bytes=0):
        for _ in range(3):
            model.train()
            for inputs, labels in train:
                optimizer.zero_grad()
                loss(model(inputs), labels).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for inputs, labels in val:
                    loss(model(inputs), labels)
    rules = [tdbg.rules.InputSkew(), tdbg.rules.DataLeakage()]
    found = tdbg.rules.check(run_dir, rules, record=False).findings
    assert [(each.rule, each.severity) for each in found] == [t[:2] for t in told]
    assert all(t[2] in each.message for each, t in zip(found, told, strict=True))
