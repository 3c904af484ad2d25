"""Which findings reach an action: each decision of the gate, and each default."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actions_helpers import Failing, Remembering, finding
from tdbg import actions
from tdbg.actions import ActionSpec
from tdbg.actions.delivery import Background, Gate
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.run.findings import Cause, Finding, Severity

# A module that apprise imports has a successor from Python 3.13 on.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")


# ---- the gate --------------------------------------------------------------------


def test_episodes_are_those_of_a_rule_a_tensor_and_a_mode():
    """Sabotaged: each part of the key left out holds one of these back."""
    action = Remembering()
    gate = Gate(action)
    several = [
        finding("a"),
        finding("b"),
        finding("a", rule="Overfit"),
        replace(finding("a"), mode=ModeKeys.EVAL),
    ]
    for each in [*several, *several]:
        gate(each)
    assert action.seen == several


def test_an_action_is_taken_once_for_a_fault_and_all_that_follows_from_it():
    cause = finding("fc.weight", rule="ExplodingTensor", step=5)
    root = Cause("ExplodingTensor", "fc.weight", 5)
    following = [
        replace(finding(tensor, rule=rule, step=step), cause=root)
        for rule, tensor, step in (
            ("DeadRelu", "relu", 6),
            ("LossNotDecreasing", "loss", 9),
            ("ExplodingTensor", "out.weight", 7),
        )
    ]
    action = Remembering()
    gate = Gate(action)
    for each in (cause, *following, *following):
        gate(each)
    assert action.seen == [cause]


def test_what_is_severe_is_acted_upon_once_where_its_cause_is_not():
    root = Cause("NotNormalized", "input", 0)
    cause = finding("input", Severity.WARNING, rule="NotNormalized", step=0)
    first, second = (
        replace(finding(tensor, step=step), cause=root)
        for tensor, step in (("relu1", 4), ("relu2", 5))
    )
    action = Remembering()
    gate = Gate(action, severity=Severity.ERROR)
    for each in (cause, first, second):
        gate(each)
    assert action.seen == [first]


def test_what_shows_before_its_cause_is_acted_upon_and_so_is_the_cause():
    early = finding("relu", step=3)
    cause = finding("fc.weight", rule="ExplodingTensor", step=4)
    root = Cause("ExplodingTensor", "fc.weight", 4)
    late = replace(finding("relu2", step=5), cause=root)
    action = Remembering()
    gate = Gate(action)
    for each in (early, cause, late):
        gate(each)
    assert action.seen == [early, cause]


def test_the_end_of_one_episode_is_none_of_another():
    action = Remembering()
    gate = Gate(action)
    gate(finding("a"))
    gate(finding("b", phase="end"))
    gate(finding("a", phase="worse"))
    assert len(action.seen) == 1


def test_an_end_is_never_acted_upon():
    action = Remembering()
    gate = Gate(action)
    gate(finding(phase="end"))
    assert action.seen == []


@pytest.mark.parametrize("severity", list(Severity))
def test_a_severity_is_from_this_one_on(severity: Severity):
    action = Remembering()
    gate = Gate(action, severity=severity)
    for each in Severity:
        gate(finding(each.label, severity=each))
    assert [found.severity for found in action.seen] == [
        each for each in Severity if each >= severity
    ]


def test_a_cool_down_ends_when_its_seconds_have_passed():
    action, now = Remembering(), [100.0]
    gate = Gate(action, cool_down=60.0, clock=lambda: now[0])
    gate(finding("a"))
    now[0] = 159.9
    gate(finding("b"))
    now[0] = 160.0
    gate(finding("c"))
    assert [found.tensor for found in action.seen] == ["a", "c"]
    assert "(and 1 more of this rule since the last)" in action.seen[1].message
    # It began again with the one that was taken, and has nothing to tell any more.
    now[0] = 219.9
    gate(finding("d"))
    assert len(action.seen) == 2
    (line,) = gate.close(1.0)
    assert line.endswith("60 s: 1 of DeadRelu")


def test_what_is_held_back_is_held_back_once_an_episode():
    action = Remembering()
    gate = Gate(action, cool_down=60.0, clock=lambda: 0.0)
    gate(finding("a"))
    gate(finding("b"))
    gate(finding("b", phase="worse"))
    (line,) = gate.close(1.0)
    assert line.endswith("1 of DeadRelu")


def test_without_a_cool_down_every_episode_is_acted_upon_as_it_is():
    action = Remembering()
    gate = Gate(action, clock=lambda: 5.0)
    found = [finding(name) for name in "abc"]
    for each in found:
        gate(each)
    assert action.seen == found
    assert gate.close(1.0) == []


def test_an_action_that_failed_begins_no_cool_down():
    """Sabotaged: with the episode, or the time, kept the second is not tried."""

    class Once(Failing):
        tried: list[str]

        def __call__(self, found: Finding) -> None:
            self.tried.append(found.tensor)
            if len(self.tried) == 1:
                super().__call__(found)

    action = Once()
    action.tried = []
    gate = Gate(action, cool_down=60.0, clock=lambda: 0.0)
    with pytest.raises(ValueError, match="no"):
        gate(finding("a"))
    gate(finding("b"))
    assert action.tried == ["a", "b"]
    # This one worked: the first, which may come again, must wait now.
    gate(finding("a", phase="worse"))
    assert action.tried == ["a", "b"]
    assert len(gate.close(1.0)) == 1


def test_what_was_held_back_is_told_by_the_next_action_that_works():
    class Broken(Remembering):
        is_broken = False

        def __call__(self, found: Finding) -> None:
            if self.is_broken:
                raise ZeroDivisionError
            super().__call__(found)

    action, now = Broken(), [0.0]
    gate = Gate(action, cool_down=60.0, clock=lambda: now[0])
    gate(finding("a"))
    gate(finding("b"))
    now[0], action.is_broken = 60.0, True
    with pytest.raises(ZeroDivisionError):
        gate(finding("c"))
    action.is_broken = False
    gate(finding("d"))
    assert action.seen[-1].message.endswith("(and 1 more of this rule since the last)")
    assert gate.close(1.0) == []


class Troubled(Remembering):
    """Has something to say at its end."""

    seconds: float | None = None

    def close(self, seconds: float) -> list[str]:
        self.seconds = seconds
        return ["a trouble"]


def test_what_went_wrong_at_the_end_is_told_but_of_a_dry_run():
    action = Troubled()
    assert Gate(action).close(2.5) == ["a trouble"]
    assert action.seconds == 2.5
    # There is nothing that could have gone wrong, but what was made is closed.
    dry = Troubled()
    assert Gate(dry, dry_run=True).close(2.5) == []
    assert dry.seconds == 2.5


@pytest.mark.parametrize("once", [True, False])
def test_a_dry_run_acts_as_often_as_a_real_one(once: bool):
    gate = Gate(Remembering(), dry_run=True, once=once)
    found = [finding(name, step=step) for step, name in enumerate("ab")]
    for each in found:
        gate(each)
    assert gate.dry_findings == (found[:1] if once else found)
    assert len(gate.close(1.0)) == len(gate.dry_findings)
    assert Gate(Remembering(), dry_run=True, all_changes=True).close(1.0) == []


def test_what_one_step_brought_is_a_line_of_a_dry_run():
    gate = Gate(Remembering(), dry_run=True)
    gate(finding("a"))
    gate(finding("b"))
    gate(finding("c", step=8))
    gate(finding("d", rule="Overfit"))
    head = "action remembering would be taken"
    assert gate.close(1.0) == [
        f"{head}: DeadRelu at step 7: a and 1 more",
        f"{head}: DeadRelu at step 8: c",
        f"{head}: Overfit at step 7: d",
    ]


def test_a_dry_run_has_rules_severity_and_cool_down_too():
    gate = Gate(
        Remembering(),
        rules=frozenset({"DeadRelu"}),
        severity=Severity.ERROR,
        cool_down=60.0,
        dry_run=True,
        clock=lambda: 0.0,
    )
    for each in (
        finding("a", rule="Overfit"),
        finding("b", severity=Severity.WARNING),
        finding("c"),
        finding("d"),
    ):
        gate(each)
    assert [found.tensor for found in gate.dry_findings] == ["c"]


# ---- how each of them is taken ---------------------------------------------------

TARGETS = {
    "command": {"command": "true"},
    "webhook": {"url": "http://127.0.0.1:9/"},
    "notify": {"url": "json://127.0.0.1:9/"},
    "report": {},
    "stop": {},
}


@pytest.mark.parametrize(
    ("name", "severity", "cool_down", "is_slow", "once"),
    [
        ("command", Severity.WARNING, 60.0, True, False),
        ("webhook", Severity.WARNING, 60.0, True, False),
        ("notify", Severity.WARNING, 300.0, True, False),
        ("report", Severity.INFO, 0.0, False, False),
        ("stop", Severity.ERROR, 0.0, False, True),
    ],
)
def test_what_is_not_said_is_as_the_page_has_it(
    name: str, severity: Severity, cool_down: float, is_slow: bool, once: bool
):
    """docs/actions.md has this table.  Dry, so that nobody is told."""
    spec = ActionSpec(name=name, parameters=TARGETS[name], dry_run=True)
    gate = actions.make(spec, "runs/a")
    assert isinstance(gate, Gate)
    now = 1000.0
    gate._clock = lambda: now
    for each in Severity:
        gate(finding(each.label, severity=each, rule=each.label))
    of_severity = [each for each in Severity if each >= severity]
    assert len(gate.dry_findings) == (1 if once else len(of_severity))
    assert gate.dry_findings[0].severity is severity
    if not once:
        n = len(gate.dry_findings)
        now += cool_down - 0.1 if cool_down else 0.0
        gate(finding("more", rule="error"))
        assert len(gate.dry_findings) == n + (not cool_down)
        now += 0.2
        gate(finding("late", rule="error"))
        assert len(gate.dry_findings) == n + 1 + (not cool_down)
    real = actions.make(replace(spec, dry_run=False), "runs/a")
    assert isinstance(real, Gate)
    assert isinstance(real.action, Background) is is_slow
    assert real.close(1.0) == []


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_what_is_said_counts(name: str):
    spec = ActionSpec(
        name=name,
        parameters=TARGETS[name],
        severity=Severity.INFO,
        cool_down=5.0,
        rules=frozenset({"A"}),
        dry_run=True,
    )
    gate = actions.make(spec, "runs/a")
    assert isinstance(gate, Gate)
    now = 0.0
    gate._clock = lambda: now
    gate(finding("a", severity=Severity.INFO, rule="B"))
    gate(finding("b", severity=Severity.INFO, rule="A"))
    now = 4.9
    gate(finding("c", severity=Severity.INFO, rule="A"))
    assert [found.tensor for found in gate.dry_findings] == ["b"]
    now = 5.0
    gate(finding("d", severity=Severity.INFO, rule="A"))
    assert len(gate.dry_findings) == 1 + (name != "stop")


@pytest.mark.parametrize("cool_down", [0, 0.5, 1e9])
def test_a_cool_down_is_from_0(cool_down: float):
    assert ActionSpec(name="stop", cool_down=cool_down).cool_down == cool_down
    for wrong in (-cool_down or -1.0, float("inf"), float("nan"), True, "5"):
        with pytest.raises(ConfigurationError, match="cool_down is"):
            ActionSpec(name="stop", cool_down=wrong)  # type: ignore[arg-type]
