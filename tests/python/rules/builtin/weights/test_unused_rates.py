"""ScheduleMisuse, on trainings whose schedules or rates have no effect, or too much."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

import tdbg
import tdbg.pytorch as td
from tdbg.hooks.pytorch.checks.updates.schedule_faults import (
    Followed,
    Look,
    late_faults,
)
from tdbg.rules import ScheduleMisuse
from tdbg.run.findings import Finding, Severity
from tdbg.run.observations import Fault

EPOCHS, BATCHES = 6, 12
N_STEPS = EPOCHS * BATCHES
RATE = 0.01


class Training:
    """A classifier of places, trained in epochs of a loader."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
        inputs = torch.randn(BATCHES * 8, 4)
        data = TensorDataset(inputs, inputs.argmax(1))
        self.loader = DataLoader(data, batch_size=8, shuffle=True)
        self.optimizer = optim.SGD(self.model.parameters(), RATE)
        # Schedules that live until the hook is closed.
        self.alive: list[Any] = []

    def run(
        self,
        *,
        after: Callable[[int, float], None] | None = None,
        at_epoch: Callable[[int], None] | None = None,
    ) -> None:
        """Call functions with numbers after each step, and before each epoch."""
        step = 0
        for epoch in range(EPOCHS):
            if at_epoch is not None:
                at_epoch(epoch)
            for inputs, labels in self.loader:
                self.optimizer.zero_grad()
                loss = functional.cross_entropy(self.model(inputs), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                step += 1
                if after is not None:
                    after(step, float(loss.detach()))


Loop = Callable[[Training], None]
Make = Callable[[optim.Optimizer], Any]


def judged(loop: Loop, run_dir: Path, *, drops: bool = False) -> list[Finding]:
    """Train, and perhaps drop everything before the hook is closed."""
    training = Training()
    rules = [ScheduleMisuse()]
    if drops:
        save = td.SaveConfig(statistics_interval=5)
        hook = td.watch(training.model, out=run_dir, save_config=save, budget="off")
    else:
        hook = td.Hook(run_dir, rules=rules, min_free_bytes=0)
        hook.register_module(training.model)
    with hook:
        loop(training)
        if drops:
            del training
            gc.collect()
        assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=rules).findings)


def never(make: Make) -> Loop:
    def loop(training: Training) -> None:
        training.alive.append(make(training.optimizer))
        training.run()

    return loop


def per_batch(make: Make, times: int = 1) -> Loop:
    def loop(training: Training) -> None:
        schedule = make(training.optimizer)

        def after(_step: int, _loss: float) -> None:
            for _ in range(times):
                schedule.step()

        training.run(after=after)

    return loop


def per_epoch(make: Make) -> Loop:
    def loop(training: Training) -> None:
        schedule = make(training.optimizer)
        training.alive.append(schedule)
        training.run(at_epoch=lambda epoch: schedule.step() if epoch else None)
        schedule.step()

    return loop


def made_in_each_epoch(make: Make) -> Loop:
    def loop(training: Training) -> None:
        def begin(_: int) -> None:
            for group in training.optimizer.param_groups:
                group["lr"] = RATE
            training.alive[:] = [make(training.optimizer)]

        training.run(at_epoch=begin, after=lambda *_: training.alive[0].step())

    return loop


def with_losses(patience: int) -> Loop:
    def loop(training: Training) -> None:
        schedule = lr_scheduler.ReduceLROnPlateau(training.optimizer, patience=patience)
        training.run(after=lambda _, loss: schedule.step(loss))

    return loop


def with_epochs(number: Callable[[int], float], mode: str = "min") -> Loop:
    """Give a plateau a number once an epoch."""

    def loop(training: Training) -> None:
        schedule = lr_scheduler.ReduceLROnPlateau(training.optimizer, mode)
        training.alive.append(schedule)
        training.run(at_epoch=lambda epoch: schedule.step(number(epoch)))

    return loop


def of_state(*, is_loaded: bool) -> Loop:
    """Set the rate in a copy."""

    def loop(training: Training) -> None:
        def set_rate(epoch: int) -> None:
            state = training.optimizer.state_dict()
            for group in state["param_groups"]:
                group["lr"] = RATE * 0.5**epoch
            if is_loaded:
                training.optimizer.load_state_dict(state)

        training.run(at_epoch=set_rate)
        training.run(at_epoch=set_rate)

    return loop


def variable(*, is_set: bool, begins: float = RATE) -> Loop:
    def loop(training: Training) -> None:
        lr = begins
        for _ in range(5):
            training.run()
            lr *= 0.5
            for group in training.optimizer.param_groups if is_set else ():
                group["lr"] = lr

    return loop


def of_another(training: Training) -> None:
    """The variable is the rate of another optimizer, which does not train the model."""
    lr = RATE
    other = optim.SGD(nn.Linear(2, 2).parameters(), lr)
    for _ in range(5):
        training.run()
        lr *= 0.5
        other.param_groups[0]["lr"] = lr


def restarts(first: int, *, in_epochs: bool = False, times: int = 1) -> Loop:
    def loop(training: Training) -> None:
        schedule = lr_scheduler.CosineAnnealingWarmRestarts(
            training.optimizer, first, times
        )
        training.alive.append(schedule)

        def after(step: int, _: float) -> None:
            if in_epochs:
                schedule.step(step / BATCHES)  # type: ignore[arg-type]
            else:
                schedule.step()

        training.run(after=after)

    return loop


def sets(where: str) -> Loop:
    def loop(training: Training) -> None:
        def set_rate(step: int, _: float) -> None:
            optimizer: Any = training.optimizer
            group = optimizer.param_groups[0]
            holders = {
                "lr": (vars(optimizer), "lr"),
                "defaults": (optimizer.defaults, "lr"),
                "key": (group, "learning_rate"),
                "both": (group, "lr"),
            }
            holder, key = holders[where]
            holder[key] = RATE * 0.97**step
            if where == "both":
                optimizer.lr = RATE * 0.97**step

        training.run(after=set_rate)

    return loop


def lambdas(function: Callable[[int], float]) -> Make:
    return functools.partial(lr_scheduler.LambdaLR, lr_lambda=function)


def steps(size: int) -> Make:
    return functools.partial(lr_scheduler.StepLR, step_size=size)


def milestones(*found: int) -> Make:
    return functools.partial(lr_scheduler.MultiStepLR, milestones=[*found])


def cosine(length: int) -> Make:
    return functools.partial(lr_scheduler.CosineAnnealingLR, T_max=length)


def one_cycle(length: int) -> Make:
    return functools.partial(
        lr_scheduler.OneCycleLR, max_lr=RATE, total_steps=length, cycle_momentum=False
    )


def linear(length: int) -> Make:
    return functools.partial(
        lr_scheduler.LinearLR, start_factor=0.1, total_iters=length
    )


def cycles(up: int) -> Make:
    return functools.partial(
        lr_scheduler.CyclicLR,
        base_lr=RATE / 10,
        max_lr=RATE,
        step_size_up=up,
        cycle_momentum=False,
    )


def rising(step: int) -> float:
    return min(1.0, (step + 1) / 20)


SICK: dict[str, tuple[Loop, str]] = {
    "never, in epochs": (never(cosine(EPOCHS)), "never been stepped: the optimizer"),
    "never, in steps": (never(steps(2)), "never been stepped"),
    "never, a warm-up": (never(linear(20)), "(LinearLR) has never been stepped"),
    "cosine in batches": (per_epoch(cosine(N_STEPS)), "counts batches, but the prog"),
    "one cycle in batches": (
        per_epoch(one_cycle(N_STEPS + 1)),
        "(OneCycleLR) counts batches, but the prog",
    ),
    "milestones in batches": (
        per_epoch(milestones(3 * BATCHES, 5 * BATCHES)),
        "what it does at step 36 (epoch 3 of 6",
    ),
    "steps in batches": (per_epoch(steps(2 * BATCHES + 4 * BATCHES)), "at step 72"),
    "milestones in epochs": (per_batch(milestones(2, 4)), "counts epochs, but the"),
    "steps in epochs": (per_batch(steps(3)), "rate after 3 steps, within the first"),
    "twice": (per_batch(cosine(N_STEPS), 2), "ended too early: it is 72 steps long"),
    "again": (made_in_each_epoch(cosine(N_STEPS)), "again and again: at least 4"),
    "plateau": (with_losses(1), "gets a metric at each step"),
    "attribute": (sets("lr"), "has changed optimizer.lr from 0.00"),
    "defaults": (sets("defaults"), 'has changed optimizer.defaults["lr"]'),
    "key": (sets("key"), 'has changed group["learning_rate"]'),
    "epochs": (with_epochs(lambda epoch: epoch), "metric: 1 to 5 in 5 calls. So it n"),
    "epochs from one": (with_epochs(lambda epoch: epoch + 1), "its metric: 2 to 6 in"),
    "epochs upwards": (
        with_epochs(lambda epoch: epoch, "max"),
        "always finds a larger one, and never lowers",
    ),
    "state": (of_state(is_loaded=False), 'optimizer.state_dict()["param_groups"] from'),
    "variable": (variable(is_set=False), "the program has changed lr from 0.01 to"),
    "cycles": (per_epoch(cycles(2 * BATCHES)), "it does at step 24 (epoch 2 of 6"),
    "factor": (
        per_batch(lambdas(lambda step: RATE * rising(step))),
        "largest value is 0.01, and LambdaLR multiplies the first rate, 0.01",
    ),
}


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("name", SICK)
def test_says_what_has_no_effect_or_too_much(
    name: str, drops: bool, run_dir: Path
) -> None:
    loop, said = SICK[name]
    (finding,) = judged(loop, run_dir, drops=drops)
    assert finding.severity is Severity.WARNING
    assert said in finding.message
    assert finding.advice


@pytest.mark.parametrize(
    "make", [cosine(EPOCHS), cosine(N_STEPS), steps(3), milestones(3 * BATCHES)]
)
def test_a_schedule_that_was_seen_once_shows_nothing(make: Make) -> None:
    """One look cannot tell a step each epoch from a step each batch."""
    schedule = make(Training().optimizer)
    seen = Followed(schedule, Look(0, 1, 1))
    seen.n_batches = BATCHES
    assert list(late_faults(seen, N_STEPS, N_STEPS, 1)) == []


def test_the_first_milestone_is_named_in_whatever_order_they_are_given() -> None:
    schedule = milestones(5 * BATCHES, 3 * BATCHES)(Training().optimizer)
    seen = Followed(schedule, Look(0, 1, 1))
    seen.see(Look(EPOCHS, N_STEPS, N_STEPS))
    seen.n_batches = BATCHES
    ((fault, numbers),) = late_faults(seen, N_STEPS, N_STEPS, 1)
    assert (fault, numbers["at"]) == (Fault.SCHEDULE_IN_BATCHES, 3 * BATCHES)


def test_notes_schedules_of_unknown_length_that_are_made_again(run_dir: Path) -> None:
    (finding,) = judged(made_in_each_epoch(lambdas(rising)), run_dir)
    assert finding.severity is Severity.INFO
    assert "again and again" in finding.message


def two_phases(training: Training) -> None:
    training.alive.append(cosine(N_STEPS)(training.optimizer))
    training.run(after=lambda *_: training.alive[0].step())
    training.alive[:] = [cosine(N_STEPS)(training.optimizer)]
    training.run(after=lambda *_: training.alive[0].step())


def by_hand_beside_a_schedule(training: Training) -> None:
    """The program sets the rate itself, and leaves the schedule alone."""
    training.alive.append(cosine(EPOCHS)(training.optimizer))

    def set_rate(epoch: int) -> None:
        training.optimizer.param_groups[0]["lr"] = RATE * 0.9**epoch

    training.run(at_epoch=set_rate)


class Scaled(optim.SGD):
    """An optimizer that reads a number of its own."""

    lr = 1.0


def own_optimizer(training: Training) -> None:
    optimizer = training.optimizer = Scaled(training.model.parameters(), RATE)

    def set_rate(step: int, _: float) -> None:
        optimizer.lr = 0.9**step

    training.run(after=set_rate)


def later_children(training: Training) -> None:
    first, second = linear(1000)(training.optimizer), cosine(9)(training.optimizer)
    schedule = lr_scheduler.SequentialLR(training.optimizer, [first, second], [1000])
    training.run(after=lambda *_: schedule.step())


HEALTHY: dict[str, Loop] = {
    "cosine in epochs": per_epoch(cosine(EPOCHS)),
    "milestones in epochs": per_epoch(milestones(2, 4)),
    "milestones in batches": per_batch(milestones(3 * BATCHES, 5 * BATCHES)),
    "milestones after the end": per_epoch(milestones(30, 60)),
    "steps of batches": per_batch(steps(BATCHES)),
    "many steps of batches": per_batch(steps(20)),
    "exponential": per_batch(functools.partial(lr_scheduler.ExponentialLR, gamma=0.99)),
    "restarts by hand": made_in_each_epoch(cosine(BATCHES)),
    "phases": two_phases,
    "patient plateau": with_losses(2 * BATCHES),
    "the rate itself": sets("both"),
    "by hand": by_hand_beside_a_schedule,
    "own optimizer": own_optimizer,
    "factors": per_batch(lambdas(rising)),
    "small factors": per_batch(lambdas(lambda step: 0.5 * rising(step))),
    "children": later_children,
    "counted": with_epochs(lambda epoch: 2 * epoch),
    "losses that are whole": with_epochs(lambda epoch: 6 - epoch),
    "state that is loaded": of_state(is_loaded=True),
    "variable that is set": variable(is_set=True),
    "another variable": variable(is_set=False, begins=3 * RATE),
    "variable of another": of_another,
    "cycles": per_batch(cycles(2 * BATCHES)),
    "cycles of epochs": per_epoch(cycles(2)),
    "restarts": restarts(4),
    "restarts in batches": restarts(2 * BATCHES),
    "restarts in epochs": restarts(2, in_epochs=True),
    "restarts that grow": restarts(3, times=2),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_accuses_nobody(name: str, run_dir: Path) -> None:
    found = judged(HEALTHY[name], run_dir)
    assert [each for each in found if each.severity > Severity.INFO] == []


# ---- rates that rise -----------------------------------------------------------------


class ByHand:
    """Sets the rate itself."""

    def __init__(self, optimizer: optim.Optimizer, rate: Callable[[int], float]):
        self.optimizer = optimizer
        self.rate = rate
        self.n = 0
        self.step()

    def step(self) -> None:
        self.n += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.n)


@pytest.mark.parametrize(
    "make",
    [
        lambda of: lr_scheduler.LambdaLR(of, lambda step: min(1.0, (step + 1) / 900)),
        lambda of: lr_scheduler.LinearLR(of, 0.01, total_iters=900),
        lambda of: ByHand(of, lambda n: 0.01 * min(1.0, n / 900)),
    ],
)
def test_a_warm_up_by_the_rate_itself(run_dir: Path, make: Callable[..., Any]) -> None:
    def loop(training: Training) -> None:
        schedule = make(training.optimizer)
        for _ in range(2):
            training.run(after=lambda *_: schedule.step())

    (finding,) = judged(loop, run_dir)
    assert finding.severity is Severity.WARNING
    assert "was not over at the end of the training: the rate rose" in finding.message
    assert "of the optimizer's rate (0.01)" in finding.message


@pytest.mark.parametrize(
    "make",
    [
        lambda of: ByHand(of, lambda n: 1e-6 * 1.06**n),  # A search for a good rate.
        lambda of: ByHand(of, lambda n: 0.01 * min(1.0, n / 30)),
        lambda of: lr_scheduler.OneCycleLR(of, 0.01, total_steps=1000),
        lambda of: lr_scheduler.CyclicLR(of, 0.001, 0.1, 500, cycle_momentum=False),
    ],
)
def test_rates_that_rise_on_purpose(run_dir: Path, make: Callable[..., Any]) -> None:
    def loop(training: Training) -> None:
        schedule = make(training.optimizer)
        for _ in range(2):
            training.run(after=lambda *_: schedule.step())

    assert not judged(loop, run_dir)


def test_a_trial_of_a_long_recipe_is_no_more_than_noted(run_dir: Path) -> None:
    def loop(training: Training) -> None:
        schedule = ByHand(training.optimizer, lambda n: 0.01 * min(1.0, n / 300))
        for _ in range(2):
            training.run(after=lambda *_: schedule.step())

    (finding,) = judged(loop, run_dir)
    assert finding.severity is Severity.INFO
