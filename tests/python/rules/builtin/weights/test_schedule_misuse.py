"""ScheduleMisuse and ResumptionMisuse, on real trainings with schedules."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR
from torch.utils.data import DataLoader, TensorDataset

import tdbg
import tdbg.pytorch as td
from tdbg.rules import ResumptionMisuse, ScheduleMisuse
from tdbg.run.findings import Finding, Severity

EPOCHS, BATCHES = 8, 12
N_STEPS = EPOCHS * BATCHES


class Training:
    """A classifier of places, trained in epochs of a loader."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
        inputs = torch.randn(BATCHES * 8, 4)
        data = TensorDataset(inputs, inputs.argmax(1))
        self.loader = DataLoader(data, batch_size=8, shuffle=True)
        self.optimizer: optim.Optimizer = optim.Adam(self.model.parameters(), 0.01)
        self.schedule: Any = None
        self.epoch = 0

    def loss(self, batch: list[Tensor]) -> Tensor:
        return functional.cross_entropy(self.model(batch[0]), batch[1])

    def batches(self, epochs: int = EPOCHS) -> Iterator[list[Tensor]]:
        for self.epoch in range(epochs):
            yield from self.loader

    def step(self, batch: list[Tensor]) -> None:
        self.optimizer.zero_grad()
        backward(self.loss(batch))
        self.optimizer.step()

    def per_batch(self, epochs: int = EPOCHS) -> None:
        for batch in self.batches(epochs):
            self.step(batch)
            self.schedule.step()

    def per_epoch(self, epochs: int = EPOCHS) -> None:
        for _ in range(epochs):
            for batch in self.loader:
                self.step(batch)
            self.schedule.step()

    def accumulating(self, n: int, *, per_pass: bool, epochs: int = EPOCHS) -> None:
        """Step after *n* backward passes, and the schedule after each, or each step."""
        with stepping_first() if per_pass else contextlib.nullcontext():
            for i, batch in enumerate(self.batches(epochs)):
                backward(self.loss(batch) / n)
                is_last = i % n == n - 1
                if is_last:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                if is_last or per_pass:
                    self.schedule.step()


Loop = Callable[[Training], None]


def stepping_first() -> Any:
    """Expect that PyTorch warns of a schedule that steps before the optimizer."""
    return pytest.warns(UserWarning, match="lr_scheduler.step")


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def linear(optimizer: optim.Optimizer, warm_up: int, length: int) -> Any:
    """The schedule of transformers, by the names of its arguments."""

    def rate(step: int, *, num_warmup_steps: int, num_training_steps: int) -> float:
        if step < num_warmup_steps:
            return step / max(1, num_warmup_steps)
        left = num_training_steps - step
        return max(0.0, left / max(1, num_training_steps - num_warmup_steps))

    function = functools.partial(
        rate, num_warmup_steps=warm_up, num_training_steps=length
    )
    return lr_scheduler.LambdaLR(optimizer, function)


def cosine(length: int) -> Callable[[Training], None]:
    def make(training: Training) -> None:
        training.schedule = lr_scheduler.CosineAnnealingLR(training.optimizer, length)

    return make


# ---- what is wrong ------------------------------------------------------------------


def stepped_at_each_micro_batch(training: Training) -> None:
    training.schedule = linear(training.optimizer, 2, N_STEPS // 2)
    training.accumulating(4, per_pass=True, epochs=2 * EPOCHS)


def one_cycle_until_its_end(training: Training) -> None:
    training.schedule = lr_scheduler.OneCycleLR(
        training.optimizer, 0.01, total_steps=N_STEPS // 2
    )
    for i, batch in enumerate(training.batches()):
        training.step(batch)
        for _ in range(2):
            if training.schedule.last_epoch + 1 < N_STEPS // 2:
                training.schedule.step()
        assert i < N_STEPS


def epochs_at_each_batch(training: Training) -> None:
    cosine(EPOCHS)(training)
    training.per_batch()


def polynomial_in_epochs_at_each_batch(training: Training) -> None:
    training.schedule = lr_scheduler.PolynomialLR(training.optimizer, EPOCHS)
    training.per_batch()


def length_in_micro_batches(training: Training) -> None:
    training.schedule = linear(training.optimizer, 2, N_STEPS)
    training.accumulating(4, per_pass=False)


def warm_up_longer_than_all(training: Training) -> None:
    training.schedule = linear(training.optimizer, 50, EPOCHS)
    training.per_epoch()


def warm_up_stepped_once_an_epoch(training: Training) -> None:
    training.schedule = linear(training.optimizer, 100, 1000)
    training.per_epoch(epochs=10)


def plateau_of_an_accuracy(training: Training) -> None:
    follow_plateau(training, "min", lambda i: (20 + 60 * (1 - 0.9**i) // 1) / 97)


def plateau_of_a_loss(training: Training) -> None:
    follow_plateau(training, "max", lambda i: 1.1 * 0.85**i + 0.01 * math.sin(9 * i))


def follow_plateau(
    training: Training, mode: Any, metric: Callable[[int], float], n: int = 20
) -> None:
    training.schedule = lr_scheduler.ReduceLROnPlateau(
        training.optimizer, mode=mode, patience=2
    )
    batch = next(iter(training.loader))
    for i in range(n):
        training.step(batch)
        training.schedule.step(metric(i))


SICK = {
    "stepped_at_each_micro_batch": "steps it 4 times for each step of the optimizer",
    "one_cycle_until_its_end": "steps it 2 times for each step of the optimizer",
    "epochs_at_each_batch": "counts epochs, but the program steps it after each batch",
    "polynomial_in_epochs_at_each_batch": "over after 8 steps of 96",
    "length_in_micro_batches": "counts micro-batches, but",
    "warm_up_longer_than_all": "takes 50 steps, more than its whole schedule",
    "warm_up_stepped_once_an_epoch": "100 steps, and the program stepped it 10 times",
    "plateau_of_an_accuracy": 'waits for the metric to fall (mode="min")',
    "plateau_of_a_loss": 'waits for the metric to rise (mode="max")',
}


@pytest.mark.parametrize("name", SICK)
def test_says_what_a_schedule_counts(name: str, run_dir: Path) -> None:
    (finding,) = judged(globals()[name], run_dir)
    assert finding.severity is Severity.WARNING
    assert SICK[name] in finding.message
    assert finding.advice


@pytest.mark.parametrize(
    ("warm_up", "epochs", "severity"),
    [(250, EPOCHS, Severity.INFO), (500, EPOCHS, Severity.WARNING)],
)
def test_a_training_that_ends_in_its_warm_up(
    run_dir: Path, warm_up: int, epochs: int, severity: Severity
) -> None:
    def loop(training: Training) -> None:
        training.schedule = linear(training.optimizer, warm_up, 10_000)
        training.per_batch(epochs)

    (finding,) = judged(loop, run_dir)
    assert finding.severity is severity
    assert "was not over at the end of the training" in finding.message
    assert "Shorten the warm-up" in finding.advice


def test_counts_of_all_ranks(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loop(training: Training) -> None:
        cosine(4 * N_STEPS)(training)
        training.per_batch()

    from tdbg.hooks.pytorch.checks.updates import schedules

    monkeypatch.setattr(schedules, "_is_distributed", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    (finding,) = judged(loop, run_dir)
    assert finding.severity is Severity.WARNING
    assert "counts the batches of all 4 ranks" in finding.message


# ---- what is meant ------------------------------------------------------------------


def one_cycle_at_each_batch(training: Training) -> None:
    training.schedule = lr_scheduler.OneCycleLR(
        training.optimizer, 0.01, total_steps=N_STEPS
    )
    training.per_batch()


def cosine_at_each_epoch(training: Training) -> None:
    cosine(EPOCHS)(training)
    training.per_epoch()


def cosine_in_micro_batches(training: Training) -> None:
    cosine(N_STEPS)(training)
    training.accumulating(4, per_pass=True)


def cosine_that_comes_back(training: Training) -> None:
    cosine(BATCHES)(training)
    training.per_batch()


def warm_restarts(training: Training) -> None:
    training.schedule = lr_scheduler.CosineAnnealingWarmRestarts(training.optimizer, 5)
    training.per_batch()


def lambda_at_each_epoch(training: Training) -> None:
    training.schedule = lr_scheduler.LambdaLR(training.optimizer, lambda e: 0.9**e)
    training.per_epoch()


def linear_at_each_epoch(training: Training) -> None:
    training.schedule = linear(training.optimizer, 1, EPOCHS)
    training.per_epoch()


def linear_at_each_batch(training: Training) -> None:
    training.schedule = linear(training.optimizer, 10, N_STEPS)
    training.per_batch()


def inverse_square_root(training: Training) -> None:
    warmup_steps = 10

    def rate(step: int) -> float:
        return min((step + 1) / warmup_steps, math.sqrt(warmup_steps / (step + 1)))

    training.schedule = lr_scheduler.LambdaLR(training.optimizer, rate)
    training.per_batch()


def stopped_early(training: Training) -> None:
    cosine(1000)(training)
    training.per_batch(epochs=5)


def short_warm_up_then_cosine(training: Training) -> None:
    # As many steps of warm-up as there are epochs.
    warm_up = lr_scheduler.LinearLR(training.optimizer, 0.1, total_iters=EPOCHS)
    rest = lr_scheduler.CosineAnnealingLR(training.optimizer, N_STEPS - EPOCHS)
    training.schedule = lr_scheduler.SequentialLR(
        training.optimizer, [warm_up, rest], [EPOCHS]
    )
    training.per_batch()


def warm_up_alone(training: Training) -> None:
    training.schedule = lr_scheduler.LinearLR(
        training.optimizer, 0.1, total_iters=EPOCHS
    )
    training.per_batch()


def chained(training: Training) -> None:
    training.schedule = lr_scheduler.ChainedScheduler(
        [
            lr_scheduler.ConstantLR(training.optimizer, total_iters=EPOCHS),
            lr_scheduler.ExponentialLR(training.optimizer, 0.99),
        ]
    )
    training.per_batch()


def averaging(training: Training) -> None:
    cosine(EPOCHS // 2)(training)
    training.per_epoch(EPOCHS // 2)
    training.schedule = SWALR(training.optimizer, swa_lr=0.005, anneal_epochs=3)
    training.per_epoch(EPOCHS // 2)


def two_optimizers(training: Training) -> None:
    first, second = training.model[0], training.model[2]
    optimizers = [optim.Adam(each.parameters()) for each in (first, second)]
    schedules = [
        lr_scheduler.CosineAnnealingLR(optimizers[0], EPOCHS),
        linear(optimizers[1], 1, N_STEPS // 4),
    ]
    for batch in training.batches():
        for each in optimizers:
            each.zero_grad()
        backward(training.loss(batch))
        for each in (*optimizers, *schedules):
            each.step()
        schedules[1].step()


def skipped_first_steps(training: Training) -> None:
    training.schedule = linear(training.optimizer, 10, N_STEPS)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    with stepping_first():
        for batch in training.batches():
            training.optimizer.zero_grad()
            backward(scaler.scale(training.loss(batch) * 1e6))
            scaler.step(training.optimizer)
            scaler.update()
            training.schedule.step()


def stepped_for_all_processes(training: Training) -> None:
    """Step once for each of two processes, as Accelerate does."""
    training.schedule = linear(training.optimizer, 2, 2 * N_STEPS)
    for batch in training.batches():
        training.step(batch)
        training.schedule.step()
        training.schedule.step()


def plateau_of_a_falling_loss(training: Training) -> None:
    follow_plateau(training, "min", lambda i: 1 + 0.8**i + 0.05 * math.sin(9 * i))


def plateau_of_a_loss_that_overfits(training: Training) -> None:
    follow_plateau(training, "min", lambda i: 0.3 + 0.01 * i + 0.003 * math.sin(i))


def plateau_of_a_rounded_loss(training: Training) -> None:
    follow_plateau(training, "min", lambda i: round(0.3 + 0.013 * i, 3))


def plateau_of_a_rising_accuracy(training: Training) -> None:
    follow_plateau(training, "max", lambda i: min(80, 20 + 9 * i) / 97)


def plateau_of_an_error_rate(training: Training) -> None:
    follow_plateau(training, "min", lambda i: max(9, 80 - 9 * i) / 97)


def plateau_of_an_accuracy_that_falls(training: Training) -> None:
    follow_plateau(training, "max", lambda i: max(9, 80 - 9 * i) / 97)


def plateau_of_rewards(training: Training) -> None:
    follow_plateau(training, "max", lambda i: 20 + 15 * math.sin(i))


HEALTHY = (
    one_cycle_at_each_batch,
    cosine_at_each_epoch,
    cosine_in_micro_batches,
    cosine_that_comes_back,
    warm_restarts,
    lambda_at_each_epoch,
    linear_at_each_epoch,
    linear_at_each_batch,
    inverse_square_root,
    stopped_early,
    short_warm_up_then_cosine,
    warm_up_alone,
    chained,
    averaging,
    two_optimizers,
    skipped_first_steps,
    stepped_for_all_processes,
    plateau_of_a_falling_loss,
    plateau_of_a_loss_that_overfits,
    plateau_of_a_rounded_loss,
    plateau_of_a_rising_accuracy,
    plateau_of_an_error_rate,
    plateau_of_an_accuracy_that_falls,
    plateau_of_rewards,
)


@pytest.mark.parametrize("loop", HEALTHY, ids=lambda loop: loop.__name__)
def test_accuses_nobody(loop: Loop, run_dir: Path) -> None:
    assert not judged(loop, run_dir)
    assert not tdbg.rules.check(run_dir, rules=[ResumptionMisuse()]).findings


# ---- resumption ---------------------------------------------------------------------


def checkpoint() -> dict[str, Any]:
    """A training of half the epochs."""
    training = Training()
    cosine(EPOCHS)(training)
    training.per_epoch(EPOCHS // 2)
    return {
        name: copy.deepcopy(getattr(training, name).state_dict())
        for name in ("model", "optimizer", "schedule")
    }


def cosine_of_epochs(training: Training) -> None:
    cosine(EPOCHS)(training)


def resuming(*names: str, make: Loop = cosine_of_epochs, sgd: float = -1.0) -> Loop:
    def loop(training: Training) -> None:
        if sgd >= 0:
            parameters = training.model.parameters()
            training.optimizer = optim.SGD(parameters, 0.01, momentum=sgd)
        make(training)
        saved = checkpoint()
        for name in names:
            getattr(training, name).load_state_dict(saved[name])
        training.per_epoch(EPOCHS // 2)

    return loop


def forwarded(training: Training) -> None:
    cosine(EPOCHS)(training)
    training.model.load_state_dict(checkpoint()["model"])
    with stepping_first():
        for _ in range(EPOCHS // 2):
            training.schedule.step()
    training.per_epoch(EPOCHS // 2)


@pytest.mark.parametrize(
    ("loop", "part"),
    [
        (resuming("model", "schedule"), "is at step 4, while the optimizer has no"),
        (resuming("model", "schedule", sgd=0.9), "optimizer (SGD) begins anew"),
        (forwarded, "its optimizer (Adam) begins anew"),
        (
            resuming("model", "optimizer"),
            "its schedule (CosineAnnealingLR) begins anew",
        ),
    ],
)
def test_says_what_begins_anew(loop: Loop, part: str, run_dir: Path) -> None:
    found = judged(loop, run_dir, ResumptionMisuse())
    # An info may say that a variable has a state that the optimizer did not get.
    (finding,) = (each for each in found if each.severity is not Severity.INFO)
    assert finding.severity is Severity.WARNING
    assert part in finding.message


def new_schedule(training: Training) -> None:
    for group in training.optimizer.param_groups:
        group["lr"] = 0.001
    cosine(EPOCHS)(training)


@pytest.mark.parametrize(
    "loop",
    [
        resuming("model", "optimizer", "schedule"),
        resuming("model"),
        resuming("model", "schedule", sgd=0.0),
        resuming(make=new_schedule),
    ],
    ids=["resumed", "fine-tuned", "no state", "from the start"],
)
def test_accuses_no_resumption(loop: Loop, run_dir: Path) -> None:
    found = judged(loop, run_dir, ResumptionMisuse())
    assert all(each.severity is Severity.INFO for each in found)


def test_a_new_schedule_of_an_old_optimizer_is_meant(run_dir: Path) -> None:
    def loop(training: Training) -> None:
        training.optimizer.load_state_dict(checkpoint()["optimizer"])
        new_schedule(training)
        training.per_epoch()

    assert not judged(loop, run_dir, ResumptionMisuse())


# ---- what is left alone -------------------------------------------------------------


def test_schedules_are_what_they_were(run_dir: Path) -> None:
    original = vars(lr_scheduler.ReduceLROnPlateau)["_is_better"]
    training = Training()
    plateau = lr_scheduler.ReduceLROnPlateau(training.optimizer, patience=1)
    before = set(vars(plateau))
    with td.watch(training.model, out=run_dir):
        for i, batch in enumerate(training.batches(1)):
            training.step(batch)
            plateau.step(1.0 + i)
        assert set(vars(plateau)) == before
        assert set(plateau.state_dict()) == before - {"optimizer"}
        assert copy.deepcopy(plateau).best == 1.0
        assert b"is_better" not in pickle.dumps(plateau)
        assert vars(lr_scheduler.ReduceLROnPlateau)["_is_better"] is not original
    assert vars(lr_scheduler.ReduceLROnPlateau)["_is_better"] is original
    assert training.optimizer.param_groups[0]["lr"] < 0.01


def test_a_wrong_order_is_warned_of(run_dir: Path) -> None:
    training = Training()
    cosine(EPOCHS)(training)
    with (
        td.watch(training.model, out=run_dir),
        stepping_first(),
    ):
        training.schedule.step()
        training.per_epoch(1)


# ---- tools --------------------------------------------------------------------------


def judged(loop: Loop, run_dir: Path, rule: Any = None) -> tuple[Finding, ...]:
    training = Training()
    rules = [rule or ScheduleMisuse()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        hook.register_module(training.model)
        loop(training)
        assert hook.counters()["internal_errors"] == 0
    return tuple(tdbg.rules.check(run_dir, rules=rules).findings)
