"""ClippingMisuse, on real trainings: where they clip, and what they give to it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import tdbg
import tdbg.pytorch as td
from tdbg.rules import ClippingMisuse
from tdbg.run.findings import Finding, Severity
from torch_helpers import digits

N_STEPS = 12


class Training:
    """A classifier of digits; what differs is how its gradients are clipped."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05)
        self.criterion = nn.CrossEntropyLoss()
        self.batches = digits(16)

    def loss(self) -> torch.Tensor:
        inputs, labels = next(self.batches)
        loss: torch.Tensor = self.criterion(self.model(inputs), labels)
        return loss


Loop = Callable[[Training], None]
Clip = Callable[[Training], object]


def norm(training: Training) -> None:
    clip_grad_norm_(training.model.parameters(), 0.5)


def trainable(training: Training) -> None:
    known = training.model.parameters()
    nn.utils.clip_grad_norm_(filter(lambda each: each.requires_grad, known), 0.5)


def nothing(_: Training) -> None:
    pass


def steps(
    *, first: Clip = nothing, middle: Clip = nothing, last: Clip = nothing
) -> Loop:
    """Clip before the backward pass, after it, or after the update."""

    def loop(training: Training) -> None:
        for _ in range(N_STEPS):
            training.optimizer.zero_grad()
            first(training)
            training.loss().backward()
            middle(training)
            training.optimizer.step()
            last(training)

    return loop


def used_up(training: Training) -> None:
    parameters = training.model.parameters()
    training.optimizer = torch.optim.SGD(parameters, 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        steps(middle=lambda _: clip_grad_norm_(parameters, 0.5))(training)


def used_up_by_the_first_call(training: Training) -> None:
    known = training.model.parameters()
    parameters = filter(lambda each: each.requires_grad, known)
    steps(middle=lambda _: clip_grad_norm_(parameters, 0.5))(training)


def values(training: Training) -> None:
    clip_grad_value_(training.model.parameters(), clip_value=0.5)


def scaled(clip: Callable[[Training, torch.amp.GradScaler], None]) -> Loop:
    def loop(training: Training) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
        for _ in range(N_STEPS):
            training.optimizer.zero_grad()
            scaler.scale(training.loss()).backward()
            clip(training, scaler)
            scaler.step(training.optimizer)
            scaler.update()

    return loop


def unscaled(training: Training, scaler: torch.amp.GradScaler) -> None:
    scaler.unscale_(training.optimizer)
    norm(training)


def times_the_scale(training: Training, scaler: torch.amp.GradScaler) -> None:
    limit = 0.5 * scaler.get_scale()
    clip_grad_norm_(training.model.parameters(), limit)


def a_scaler_that_is_off(training: Training) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(N_STEPS):
        training.optimizer.zero_grad()
        scaler.scale(training.loss()).backward()
        norm(training)
        scaler.step(training.optimizer)
        scaler.update()


def accumulating(training: Training) -> None:
    for i in range(3 * N_STEPS):
        (training.loss() / 3).backward()
        norm(training)
        if i % 3 == 2:
            training.optimizer.step()
            training.optimizer.zero_grad()


def in_a_closure(training: Training) -> None:
    optimizer = torch.optim.LBFGS(training.model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = training.loss()
        loss.backward()
        norm(training)
        return loss

    for _ in range(N_STEPS):
        optimizer.step(closure)


def adversaries(training: Training) -> None:
    """Each has its own optimizer; the other's gradients are left behind."""
    critic = nn.Linear(10, 1)
    critics = torch.optim.SGD(critic.parameters(), 0.05)
    for _ in range(N_STEPS):
        inputs, _ = next(training.batches)
        training.optimizer.zero_grad()
        critic(training.model(inputs)).mean().backward()
        norm(training)
        training.optimizer.step()
        critics.zero_grad()
        (-critic(training.model(inputs).detach())).mean().backward()
        clip_grad_norm_(critic.parameters(), 0.5)
        critics.step()


def all_parameters_of_two_optimizers(training: Training) -> None:
    head, trunk = training.model[2], training.model[0]
    optimizers = [torch.optim.SGD(each.parameters(), 0.05) for each in (head, trunk)]
    for _ in range(N_STEPS):
        training.model.zero_grad()
        training.loss().backward()
        norm(training)
        for each in optimizers:
            each.step()


def with_a_frozen_part(training: Training) -> None:
    """Frozen parameters are given to clipping, too, by themselves."""
    training.model[0].requires_grad_(False)

    def both(training: Training) -> None:
        clip_grad_norm_(training.model[0].parameters(), 0.5)
        trainable(training)

    steps(middle=both)(training)


def another_model(*, is_trained: bool) -> Loop:
    """Clip the gradients of a copy, which another optimizer may have."""

    def loop(training: Training) -> None:
        target = copy.deepcopy(training.model)
        if is_trained:
            other = torch.optim.SGD(target.parameters(), 0.05)
            assert other.param_groups
        steps(middle=lambda _: clip_grad_norm_(target.parameters(), 0.5))(training)

    return loop


def measured(training: Training) -> None:
    every = list(training.model.parameters())
    steps(middle=norm, last=lambda _: clip_grad_norm_(every, float("inf")))(training)


def measured_without_a_limit(training: Training) -> None:
    every = list(training.model.parameters())
    steps(last=lambda _: clip_grad_norm_(every, 1e9))(training)


def judged(run_dir: Path, loop: Loop) -> list[Finding]:
    training = Training()
    with td.Hook(run_dir, rules=[ClippingMisuse()], min_free_bytes=0) as hook:
        hook.register_module(training.model)
        hook.register_loss(training.criterion)
        loop(training)
        assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=[ClippingMisuse()]).findings)


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (used_up, "sees no parameters"),
        (used_up_by_the_first_call, "sees no parameters"),
        (steps(first=norm), "no parameter has a gradient yet"),
        (steps(last=norm), "the optimizer has already used"),
        (steps(last=values), "clip_grad_value_ clips gradients that the optimizer"),
        (scaled(lambda training, _: norm(training)), "scale of GradScaler (4,100)"),
        (another_model(is_trained=False), "gets parameters that no optimizer has"),
    ],
    ids=["used up", "by a call", "before", "after", "values", "scaled", "another"],
)
def test_clipping_that_does_not_do_what_is_meant(
    run_dir: Path, loop: Loop, said: str
) -> None:
    (finding,) = judged(run_dir, loop)
    assert finding.severity is Severity.WARNING
    assert finding.step < 6
    assert said in finding.message
    assert "parameters()" in finding.advice or "after" in finding.advice


@pytest.mark.parametrize(
    "loop",
    [
        steps(),
        steps(middle=norm),
        steps(middle=trainable),
        steps(middle=values),
        steps(first=norm, middle=norm),
        steps(middle=norm, last=norm),
        scaled(unscaled),
        scaled(times_the_scale),
        a_scaler_that_is_off,
        accumulating,
        in_a_closure,
        adversaries,
        all_parameters_of_two_optimizers,
        with_a_frozen_part,
        measured,
        measured_without_a_limit,
        another_model(is_trained=True),
    ],
    ids=[
        "none", "norm", "filter", "values", "before, too", "after, too", "unscaled",
        "times the scale", "no scaler", "accumulated", "closure", "adversaries",
        "two optimizers", "frozen", "measured", "measured only",
        "another optimizer",
    ],
)  # fmt: skip
def test_clipping_as_it_should_be(run_dir: Path, loop: Loop) -> None:
    assert judged(run_dir, loop) == []


def test_a_generator_is_clipped_although_it_was_read(run_dir: Path) -> None:
    """It can be read once, and who looks at it must not be the one that does."""
    training = Training()
    with td.Hook(run_dir, min_free_bytes=0) as hook:
        hook.register_module(training.model)
        training.loss().backward()
        norm(training)
        gradients = [each.grad for each in training.model.parameters()]
        total = torch.cat([each.flatten() for each in gradients if each is not None])
        assert float(total.norm()) <= 0.5001
        empty = (each for each in list[torch.Tensor]())
        with pytest.warns(UserWarning, match="empty generator") as warned:
            clip_grad_norm_(empty, 0.5)
    assert {each.filename for each in warned} == {__file__}


def test_pytorch_has_its_own_code_back(run_dir: Path) -> None:
    def codes() -> list[object]:
        functions: list[Any] = [clip_grad_norm_, clip_grad_value_]
        return [each.__closure__[0].cell_contents for each in functions]

    before, training = codes(), Training()
    with td.Hook(run_dir, min_free_bytes=0) as hook:
        hook.register_module(training.model)
        assert not set(codes()) & set(before)
    assert codes() == before
