"""Asks rules about recorded runs: any rules, with any parameters, without a training.

A sick training is *found* when a rule that may name its fault has a finding of a
warning or worse; *in time* when the step of that finding is not after the one at which
the predicate held first.  Both are counted in training steps.
"""

from __future__ import annotations

import multiprocessing
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.detection.kit.case import case_named, load
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.training import Outcome
from benchmarks.detection.record import Recording, asked
from tdbg.modes import ModeKeys
from tdbg.rules import Engine, Rule, default_rules
from tdbg.rules.episodes import Episodes
from tdbg.rules.registry import make
from tdbg.rules.runner import Status
from tdbg.rules.window import Idle
from tdbg.run.findings import Finding, Severity

__all__ = ["Judged", "Named", "judge", "judged_by", "rules_for"]

#: Parameters of rules by the rule's name, in place of the defaults.
Changes = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The first finding of one rule and severity in one run.

    Attributes:
        rule: Its name.
        severity: Its severity.
        step: Training step of the finding, from 0.
        tensor: Where.
        message: What it says.
    """

    rule: str
    severity: Severity
    step: int
    tensor: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the rules say about one recording.

    Attributes:
        case: Name of the case.
        seed: Of the training.
        origin: The collection that the case was written for.
        half: Of that collection.
        is_sick: Whether the training is.
        named_by: Rules that may name the fault.
        cause: Words that name it, where no rule's name does.
        visible_at: Training step at which the fault is visible.
        n_steps: How many there were.
        findings: The first of each rule and severity, by step.
        errors: Rules that failed, and why.
    """

    case: str
    seed: int
    origin: str
    half: str
    is_sick: bool
    named_by: frozenset[str]
    visible_at: int | None
    n_steps: int
    cause: Cause | None = None
    findings: tuple[Named, ...] = ()
    errors: tuple[str, ...] = field(default=())

    def first_of(self, rules: Iterable[str]) -> Named | None:
        """The first finding, of a warning or worse, of one of these rules."""
        chosen = frozenset(rules)
        return _first(one for one in self.findings if one.rule in chosen)

    @property
    def found(self) -> Named | None:
        """The first finding that names the fault."""
        if self.cause is None:
            return self.first_of(self.named_by)
        cause = self.cause
        return _first(f for f in self.findings if cause.is_named(f.rule, f.message))

    @property
    def delay(self) -> int | None:
        """Steps from the fault's being visible to that finding; None: no finding."""
        if self.found is None or self.visible_at is None:
            return None
        return self.found.step - self.visible_at

    @property
    def in_time(self) -> bool:
        """Whether it was found when the fault was visible, at the latest."""
        return self.delay is not None and self.delay <= 0

    def alarms(self, severity: Severity) -> list[Named]:
        """Findings of this severity: false ones, if the training is healthy."""
        return [one for one in self.findings if one.severity is severity]


def _first(findings: Iterable[Named]) -> Named | None:
    """The first of a warning or worse."""
    found = [one for one in findings if one.severity >= Severity.WARNING]
    return min(found, key=lambda one: one.step, default=None)


def judge(
    recordings: Iterable[Recording],
    *,
    changes: Changes | None = None,
    only_rules: Sequence[str] = (),
    jobs: int = 1,
    paths: Sequence[str] = (),
) -> Iterator[Judged]:
    """Judge recorded runs.

    Args:
        recordings: The runs.
        changes: Parameters other than the defaults.
        only_rules: Names of the rules to ask; none: all.
        jobs: Processes.
        paths: Files of cases other than this corpus.
    """
    work = [
        (one, dict(changes or {}), tuple(only_rules))
        for one in recordings
        if not one.trouble
    ]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with context.Pool(jobs, load, (tuple(paths),)) as pool:
        yield from pool.imap(_judge, work)


def _judge(work: tuple[Recording, Changes, tuple[str, ...]]) -> Judged:
    recording, changes, only = work
    rules = rules_for(recording, changes)
    return judged_by(
        recording, [rule for rule in rules if not only or rule.name in only]
    )


def judged_by(recording: Recording, rules: Sequence[Rule]) -> Judged:
    """What these rules say of a recording."""
    case, outcome = case_named(recording.case), recording.outcome()
    engine = Engine(recording.run, rules, record=False)
    # As they were told, with the step at which each was noticed first.
    told = [*engine.poll(), *engine.poll_idle(), *_of_hangs(rules, outcome)]
    report = engine.finish()
    return Judged(
        case=case.name,
        seed=recording.seed,
        origin=case.origin,
        half=case.half,
        is_sick=case.is_sick,
        named_by=case.named_by,
        cause=case.cause,
        visible_at=outcome.visible_at,
        n_steps=outcome.n_steps,
        findings=_first_of_each((one for one in told if not one.is_over), outcome),
        errors=tuple(
            f"{status.rule}: {status.message}"
            for status in report.statuses
            if status.status is Status.ERROR
        ),
    )


def rules_for(recording: Recording, changes: Changes) -> list[Rule]:
    """The default rules and those the case asks for, with changed parameters."""
    of_case = asked(case_named(recording.case), recording.folder)
    names = {rule.name for rule in of_case}
    every = [*(r for r in default_rules() if r.name not in names), *of_case]
    return [_changed(rule, changes.get(rule.name, {})) for rule in every]


def _changed(rule: Rule, parameters: Mapping[str, object]) -> Rule:
    if not parameters:
        return rule
    given: dict[str, Any] = {**rule.parameters(), **parameters}
    return make(rule.name, **given)


def _of_hangs(rules: Sequence[Rule], outcome: Outcome) -> list[Finding]:
    """What rules say when nothing comes for as long as the case says."""
    found: list[Finding] = []
    for step, seconds in outcome.hangs:
        quiet = Idle(
            seconds=seconds,
            last_step=outcome.global_steps[step],
            mode=ModeKeys.TRAIN,
            alive=True,
            ended=False,
        )
        for rule in rules:
            episodes = Episodes(rule.name)
            for evaluation in rule.on_idle(quiet):
                found += episodes.fold(evaluation)
    return found


def _first_of_each(findings: Iterable[Finding], outcome: Outcome) -> tuple[Named, ...]:
    first: dict[tuple[str, Severity], Named] = {}
    for finding in sorted(findings, key=lambda one: one.step):
        # A step of evaluation belongs to the training step before it.
        step = bisect_right(outcome.global_steps, finding.step) - 1
        first.setdefault(
            (finding.rule, finding.severity),
            Named(
                rule=finding.rule,
                severity=finding.severity,
                step=max(step, 0),
                tensor=finding.tensor,
                message=finding.message,
            ),
        )
    return tuple(first.values())
