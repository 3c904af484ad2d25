"""Runs that should be the same and are not; runs that stand still."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import digits, wine
from benchmarks.detection.corpus.loops import Predicate, Probe, fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.training import Training

OTHER = {"other_runs": ("{other}",)}


def tracked(model: nn.Module) -> list[Tensor]:
    """The model's weights now."""
    return [q.detach().clone() for q in model.parameters()]


def twice(t: Training, train: Callable[[bool, Predicate], None]) -> None:
    """Train two runs that should be the same; visible where weights differ first."""
    history: list[list[Tensor]] = []

    def remember(p: Probe) -> bool:
        history.append(tracked(p.model))
        return False

    def differs(p: Probe) -> bool:
        of_other = history[p.step]
        return not all(map(torch.equal, tracked(p.model), of_other))

    with t.other_run():
        train(False, remember)
    train(True, differs)


@sick(
    named_by={"SimilarAcrossRuns"},
    diagnosis="the seed is set after the model was made",
    asks={"SimilarAcrossRuns": OTHER},
)
def seed_too_late(t: Training) -> None:
    """Two runs of one script with one seed differ: the model was made before the seed.

    Source: PyTorch's notes on reproducibility; Pham et al. 2020, "Problems and
    Opportunities in Training Deep Learning Software Systems: An Analysis of Variance".

    Visible: at the first step after which a weight differs from the other run's.
    """

    def train(second: bool, look: Predicate) -> None:
        torch.manual_seed(t.seed + (100 if second and t.sick else 0))
        model = mlp([64, 32, 10])
        torch.manual_seed(t.seed)
        t.order.manual_seed(t.seed)
        fit(
            t,
            model,
            digits(),
            Adam(model.parameters(), 5e-3),
            n_steps=100,
            visible=look,
            learned=0.85,
        )

    twice(t, train)


@sick(
    named_by={"SimilarAcrossRuns"},
    diagnosis="the order of the data is not seeded",
    asks={"SimilarAcrossRuns": OTHER},
)
def unseeded_loader(t: Training) -> None:
    """Weights begin alike, batches differ: the loader has a generator of its own.

    Source: PyTorch's notes on reproducibility, DataLoader; Pham et al. 2020.

    Visible: at the first step after which a weight differs from the other run's.
    """

    def train(second: bool, look: Predicate) -> None:
        torch.manual_seed(t.seed)
        t.order.manual_seed(t.seed + (100 if second and t.sick else 0))
        model = mlp([13, 32, 3])
        fit(
            t,
            model,
            wine(),
            SGD(model.parameters(), 0.1),
            n_steps=120,
            batch_size=16,
            visible=look,
            learned=0.9,
        )

    twice(t, train)


def stalls(t: Training, model: nn.Module, at: int, seconds: float) -> None:
    """A training that comes to a stand at a step, and is alive."""
    fit(
        t,
        model,
        digits(),
        Adam(model.parameters(), 5e-3),
        n_steps=at + 1 if t.sick else 120,
        learned=0.9,
    )
    if t.sick:
        t.hang(seconds)
        t.visible(True)


@sick(
    named_by={"StalledTraining"},
    diagnosis="the loader waits for a worker that is dead",
)
def dead_worker(t: Training) -> None:
    """A worker of the loader was killed; the training waits for its batch, alive.

    Source: PyTorch issue 1355 and its duplicates on a DataLoader that hangs. The wait
    of two hours is not waited for: whoever judges is told that it was.

    Visible: at the last step, when nothing has come for so long.
    """
    stalls(t, mlp([64, 64, 10]), 80, 7200.0)


@sick(
    named_by={"StalledTraining"},
    diagnosis="storage does not answer after the third step",
)
def storage_does_not_answer(t: Training) -> None:
    """The first batches were cached; then a mount hangs, for an hour.

    Source: mount(8) on "hard" mounts of NFS; SageMaker Debugger's StalledTrainingRule
    was made for it.

    Visible: at the last step, when nothing has come for so long.
    """
    stalls(t, mlp([64, 32, 10]), 2, 3600.0)
