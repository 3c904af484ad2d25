"""Runs that should be the same, and runs that stand still."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.detection.kit.case import first, fourth
from benchmarks.detection.kit.data import digits, wine
from benchmarks.detection.kit.loops import Loop, Predicate, Probe, adam, adamw, sgd
from benchmarks.detection.kit.models import cnn, mlp
from benchmarks.detection.kit.training import Training

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


@first.sick(
    "SimilarAcrossRuns",
    "the seed is set after the model was made",
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
        loop = Loop(t, model, digits(), adam(5e-3))
        loop.run(100, visible=look, learned=0.85)

    twice(t, train)


@first.sick(
    "SimilarAcrossRuns",
    "the order of the data is not seeded",
    asks={"SimilarAcrossRuns": OTHER},
)
def unseeded_loader(t: Training) -> None:
    """Weights begin alike, batches differ: the loader has a generator of its own.

    Source: PyTorch's notes on reproducibility, DataLoader; Pham et al. 2020.  Visible:
    at the first step after which a weight differs from the other run's.
    """

    def train(second: bool, look: Predicate) -> None:
        torch.manual_seed(t.seed)
        t.order.manual_seed(t.seed + (100 if second and t.sick else 0))
        loop = Loop(t, mlp([13, 32, 3]), wine(), sgd(0.1), batch_size=16)
        loop.run(120, visible=look, learned=0.9)

    twice(t, train)


def stalls(t: Training, model: nn.Module, at: int, seconds: float) -> None:
    """A training that comes to a stand at a step, and is alive."""
    loop = Loop(t, model, digits(), adam(5e-3))
    loop.run(at + 1 if t.sick else 120, learned=0.9)
    if t.sick:
        t.hang(seconds)
        t.visible(True)


@first.sick("StalledTraining", "the loader waits for a worker that is dead")
def dead_worker(t: Training) -> None:
    """A worker of the loader was killed; the training waits for its batch, alive.

    Source: PyTorch issue 1355 and its duplicates on a DataLoader that hangs. The wait
    of two hours is not waited for: whoever judges is told that it was.  Visible: at the
    last step, when nothing has come for so long.
    """
    stalls(t, mlp([64, 64, 10]), 80, 7200.0)


@first.sick("StalledTraining", "storage does not answer after the third step")
def storage_does_not_answer(t: Training) -> None:
    """The first batches were cached; then a mount hangs, for an hour.

    Source: mount(8) on "hard" mounts of NFS; SageMaker Debugger's StalledTrainingRule
    was made for it.  Visible: at the last step, when nothing has come for so long.
    """
    stalls(t, mlp([64, 32, 10]), 2, 3600.0)


@fourth.sick(
    "SimilarAcrossRuns",
    "os.listdir gives the files in another order on another machine",
    asks={"SimilarAcrossRuns": OTHER},
)
def listed_in_another_order(t: Training) -> None:
    """All is seeded, but the rows lie in another order: sorted() was left out.

    Source: Python's page on os.listdir, "in arbitrary order", and Neupane 2019 on
    chemists' results that changed with it.  Visible: at the first step after which a
    weight differs from the other run's.
    """

    def run(second: bool, look: Predicate) -> None:
        torch.manual_seed(t.seed)
        t.order.manual_seed(t.seed)
        split = digits()
        if second and t.sick:
            split = split.take(torch.arange(len(split.x)).flip(0))
        loop = Loop(t, cnn(4), split, sgd(0.1, momentum=0.9), batch_size=48)
        loop.run(110, visible=look, learned=0.8)

    twice(t, run)


@fourth.sick(
    "SimilarAcrossRuns",
    "the repetition was started with another version of the initialization",
    asks={"SimilarAcrossRuns": OTHER},
)
def library_with_another_default(t: Training) -> None:
    """One seed, one script; an upgrade draws one number more before the weights.

    Source: PyTorch's notes: results are not guaranteed across releases.  Visible: at
    the first step after which a weight differs from the other run's.
    """

    def run(second: bool, look: Predicate) -> None:
        torch.manual_seed(t.seed)
        t.order.manual_seed(t.seed)
        if second and t.sick:
            torch.rand(1)
        loop = Loop(t, mlp([13, 24, 3], nn.Tanh), wine(), adam(1e-2), batch_size=16)
        loop.run(120, visible=look, learned=0.9)

    twice(t, run)


@fourth.sick(
    "StalledTraining", "the other ranks wait in all_reduce for one that has ended"
)
def ranks_with_unequal_batches(t: Training) -> None:
    """One rank has a batch less, and has left; this one waits for it, for an hour.

    Source: PyTorch's tutorial on Join for uneven inputs; NCCL's time-out is as long.
    Visible: at the last step, when nothing has come for so long.
    """
    model = mlp([64, 48, 10], nn.GELU)
    loop = Loop(t, model, digits(), adamw(5e-3), batch_size=32, validate_every=40)
    loop.run(121 if t.sick else 150, learned=0.9)
    if t.sick:
        t.hang(3600.0)
        t.visible(True)


@fourth.sick(
    "StalledTraining",
    "breakpoint() was left where a loss is suspicious; nobody answers",
)
def breakpoint_left_in(t: Training) -> None:
    """A job of the night stands in pdb, at the prompt, after the 41st step.

    Source: everybody, once; SageMaker Debugger's StalledTrainingRule counts on it.
    Visible: at the last step, when nothing has come for so long.
    """
    model = mlp([13, 32, 16, 3], nn.LeakyReLU)
    loop = Loop(t, model, wine(), sgd(0.1, momentum=0.9), batch_size=16)
    loop.run(41 if t.sick else 160, learned=0.95)
    if t.sick:
        t.hang(5400.0)
        t.visible(True)
