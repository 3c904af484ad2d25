"""Actions are chosen by name or file, and taken once an episode."""

from __future__ import annotations

import math
import sys
import threading
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from actions_helpers import Failing, Remembering, finding
from rules_fake import FakeRun
from tdbg import actions
from tdbg.actions import ActionSpec, delivery, registry
from tdbg.actions.delivery import Background, Gate
from tdbg.errors import ConfigurationError, TdbgError
from tdbg.rules import Engine, ExplodingTensor
from tdbg.run.findings import Finding, Severity

# A module that apprise imports has a successor from Python 3.13 on.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")


# ---- which findings reach an action ----------------------------------------------


def test_an_action_is_taken_once_an_episode():
    action = Remembering()
    gate = Gate(action)
    for phase in ("begin", "worse", "end", "begin"):
        gate(finding(phase=phase))
    assert [found.phase for found in action.seen] == ["begin", "begin"]


def test_it_is_taken_when_an_episode_becomes_bad_enough():
    action = Remembering()
    gate = Gate(action, severity=Severity.ERROR)
    gate(finding(severity=Severity.WARNING))
    assert action.seen == []
    gate(finding(severity=Severity.ERROR, phase="worse"))
    assert len(action.seen) == 1


def test_only_findings_of_its_rules_reach_it():
    action = Remembering()
    gate = Gate(action, rules=frozenset({"Overfit"}))
    gate(finding())
    gate(finding(rule="Overfit"))
    assert [found.rule for found in action.seen] == ["Overfit"]


def test_a_cool_down_holds_back_and_counts_by_rule():
    action, now = Remembering(), [0.0]
    gate = Gate(action, cool_down=60.0, clock=lambda: now[0])
    for i in range(5):
        gate(finding(f"{i}.weight"))
    gate(finding(rule="Overfit"))
    assert len(action.seen) == 2
    now[0] = 61.0
    gate(finding("9.weight"))
    assert action.seen[-1].message.endswith("(and 4 more of this rule since the last)")
    gate(finding("10.weight"))
    assert gate.close(1.0) == [
        "action remembering: not taken within its cool-down of 60 s: 1 of DeadRelu"
    ]


def test_metrics_hear_of_everything():
    action = Remembering()
    gate = Gate(action, severity=Severity.ERROR, cool_down=60, all_changes=True)
    for phase in ("begin", "worse", "end"):
        gate(finding(severity=Severity.INFO, phase=phase))
    assert len(action.seen) == 3


def test_an_action_that_fails_may_try_again():
    gate = Gate(Failing(), cool_down=60.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            gate(finding())


def test_a_dry_run_says_what_would_be_done(tmp_path: Path):
    file = tmp_path / "ran"
    spec = ActionSpec(
        name="command", parameters={"command": f"touch {file}"}, dry_run=True
    )
    action = actions.make(spec, "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert line == "action command would be taken: DeadRelu at step 7: fc.weight"
    assert not file.exists()


def test_a_dry_run_of_a_stop_stops_once_and_what_one_step_brought_is_a_line():
    stop = actions.make(ActionSpec(name="stop", dry_run=True), "runs/a")
    notify = Gate(Remembering(), dry_run=True)
    for name in ("a", "b", "c"):
        stop(finding(name, severity=Severity.ERROR))
        notify(finding(name))
    assert actions.close_all([stop, notify]) == [
        "action stop would be taken: DeadRelu at step 7: a",
        "action remembering would be taken: DeadRelu at step 7: a and 2 more",
    ]


def test_neither_a_dry_run_nor_a_look_whether_it_can_be_made_writes_metrics(
    tmp_path: Path,
):
    file = tmp_path / "tdbg.prom"
    spec = ActionSpec(name="prometheus", parameters={"path": str(file)}, dry_run=True)
    action = actions.make(spec, "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert line == "action prometheus would get 1 change"
    actions.make(f"prometheus:{file}", "runs/a", checks_only=True)
    assert not file.exists()
    actions.make(f"prometheus:{file}", "runs/a")
    assert file.exists()
    (tmp_path / "folder.prom").mkdir()
    with pytest.raises(ConfigurationError, match=r"folder\.prom"):
        actions.make(f"prometheus:{tmp_path / 'folder.prom'}", "runs/a")


def test_what_goes_wrong_in_ours_is_told_without_a_class():
    for kind, text in ((TdbgError, "gone"), (OSError, "OSError: gone")):

        class Bad(Remembering):
            def __call__(self, _: Finding) -> None:
                msg = "gone"
                raise kind(msg)  # noqa: B023

        slow = Background(Bad())
        slow(finding())
        assert slow.close(60.0) == [f"action remembering: {text}"]


# ---- actions that take time ------------------------------------------------------


class Held(Remembering):
    """Acts when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def __call__(self, found: Finding) -> None:
        self.go.wait()
        super().__call__(found)


def test_a_slow_action_does_not_hold_up_the_engine():
    slow = Background(Held())
    began = threading.get_ident()
    for i in range(4):
        slow(finding(f"{i}"))
    action = slow._action
    assert isinstance(action, Held)
    assert action.seen == []
    action.go.set()
    assert slow.close(60.0) == []
    assert [found.tensor for found in action.seen] == ["0", "1", "2", "3"]
    assert began == threading.get_ident()


def test_what_is_not_done_in_time_is_told():
    action = Held()
    slow = Background(action)
    slow(finding())
    (line,) = slow.close(0.05)
    assert "not done within 0.05 s" in line
    action.go.set()  # Its thread ends.


def test_what_waits_is_bounded_and_what_is_dropped_counted(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(delivery, "MAX_WAITING", 3)
    action = Held()
    slow = Background(action)
    for _ in range(9):
        slow(finding())
    action.go.set()
    lines = slow.close(60.0)
    assert any("dropped" in line for line in lines)


def test_an_action_that_raises_is_told_and_goes_on():
    failing = Background(Failing())
    failing(finding())
    failing(finding())
    assert failing.close(60.0) == ["action failing: ValueError: no (2 times)"]


# ---- choosing --------------------------------------------------------------------


def test_a_file_says_which_actions_for_which_findings(tmp_path: Path):
    file = tmp_path / "actions.yaml"
    file.write_text(
        "actions:\n"
        "  - report\n"
        "  - command:true\n"
        "  - stop: {severity: warning, rules: [DeadRelu, Overfit]}\n"
        "  - webhook: {url: 'https://example.com', cool_down: 5, dry_run: true}\n"
        "  - prometheus: /var/lib/tdbg.prom\n"
    )
    report, command, stop, webhook, metrics = actions.read_specs(file)
    assert report == ActionSpec(name="report")
    assert command == ActionSpec(name="command", parameters={"command": "true"})
    assert stop.severity is Severity.WARNING
    assert stop.rules == {"DeadRelu", "Overfit"}
    assert (webhook.cool_down, webhook.dry_run) == (5, True)
    assert webhook.parameters == {"url": "https://example.com"}
    assert metrics.parameters == {"path": "/var/lib/tdbg.prom"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("- stop", "must be a mapping with the key 'actions'"),
        ("actions: stop", "a list of actions"),
        ("actions: [stop]\nrules: [a]", "must be a mapping with the key 'actions'"),
        ("actions: [3]", "3 is not an action"),
        ("actions: [{stop: {}, report: {}}]", "is not an action"),
        ("actions: [{stop: 3}]", "is not a mapping"),
        ("actions: [{stop: {severity: awful}}]", "severity 'awful' is none of"),
        ("actions: [{stop: {rules: 3}}]", "rules: 3"),
        ("actions: [{stop: {rules: []}}]", "rules"),
        ("actions: [{stop: {cool_down: -1}}]", "cool_down is -1"),
        ("actions: [{stop: {dry_run: 3}}]", "dry_run: 3"),
        ("actions: [stopp]", "did you mean 'stop'"),
        ("actions: ['webhook']", "needs its url"),
        ("actions: ['stop:now']", "takes no target"),
        ("actions: [{stop: now}]", "takes no target"),
        ("actions: [report, {stopp: {}}]", r"actions\[1\]: .*did you mean 'stop'"),
        # The parameters are not below the name but beside it.
        (
            "actions:\n- stop:\n  severity: error",
            "indent its parameters further than its name",
        ),
    ],
)
def test_a_file_that_cannot_work_is_refused(tmp_path: Path, content: str, said: str):
    file = tmp_path / "actions.yaml"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=said):
        actions.read_specs(file)


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("webhook", {"url": "ftp://x"}, "url must begin with http"),
        ("webhook", {"url": "http://[::1"}, "url must name a host"),
        ("webhook", {"url": "https://x:99999/a"}, "url must name a host"),
        ("webhook", {"url": "https://a..b/secret"}, "url must name a host"),
        ("webhook", {"url": "https:///secret"}, "url must"),
        ("webhook", {"url": "https://x", "timeout": 0}, "timeout is 0"),
        ("webhook", {"url": "https://x", "retries": 99}, "retries is 99"),
        ("webhook", {}, "needs the parameter 'url'"),
        ("webhook", {"url": "https://x", "colour": 1}, "no parameter 'colour'"),
        ("command", {"command": " "}, "command is ' '"),
        ("command", {"command": "true", "timeout": -1}, "timeout is -1"),
        ("notify", {"url": "nosuch://x"}, "nosuch:// is not a complete address"),
        ("prometheus", {"path": "x.txt"}, "must end in .prom"),
        ("prometheus", {"path": "/no/such/x.prom"}, "there is no folder /no/such"),
        ("opentelemetry", {"endpoint": "x"}, "endpoint must begin with http"),
        ("stop", {"now": True}, "no parameter 'now'; valid are 'cool_down'"),
        ("stop", {"cooldown": 5}, "did you mean 'cool_down'"),
        ("webhook", {"urll": "https://x"}, "did you mean 'url'"),
        ("webhook", {"url": "https://x", "headers": [1]}, "headers must be a mapping"),
        ("webhook", {"url": "https://x", "headers": {"a": 1}}, "texts to texts"),
        ("prometheus", {"path": 5}, "path is 5; give a file"),
        ("command", {"command": "true", "timeout": math.inf}, "timeout is inf"),
        ("command", {"command": "true", "timeout": math.nan}, "timeout is nan"),
    ],
)
def test_parameters_that_cannot_work_are_refused(
    name: str, parameters: dict[str, Any], said: str
):
    with pytest.raises(ConfigurationError, match=said):
        actions.make(ActionSpec(name=name, parameters=parameters), "runs/a")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'tdbg\[actions\]'"):
        actions.make("notify:json://localhost", "runs/a")


class Lamp:
    """As another package would bring it."""

    name = "lamp"
    lit: list[int]

    def __init__(self, run_directory: str, pin: int = 4) -> None:
        del run_directory
        self.pin = pin
        self.lit = []

    def __call__(self, found: Finding) -> None:
        self.lit.append(found.step)


def test_other_packages_bring_actions(monkeypatch: pytest.MonkeyPatch):
    points = [
        EntryPoint("lamp", f"{__name__}:Lamp", registry.GROUP),
        EntryPoint("gone", "no_such_package:Action", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "_entry_points", lambda: points)
    action = actions.make(ActionSpec(name="lamp", parameters={"pin": 5}), "runs/a")
    # Nobody knows how long it takes.
    assert isinstance(action, Gate)
    assert isinstance(action.action, Background)
    action(finding())
    assert actions.close_all([action]) == []
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        actions.make("gone", "runs/a")


def test_what_went_wrong_is_a_note_of_the_report():
    run = FakeRun()
    for step in range(3):
        run.step(step, {"a.weight": [float("nan")]})
    action = actions.make("command:exit 4", "runs/a")
    engine = Engine(run, ExplodingTensor(), (action, Failing()))
    engine.poll()
    notes = engine.finish().notes
    assert any("ended with 4" in note for note in notes)
    assert any("action failing" in note for note in notes)


def test_an_action_that_cannot_be_closed_harms_nobody():
    class Stuck(Remembering):
        def close(self, _: float) -> list[str]:
            msg = "stuck"
            raise TdbgError(msg)

    assert actions.close_all([Stuck(), Remembering()]) == ["action remembering: stuck"]
