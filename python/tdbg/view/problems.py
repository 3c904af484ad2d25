"""Findings put together into problems: the cause first, one rule at a time.

Thread safety: functions over values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tdbg.rules import Report
from tdbg.run.findings import Finding, Severity
from tdbg.trial import Trial

__all__ = [
    "Diagnosis",
    "Episode",
    "Problem",
    "RuleStatus",
    "accused_tensors",
    "diagnosis_of",
    "diagnosis_of_report",
    "diagnosis_of_run",
]

RuleStatus = Mapping[str, Any]
_Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Episode:
    """One problem of one tensor, from its beginning to its end.

    Attributes:
        newest: Its last state.
        worst: The gravest severity that it ever had.
        noticed: The training step at which a rule first noticed it.
        n_consequences: Number of other episodes that follow from it.
    """

    newest: Finding
    worst: Severity
    noticed: int
    n_consequences: int = 0

    @property
    def key(self) -> _Key:
        """Rule, tensor and first global step, which tell it from others."""
        return self.newest.identity

    @property
    def is_of_time(self) -> bool:
        """Whether it is about time, and not about a tensor."""
        stage = self.newest.stage
        return stage is not None and stage.is_of_time

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {
            **self.newest.to_json(),
            "severity": self.worst.label,
            "of_time": self.is_of_time,
            "noticed": self.noticed,
            "over": self.newest.is_over,
            "consequences": self.n_consequences,
        }


@dataclass(frozen=True, slots=True)
class Problem:
    """The findings of one rule, in one tensor or in many, that go on or are over.

    Attributes:
        rule: Name of the rule.
        severity: The worst of its findings.
        is_over: Whether all of them are over.
        episodes: One for each tensor and first step, the worst first.
    """

    rule: str
    severity: Severity
    is_over: bool
    episodes: tuple[Episode, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings in their last state, the worst first."""
        return tuple(each.newest for each in self.episodes)

    @property
    def worst(self) -> Finding:
        """The finding to read first."""
        return self.episodes[0].newest

    @property
    def is_note(self) -> bool:
        """Whether it only says something, and accuses nothing."""
        return self.severity is Severity.INFO

    @property
    def accuses(self) -> bool:
        """Whether something is wrong, and still is."""
        return not self.is_note and not self.is_over

    @property
    def causes(self) -> tuple[str, ...]:
        """Rules that caused all of its findings; empty if one stands by itself."""
        found = [each.newest.cause for each in self.episodes]
        if any(each is None for each in found):
            return ()
        return tuple(dict.fromkeys(each.rule for each in found if each))

    @property
    def anchor(self) -> str:
        """Its name in links."""
        state = "-gone" if self.is_over else ""
        return f"finding-{''.join(c if c.isalnum() else '-' for c in self.rule)}{state}"

    @property
    def tensors(self) -> tuple[str, ...]:
        """Its tensors, the worst first; each stands once, however often it has it."""
        return tuple(dict.fromkeys(each.tensor for each in self.findings))

    @property
    def place(self) -> str:
        """The worst tensor, and the number of others: ``fc.weight and 2 more``."""
        others = len(self.tensors) - 1
        return self.worst.tensor + (f" and {others:,} more" if others else "")

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {
            "rule": self.rule,
            "severity": self.severity.label,
            "over": self.is_over,
            "tensor": self.worst.tensor,
            "tensors": len(self.tensors),
            "first_step": self.worst.first_step,
            "message": self.worst.message,
            "advice": self.worst.advice,
            "causes": list(self.causes),
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the rules said about a run.

    Attributes:
        problems: Problems, causes before what follows from them, the worst first; of
            equally grave ones facts first, and lost time last.  Those that are over
            come last.
        statuses: The last status of each rule, by name.
    """

    problems: tuple[Problem, ...] = ()
    statuses: Mapping[str, RuleStatus] = field(default_factory=dict)

    @property
    def episodes(self) -> list[Episode]:
        """The episodes of all problems, in the same order."""
        return [each for problem in self.problems for each in problem.episodes]

    @property
    def accused(self) -> list[Problem]:
        """Problems that are there now, with their consequences."""
        return [each for each in self.problems if each.accuses]

    @property
    def at_fault(self) -> list[Problem]:
        """Problems that are there now and follow from no other: the number of faults.

        Where causes are over, or are notes, their consequences stand for them.
        """
        accused = self.accused
        return [each for each in accused if not each.causes] or accused

    @property
    def notes(self) -> list[Problem]:
        """Findings that accuse nothing, and are not over."""
        return [each for each in self.problems if each.is_note and not each.is_over]

    @property
    def recovered(self) -> list[Problem]:
        """Problems that are over."""
        return [each for each in self.problems if each.is_over and not each.is_note]

    @property
    def found_wrong(self) -> bool:
        """Whether rules found something wrong, even if it has recovered since."""
        return bool(self.accused or self.recovered)

    @property
    def failed(self) -> list[str]:
        """Rules that raised, and so judged nothing."""
        return [r for r, s in self.statuses.items() if s.get("status") == "Error"]

    @property
    def blind(self) -> list[str]:
        """Rules that had too little data to judge."""
        return [rule for rule in self._silent if self._applies(rule)]

    @property
    def inapplicable(self) -> list[str]:
        """Rules whose question does not arise in this training."""
        return [rule for rule in self._silent if not self._applies(rule)]

    @property
    def _silent(self) -> list[str]:
        return [
            rule
            for rule, each in self.statuses.items()
            if each.get("status") == "NoIssuesFound" and each.get("message")
        ]

    def _applies(self, rule: str) -> bool:
        return self.statuses[rule].get("applies") is not False

    @property
    def quiet(self) -> list[str]:
        """Rules that judged and found nothing."""
        spoke = {*self.failed, *self._silent, *(each.rule for each in self.problems)}
        return [
            rule
            for rule, each in self.statuses.items()
            if rule not in spoke and not each.get("message")
        ]

    @property
    def counts(self) -> dict[str, int]:
        """Number of faults and notes that are there now, by severity label.

        A fault counts as the worst of itself and what follows from it.
        """
        worst = {each.rule: each.severity for each in self.accused}
        for each in reversed(self.accused):  # Causes stand before what follows.
            for cause in each.causes:
                worst[cause] = max(worst.get(cause, each.severity), worst[each.rule])
        now = [worst[each.rule] for each in self.at_fault]
        now += [each.severity for each in self.notes]
        return {each.label: now.count(each) for each in Severity}


def diagnosis_of(
    findings: Iterable[Finding], statuses: Mapping[str, RuleStatus]
) -> Diagnosis:
    """Return the diagnosis of findings, as a run or an engine holds them."""
    states: dict[_Key, list[Finding]] = {}
    for each in findings:
        states.setdefault(each.identity, []).append(each)
    newest = [told[-1] for told in states.values()]
    followers: dict[_Key, int] = {}
    for each in newest:
        if each.cause is not None:
            cause = each.cause.identity
            followers[cause] = followers.get(cause, 0) + 1
    groups: dict[tuple[str, bool], list[Episode]] = {}
    for key, told in states.items():
        episode = Episode(
            newest=told[-1],
            worst=max(each.severity for each in told),
            noticed=min(each.step for each in told),
            n_consequences=followers.get(key, 0),
        )
        groups.setdefault((key[0], told[-1].is_over), []).append(episode)
    problems = [
        Problem(
            rule,
            max(each.worst for each in group),
            is_over,
            tuple(sorted(group, key=_episode_place)),
        )
        for (rule, is_over), group in groups.items()
    ]
    return Diagnosis(_in_order(problems), dict(sorted(statuses.items())))


def diagnosis_of_report(report: Report) -> Diagnosis:
    """Return the diagnosis of an engine that has just judged."""
    statuses = {each.rule: each.to_json() for each in report.statuses}
    return diagnosis_of(report.findings, statuses)


def diagnosis_of_run(trial: Trial) -> Diagnosis:
    """Return the diagnosis that a run holds of whoever judged it."""
    return diagnosis_of(trial.findings(), trial.rule_statuses())


def accused_tensors(problems: Sequence[Problem], most: int) -> list[str]:
    """Return the tensors of problems, at most *most* of each, the worst first."""
    names: dict[str, None] = {}
    for each in problems:
        names.update(dict.fromkeys(finding.tensor for finding in each.findings[:most]))
    return list(names)


def _episode_place(episode: Episode) -> tuple[Any, ...]:
    newest = episode.newest
    return (
        -episode.worst,
        newest.cause is not None,
        -episode.n_consequences,
        newest.first_step,
    )


def _in_order(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Sort by severity, a cause as grave as its consequences, which come behind it."""
    graveness: dict[tuple[str, bool], int] = {}
    for each in problems:
        for rule in (each.rule, *each.causes):
            key = rule, each.is_over
            graveness[key] = max(graveness.get(key, 0), int(each.severity))

    def own_place(problem: Problem) -> tuple[Any, ...]:
        grave = graveness[problem.rule, problem.is_over]
        is_of_time = problem.episodes[0].is_of_time
        stage = problem.worst.stage
        is_fact = stage is not None and stage.is_fact
        first_step = problem.worst.first_step
        return (-grave, is_of_time, not is_fact, first_step, problem.rule)

    first = {
        (each.rule, each.is_over): own_place(each)
        for each in problems
        if not each.causes
    }

    def place(problem: Problem) -> tuple[Any, ...]:
        own, is_over = own_place(problem), problem.is_over
        causes = [(rule, is_over) for rule in problem.causes]
        led = [first[cause] for cause in causes if cause in first]
        return (is_over, min(led, default=own), bool(problem.causes), own)

    return tuple(sorted(problems, key=place))
