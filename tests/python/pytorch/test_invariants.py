"""``hook.invariant``: conditions of the author's are checked, and break nothing."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tdbg import rules
from tdbg.capture import invariants
from tdbg.errors import ConfigurationError
from tdbg.pytorch import Hook
from tdbg.rules import Finding, Severity
from tdbg.run.observations import Fault
from tdbg.trial import create_trial


def train(
    run: Path,
    *conditions: Any,
    steps: int = 10,
    before: Callable[[int], None] | None = None,
    **options: Any,
) -> list[Finding]:
    """Train with these conditions; return what is found of them."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Hook(run, min_free_bytes=0) as hook:
        hook.register_module(model)
        criterion = hook.register_loss(torch.nn.MSELoss())
        for number, condition in enumerate(conditions):
            hook.invariant(f"condition {number}", condition, **options)
        for step in range(steps):
            if before is not None:
                before(step)
            criterion(model(torch.ones(4, 2)), torch.ones(4, 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return list(rules.check(run, ["BrokenInvariant"]).findings)


class Present:
    """The step of the training, for conditions."""

    def __init__(self) -> None:
        self.step = -1

    def set(self, step: int) -> None:
        self.step = step


@pytest.fixture(autouse=True)
def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check at every observed step, whatever it costs."""
    monkeypatch.setattr(invariants, "SHARE", 1.0)


def test_a_condition_that_breaks_is_an_error_with_step_and_message(run_dir: Path):
    now = Present()
    (finding,) = train(run_dir, lambda: (now.step < 4, "It is 4."), before=now.set)
    assert (finding.tensor, finding.severity) == ("condition 0", Severity.ERROR)
    assert finding.step >= 4
    assert finding.message == "This invariant of yours does not hold. It is 4."


def test_a_condition_is_checked_where_the_first_step_begins(run_dir: Path):
    (finding,) = train(run_dir, lambda: False)
    assert finding.first_step == 0


@pytest.mark.parametrize(
    "holds",
    [True, np.True_, torch.tensor(True), None, 0, 0.0, np.float32(0), (True, "x")],
)
def test_what_holds(holds: object, run_dir: Path):
    assert not train(run_dir, lambda: holds, steps=2)


@pytest.mark.parametrize(
    "broken",
    [False, np.False_, torch.tensor(False), 1, -0.5, float("nan"), torch.tensor(2.0)],
)
def test_what_does_not_hold(broken: object, run_dir: Path):
    (finding,) = train(run_dir, lambda: broken, steps=2)
    assert finding.severity is Severity.ERROR


def test_a_number_may_be_within_its_tolerance(run_dir: Path):
    (finding,) = train(run_dir, lambda: -0.1, lambda: 0.3, steps=2, tolerance=0.2)
    assert finding.tensor == "condition 1"
    assert "It is 0.3, more than 0.2 from zero." in finding.message


def test_an_assertion_in_the_condition_breaks_it_with_its_message(run_dir: Path):
    def condition() -> None:
        msg = "they differ"
        raise AssertionError(msg)

    (finding,) = train(run_dir, condition)
    assert finding.message.endswith("does not hold. they differ")


def test_what_a_condition_raises_is_an_info_and_the_training_continues(run_dir: Path):
    calls = []

    def condition() -> bool:
        calls.append(1)
        msg = "no such tensor"
        raise RuntimeError(msg)

    (finding,) = train(run_dir, condition, steps=20)
    assert finding.severity is Severity.INFO
    assert "could not be checked: RuntimeError: no such tensor" in finding.message
    assert len(calls) == invariants.MOST_FAILURES
    assert create_trial(run_dir).count_steps() == 20


def test_a_condition_that_fails_at_first_is_checked_later(run_dir: Path):
    answers = [RuntimeError(), RuntimeError(), True, RuntimeError(), True, True]

    def condition() -> bool:
        answer = answers.pop(0) if answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert not train(run_dir, condition)


def test_a_broken_condition_is_told_once_and_called_no_more(run_dir: Path):
    calls = []
    (finding,) = train(run_dir, lambda: calls.append(1) or False)
    assert len(calls) == 1
    observations = create_trial(run_dir).observations()
    broken = [each for each in observations if each.fault is not Fault.PROBED]
    assert [each.names for each in broken] == [("condition 0",)]
    assert finding.phase != "end"


def test_what_the_last_step_has_broken_is_found(run_dir: Path):
    # Broken after the last step has begun: only the end of the run shows it.
    now = Present()
    with Hook(run_dir, min_free_bytes=0) as hook:
        model = torch.nn.Linear(2, 1)
        hook.register_module(model)
        criterion = hook.register_loss(torch.nn.MSELoss())
        hook.invariant("late", lambda: now.step < 0)
        for _ in range(3):
            criterion(model(torch.ones(4, 2)), torch.ones(4, 1)).backward()
        now.set(0)
    (finding,) = rules.check(run_dir, ["BrokenInvariant"]).findings
    assert (finding.tensor, finding.step) == ("late", 2)


def test_between_two_checks_are_as_many_steps_as_asked(run_dir: Path):
    now, seen = Present(), []
    train(run_dir, lambda: seen.append(now.step), before=now.set, steps=12, every=5)
    *in_steps, _ = seen  # The last one is at the end of the run.
    assert in_steps[0] == 0
    assert all(after - before >= 5 for before, after in itertools.pairwise(in_steps))


def test_conditions_that_cost_too_much_are_checked_less_often(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    calls = []
    monkeypatch.setattr(invariants, "SHARE", 1e-12)  # The next one is due in an age.
    train(run_dir, lambda: calls.append(1), steps=10)
    assert len(calls) == 2  # At the first step, and at the end.


def test_no_gradient_is_recorded_of_what_a_condition_computes(run_dir: Path):
    weight = torch.ones(2, requires_grad=True)
    assert not train(run_dir, lambda: not (weight * 2).requires_grad)


def test_a_closed_hook_keeps_no_condition_and_calls_none(run_dir: Path):
    held = torch.nn.Linear(2, 1)
    alive = weakref.ref(held)
    hook = Hook(run_dir, min_free_bytes=0)
    hook.invariant("held", lambda module=held: module is not None)
    del held
    hook.close()
    gc.collect()
    assert alive() is None
    hook.invariant("later", lambda: False)  # Does nothing, and does not raise.


def test_a_disabled_hook_checks_nothing(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TDBG_DISABLED", "1")
    calls = []
    with Hook(run_dir) as hook:
        hook.invariant("never", lambda: calls.append(1))
    assert not calls


@pytest.mark.parametrize(
    ("name", "condition", "options", "message"),
    [
        ("", bool, {}, "an invariant has a name, not ''"),
        (3, bool, {}, "an invariant has a name, not 3"),
        ("x", True, {}, "the condition of 'x' is True, which cannot be called"),
        ("x", bool, {"tolerance": -1}, "the tolerance of 'x' is -1"),
        ("x", bool, {"tolerance": "1"}, "the tolerance of 'x' is '1'"),
        ("x", bool, {"every": 0}, "every of 'x' is 0"),
        ("taken", bool, {}, "there is an invariant 'taken' already"),
    ],
)
def test_what_can_never_be_checked_is_refused(
    name: Any, condition: Any, options: dict[str, Any], message: str, run_dir: Path
):
    with Hook(run_dir, min_free_bytes=0) as hook:
        hook.invariant("taken", lambda: True)
        with pytest.raises(ConfigurationError) as refused:
            hook.invariant(name, condition, **options)
        assert message in str(refused.value)


def test_a_run_without_conditions_has_nothing_to_say(run_dir: Path):
    assert not train(run_dir)
