"""LoaderMisuse and LabelMisuse, of batches beside the data that they were made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

N, WIDTH, BATCH = 96, 12, 16
Losses = Callable[[nn.Module], Iterator[Tensor]]


def judged(run_dir: Path, losses: Losses) -> list[Finding]:
    """Train by all losses that come; say what the two rules find."""
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, 3)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0) as hook:
        for loss in losses(model):
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert hook.counters()["internal_errors"] == 0
    rules = [tdbg.rules.LoaderMisuse(), tdbg.rules.LabelMisuse()]
    return list(tdbg.rules.check(run_dir, rules, record=False).findings)


def made() -> tuple[Tensor, Tensor]:
    return torch.randn(N, WIDTH), torch.randint(3, (N,))


def rows_of_epochs(n: int = 4) -> Iterator[Tensor]:
    for _ in range(n):
        yield from torch.split(torch.randperm(N), BATCH)


# ---- data that change ------------------------------------------------------------


def written_by_rows(model: nn.Module) -> Iterator[Tensor]:
    images, y = made()
    for rows in rows_of_epochs():
        images[rows] += 0.3 * torch.randn(len(rows), WIDTH)
        yield functional.cross_entropy(model(images[rows]), y[rows])


def written_by_slices(model: nn.Module) -> Iterator[Tensor]:
    x, y = made()
    for _ in range(4):
        for i in range(0, N, BATCH):
            batch = x[i : i + BATCH]
            batch.mul_(1 + 0.2 * torch.randn(BATCH, WIDTH))
            yield functional.cross_entropy(model(batch), y[i : i + BATCH])


class Changing:
    """Writes to its samples whenever one is asked for."""

    def __init__(self) -> None:
        self.x, self.y = made()

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        image = self.x[i]
        image += 0.3 * torch.randn(WIDTH)
        return image, self.y[i]


def written_one_by_one(model: nn.Module) -> Iterator[Tensor]:
    dataset = Changing()
    for rows in rows_of_epochs():
        samples = [dataset[int(i)] for i in rows]
        x, y = (torch.stack(each) for each in zip(*samples, strict=True))
        yield functional.cross_entropy(model(x), y)


class ChangingDataset(Changing, Dataset[tuple[Tensor, Tensor]]):
    """The same for a loader, which sees it, too."""


def written_by_a_loader(model: nn.Module) -> Iterator[Tensor]:
    dataset = ChangingDataset()
    for _ in range(4):
        for x, y in DataLoader(dataset, BATCH, shuffle=True):
            yield functional.cross_entropy(model(x), y)


def changed_copies(model: nn.Module) -> Iterator[Tensor]:
    x, y = made()
    for rows in rows_of_epochs():
        batch = x[rows]
        batch += 0.3 * torch.randn(len(rows), WIDTH)
        yield functional.cross_entropy(model(batch), y[rows])


def prepared_once(model: nn.Module) -> Iterator[Tensor]:
    """A cache that is filled as its samples are asked for."""
    x, y = made()
    ready = torch.zeros(N, dtype=torch.bool)
    for rows in rows_of_epochs():
        new = rows[~ready[rows]]
        x[new] = x[new] * 0.5 + 1
        ready[new] = True
        yield functional.cross_entropy(model(x[rows]), y[rows])


def replaced_in_turn(model: nn.Module) -> Iterator[Tensor]:
    """A memory of what was met last, in which new replaces old."""
    memory, y = made()
    for i, rows in enumerate(rows_of_epochs()):
        at = torch.arange(4 * i, 4 * i + 4) % N
        memory[at] = memory[at - 1] + 0.1 * torch.randn(4, WIDTH)
        yield functional.cross_entropy(model(memory[rows]), y[rows])


def chains(model: nn.Module) -> Iterator[Tensor]:
    """Samples of a model of energy, which go on from where they were."""
    chain, _ = made()
    for rows in rows_of_epochs():
        loss = model(chain[rows]).square().mean()
        yield loss
        chain[rows] += 0.05 * torch.randn(len(rows), WIDTH)


def as_they_are(model: nn.Module) -> Iterator[Tensor]:
    x, y = made()
    for _ in range(3):
        for batch, labels in DataLoader(TensorDataset(x, y), BATCH, shuffle=True):
            yield functional.cross_entropy(model(batch), labels)


@pytest.mark.parametrize(
    "losses", [written_by_rows, written_by_slices, written_one_by_one]
)
def test_data_that_are_written_to(run_dir: Path, losses: Losses) -> None:
    (finding,) = judged(run_dir, losses)
    assert (finding.rule, finding.severity) == ("LoaderMisuse", Severity.WARNING)
    assert "changes its training data in place" in finding.message
    assert "clone()" in finding.advice


def test_samples_that_a_loader_sees_change_are_told_once(run_dir: Path) -> None:
    (finding,) = judged(run_dir, written_by_a_loader)
    assert "__getitem__ writes to the array in ChangingDataset.x" in finding.message


@pytest.mark.parametrize(
    "losses", [changed_copies, prepared_once, replaced_in_turn, chains, as_they_are]
)
def test_data_that_nobody_spoils(run_dir: Path, losses: Losses) -> None:
    assert judged(run_dir, losses) == []


# ---- mixtures --------------------------------------------------------------------


def mixed(x: Tensor, share: float, other: Tensor) -> Tensor:
    return share * x + (1 - share) * x[other]


def pasted(x: Tensor, share: float, other: Tensor) -> Tensor:
    n = int(share * WIDTH)
    return torch.cat([x[:, :n], x[other][:, n:]], 1)


def first_label_only(model: nn.Module) -> Iterator[Tensor]:
    images, labels = made()
    for rows in rows_of_epochs():
        x, y = images[rows], labels[rows]
        given = mixed(x, float(torch.rand(())), torch.randperm(len(x)))
        yield functional.cross_entropy(model(given), y)


def first_label_of_pasted(model: nn.Module) -> Iterator[Tensor]:
    images, labels = made()
    for rows in rows_of_epochs():
        x, y = images[rows], labels[rows]
        share = 0.2 + 0.6 * float(torch.rand(()))
        given = pasted(x, share, torch.randperm(len(x)))
        yield functional.cross_entropy(model(given), y)


def first_label_of_indices(model: nn.Module) -> Iterator[Tensor]:
    images, labels = made()
    criterion = nn.CrossEntropyLoss()
    for rows in rows_of_epochs():
        other, share = rows.flip(0), float(torch.rand(()))
        given = share * images[rows] + (1 - share) * images[other]
        yield criterion(model(given), labels[rows])


def both_labels(model: nn.Module) -> Iterator[Tensor]:
    images, labels = made()
    for rows in rows_of_epochs():
        x, y = images[rows], labels[rows]
        share, other = float(torch.rand(())), torch.randperm(len(x))
        told = model(mixed(x, share, other))
        of_first = functional.cross_entropy(told, y)
        of_second = functional.cross_entropy(told, y[other])
        yield share * of_first + (1 - share) * of_second


def soft_labels(model: nn.Module) -> Iterator[Tensor]:
    images, labels = made()
    for rows in rows_of_epochs():
        x, y = images[rows], functional.one_hot(labels[rows], 3).float()
        share, other = float(torch.rand(())), torch.randperm(len(x))
        told = model(mixed(x, share, other))
        yield functional.cross_entropy(told, mixed(y, share, other))


def mixed_within_classes(model: nn.Module) -> Iterator[Tensor]:
    images, labels = made()
    for rows in rows_of_epochs():
        x, y = images[rows].clone(), labels[rows].sort().values
        other = torch.arange(len(x))
        for label in torch.unique(y):
            members = (y == label).nonzero().flatten()
            other[members] = members.roll(1)
        given = mixed(x, float(torch.rand(())), other)
        yield functional.cross_entropy(model(given), y)


def a_little_of_another(model: nn.Module) -> Iterator[Tensor]:
    """Noise from other samples, always little of it, as of voices behind a voice."""
    images, labels = made()
    for rows in rows_of_epochs():
        x, y = images[rows], labels[rows]
        share = 0.7 + 0.3 * float(torch.rand(()))
        given = mixed(x, share, torch.randperm(len(x)))
        yield functional.cross_entropy(model(given), y)


@pytest.mark.parametrize(
    ("losses", "kind"),
    [
        (first_label_only, "mixup"),
        (first_label_of_indices, "mixup"),
        (first_label_of_pasted, "CutMix"),
    ],
)
def test_a_label_that_the_loss_forgets(
    run_dir: Path, losses: Losses, kind: str
) -> None:
    (finding,) = judged(run_dir, losses)
    assert (finding.rule, finding.severity) == ("LabelMisuse", Severity.WARNING)
    assert f"mixed of two samples ({kind})" in finding.message
    assert "share * loss" in finding.advice


@pytest.mark.parametrize(
    "losses",
    [both_labels, soft_labels, mixed_within_classes, a_little_of_another],
)
def test_labels_of_mixed_samples_that_are_right(run_dir: Path, losses: Losses) -> None:
    assert judged(run_dir, losses) == []
