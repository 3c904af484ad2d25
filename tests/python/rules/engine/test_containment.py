"""A rule or an action that fails harms nobody else; statuses say so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rules_fake import FakeRun, judge_in_parts
from tdbg.config import Needs
from tdbg.errors import ConfigurationError, UnknownRule
from tdbg.rules import (
    Description,
    Engine,
    Evaluation,
    ExplodingTensor,
    Rule,
    Status,
    TensorInfo,
    Window,
    check,
)
from tdbg.run.findings import Finding, Severity

NAN = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(Rule):
    """Raises when it is evaluated at a step."""

    at: int = 0
    in_selects: bool = False

    @property
    def needs(self) -> Needs:
        return Needs(collections=frozenset({"weights"}))

    def selects(self, tensor: TensorInfo) -> bool:
        if self.in_selects:
            msg = "cannot choose"
            raise RuntimeError(msg)
        return tensor.role == "weight"

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        if window.last >= self.at:
            msg = "I am broken"
            raise RuntimeError(msg)
        yield from ()


def exploding(n_steps: int = 5) -> FakeRun:
    run = FakeRun()
    for step in range(n_steps):
        run.step(step, {"0.weight": [NAN], "1.weight": [1.0]})
    return run


@pytest.mark.parametrize("broken", [Broken(), Broken(in_selects=True)])
def test_a_rule_that_raises_is_an_error_and_the_others_go_on(broken: Rule):
    report = check(exploding(), (broken, ExplodingTensor()))
    first, second = report.statuses
    assert first.status is Status.ERROR
    assert first.message.startswith("RuntimeError: ")
    assert second.status is Status.ISSUES_FOUND
    assert second.n_findings == 1
    assert [finding.rule for finding in report.findings] == ["ExplodingTensor"]
    assert not report.healthy


def test_the_line_of_the_rule_that_raised_is_told():
    (status,) = check(exploding(), (Broken(),)).statuses
    line = Broken.evaluate.__code__.co_firstlineno + 3
    where = f"({Path(__file__).name}, line {line})"
    assert status.message == f"RuntimeError: I am broken {where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage(Broken):
    """Yields what is no verdict."""

    def evaluate(self, _: Window) -> Iterator[Evaluation]:
        yield 3  # type: ignore[misc]


def test_what_is_no_verdict_is_told_as_such():
    (status,) = check(exploding(), (Garbage(),)).statuses
    assert status.status is Status.ERROR
    assert status.message == "TypeError: a rule yields Evaluations, not int"


def test_a_rule_that_failed_is_not_asked_again():
    run = exploding(9)
    engine = Engine(run, (Broken(at=3),))
    for last in range(9):
        run.shown = last
        engine.poll()
        expected = Status.IN_PROGRESS if last < 3 else Status.ERROR
        assert engine.report().statuses[0].status is expected


def test_an_error_without_findings_is_not_healthy():
    assert not check(exploding(), (Broken(),)).healthy


class Recorder:
    """An action that remembers, and raises if told to."""

    name = "recorder"

    def __init__(self, error: Exception | None = None) -> None:
        self.findings: list[Finding] = []
        self._error = error

    def __call__(self, finding: Finding) -> None:
        self.findings.append(finding)
        if self._error is not None:
            raise self._error


def test_an_action_that_raises_is_noted_and_the_others_are_called():
    bad, good = Recorder(OSError("no room")), Recorder()
    engine = Engine(exploding(), (ExplodingTensor(),), (bad, good))
    found = engine.poll()
    report = engine.finish()
    assert report.notes == ("action recorder: OSError: no room",)
    assert good.findings == bad.findings == found


def test_statuses_settle_when_the_run_has_ended():
    run = exploding()
    engine = Engine(run, (ExplodingTensor(), ExplodingTensor(collections=("biases",))))
    assert {s.status for s in engine.report().statuses} == {Status.IN_PROGRESS}
    engine.poll()
    now = [status.status for status in engine.report().statuses]
    assert now == [Status.ISSUES_FOUND, Status.IN_PROGRESS]
    last = [status.status for status in engine.finish().statuses]
    assert last == [Status.ISSUES_FOUND, Status.NO_ISSUES_FOUND]


def test_a_rule_that_was_shown_nothing_says_what_it_needs():
    blind, seeing = check(exploding(), ("DeadRelu", "UnchangedTensor")).statuses
    assert blind.status is Status.NO_ISSUES_FOUND
    assert blind.message == (
        "nothing to judge: outputs were not captured; "
        'Hook(rules=["DeadRelu"]) captures them'
    )
    assert seeing.message == (
        "nothing to judge: the run has too little data for a verdict, or none of the "
        "kind that this rule judges"
    )


def test_stopping_the_engine_is_a_status_of_its_own():
    run = exploding()
    run.ended = False
    engine = Engine(run, (ExplodingTensor(),))
    follow = engine.follow(0.001)
    assert [finding.rule for finding in next(follow)] == ["ExplodingTensor"]
    engine.stop()
    assert list(follow) == []
    assert engine.report().statuses[0].status is Status.STOPPING
    assert engine.finish().statuses[0].status is Status.STOPPED


def test_follow_ends_with_the_run():
    (found,) = Engine(exploding(), (ExplodingTensor(),)).follow(0.001)
    assert len(found) == 1


def test_following_finds_what_checking_finds():
    run = exploding(12)
    rules = (ExplodingTensor(),)
    assert judge_in_parts(run, range(12), *rules) == Engine(run, rules).poll()


def test_an_unknown_rule_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownRule, match="did you mean 'VanishingGradient"):
        Engine(exploding(), "VanishingGradients")
    with pytest.raises(ConfigurationError, match="neither a rule nor"):
        Engine(exploding(), (3,))  # type: ignore[arg-type]


def test_a_report_is_json():
    report = check(exploding(), (ExplodingTensor(), Broken()))
    document = report.to_json()
    (finding,) = document["findings"]
    assert Finding.from_json(finding) == report.findings[0]
    assert finding["severity"] == "error"
    assert document["statuses"][1]["status"] == "Error"
    assert document["n_steps"] == 5
    assert document["last_step"] == 4


def test_findings_survive_json_and_refuse_what_they_are_not():
    finding = check(exploding(), (ExplodingTensor(),)).findings[0]
    document = finding.to_json() | {"later": 1}
    assert Finding.from_json(document) == finding
    for broken in ({}, document | {"severity": "awful"}, document | {"mode": None}):
        with pytest.raises(ValueError, match=r"severity|not a finding"):
            Finding.from_json(broken)


def test_numbers_that_json_does_not_know_are_left_out():
    finding = check(exploding(), (ExplodingTensor(),)).findings[0]
    document = Finding.from_json(finding.to_json() | {"value": NAN}).to_json()
    assert document["value"] is None


def test_description_and_severity_are_what_the_rule_says():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Mild(Rule):
        @property
        def needs(self) -> Needs:
            return Needs(collections=frozenset({"weights"}))

        def evaluate(self, window: Window) -> Iterator[Evaluation]:
            for table in window.tables():
                yield table.judge_bad(
                    table["count"] > 0,
                    Severity.INFO,
                    lambda i, j, t=table: Description(
                        message=f"{t.names[i]} at {t.steps[j]}", advice="do nothing"
                    ),
                )

    first, second = check(exploding(), (Mild(),)).findings
    assert (first.message, second.message) == ("0.weight at 0", "1.weight at 0")
    assert first.severity is Severity.INFO
    assert first.n_steps == 5
    assert first.last_step == 4
