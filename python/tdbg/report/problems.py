"""What was found, put together for a reader: the worst first, a rule at a time.

Thread safety: functions over values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tdbg.config.messages import counted
from tdbg.rules import Report
from tdbg.run.findings import Finding, Severity

__all__ = ["Judged", "Problem", "Verdict", "judgement_of", "verdict_of"]

RuleStatus = Mapping[str, Any]

# Words for the states of a training.
_BEGINNINGS = {
    "running": "Training, with {} so far",
    "stalled": "Stalled after {}: the process is there and shows no life",
    "closed": "Trained for {}",
    "dead": "Killed after {}",
}
_OF_OTHERS = "{} of training; how it ended is not known"


@dataclass(frozen=True, slots=True)
class Problem:
    """What one rule found, in one tensor or in many, and how it stands.

    Attributes:
        rule: Name of the rule.
        severity: The worst of its findings.
        is_over: Whether all of them are gone.
        findings: In their last state, the worst first.
        noticed: Of each, the step at which the rule first noticed it.
    """

    rule: str
    severity: Severity
    is_over: bool
    findings: tuple[Finding, ...]
    noticed: tuple[int, ...]

    @property
    def worst(self) -> Finding:
        """The finding to read first."""
        return self.findings[0]

    @property
    def accuses(self) -> bool:
        """Whether something is wrong, and still is."""
        return self.severity > Severity.INFO and not self.is_over

    @property
    def causes(self) -> tuple[str, ...]:
        """Rules whose findings brought about all of these; none if one stands alone."""
        if any(each.cause is None for each in self.findings):
            return ()
        return tuple(dict.fromkeys(e.cause.rule for e in self.findings if e.cause))

    @property
    def anchor(self) -> str:
        """Its name in links."""
        state = "-gone" if self.is_over else ""
        return f"finding-{''.join(c if c.isalnum() else '-' for c in self.rule)}{state}"


@dataclass(frozen=True, slots=True)
class Judged:
    """What rules said of a run.

    Attributes:
        problems: The worst first; what is over comes last.
        statuses: What was last said about each rule, by its name.
    """

    problems: tuple[Problem, ...] = ()
    statuses: Mapping[str, RuleStatus] = ()  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run does.

    Attributes:
        tone: starting, unjudged, ok, info, warning or error.
        sentence: In one sentence.
        advice: What to do about the worst; empty if nothing is wrong.
        wrong: How many things are wrong.
    """

    tone: str
    sentence: str
    advice: str
    wrong: int


def judgement_of(
    findings: Iterable[Finding], statuses: Mapping[str, RuleStatus]
) -> Judged:
    """The judgement of findings, as a run records them or an engine reports them."""
    states: dict[tuple[str, str, int], list[Finding]] = {}
    for each in findings:
        states.setdefault((each.rule, each.tensor, each.first_step), []).append(each)
    groups: dict[tuple[str, bool], list[tuple[Finding, Severity, int]]] = {}
    for told in states.values():
        newest = told[-1]
        worst = max(each.severity for each in told)
        noticed = min(each.step for each in told)
        groups.setdefault((newest.rule, newest.is_over), []).append(
            (newest, worst, noticed)
        )
    problems = []
    for (rule, is_over), group in groups.items():
        group.sort(
            key=lambda each: (-each[1], each[0].cause is not None, each[0].first_step)
        )
        problems.append(
            Problem(
                rule,
                max(severity for _, severity, _ in group),
                is_over,
                tuple(finding for finding, _, _ in group),
                tuple(step for _, _, step in group),
            )
        )
    return Judged(_in_order(problems), dict(sorted(statuses.items())))


def judgement_of_report(report: Report) -> Judged:
    """The judgement of an engine that has just judged."""
    statuses = {each.rule: each.to_json() for each in report.statuses}
    return judgement_of(report.findings, statuses)


def _in_order(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The worst first, by what it brought about, too; that comes right behind it."""
    graveness: dict[str, int] = {}
    for each in problems:
        for rule in (each.rule, *each.causes):
            graveness[rule] = max(graveness.get(rule, 0), int(each.severity))
    first = {each.rule: _place(each, graveness) for each in problems if not each.causes}

    def place(problem: Problem) -> tuple[Any, ...]:
        own = _place(problem, graveness)
        led = [first[rule] for rule in problem.causes if rule in first]
        return (problem.is_over, min(led, default=own), bool(problem.causes), own)

    return tuple(sorted(problems, key=place))


def _place(problem: Problem, graveness: Mapping[str, int]) -> tuple[Any, ...]:
    return (-graveness[problem.rule], problem.worst.first_step, problem.rule)


def verdict_of(
    status: str,
    n_steps: int,
    judgement: Judged,
    stopped: str | None = None,
    step_word: str = "step",
) -> Verdict:
    """The verdict on a run.

    Args:
        status: State of the training, as ``Trial.status``.
        n_steps: How many steps it has trained for, recorded or not.
        judgement: What rules said.
        stopped: Why the training was asked to stop, if it was.
        step_word: What a step is called: "round" of boosted trees.
    """
    if not n_steps:
        words = "Nothing was recorded."
        if status in ("running", "stalled"):
            words = "The training has begun; no step is recorded yet."
        return Verdict("starting", words, "", 0)
    begin = _BEGINNINGS.get(status, _OF_OTHERS).format(
        f"{n_steps:,} {step_word}{'s' * (n_steps != 1)}"
    )
    if stopped is not None:
        begin += ", then stopped"
    active = [each for each in judgement.problems if each.accuses]
    if not active:
        return _without_problems(begin, judgement)
    at_fault = [each for each in active if not each.causes] or active
    worst = at_fault[0]
    others = len(worst.findings) - 1
    where = worst.worst.tensor + (f" and {others} more" if others else "")
    n = len(at_fault)
    what = "one thing is wrong" if n == 1 else f"{n} things are wrong, the worst"
    following = len(active) - n
    tail = f", with {counted(following, 'consequence')}" if following else ""
    sentence = f"{begin}; {what}: {worst.rule} in {where}{tail}."
    tone = max(each.severity for each in active).label
    return Verdict(tone, sentence, worst.worst.advice, n)


def _without_problems(begin: str, judgement: Judged) -> Verdict:
    failed = [r for r, s in judgement.statuses.items() if s.get("status") == "Error"]
    if failed:
        names = ", ".join(failed)
        return Verdict(
            "warning", f"{begin}; a rule failed, and judged nothing: {names}.", "", 0
        )
    if not judgement.statuses and not judgement.problems:
        return Verdict("unjudged", f"{begin}; no rule has judged this run yet.", "", 0)
    blind = sum(bool(each.get("message")) for each in judgement.statuses.values())
    n = len(judgement.statuses) - blind
    gone = sum(each.severity > Severity.INFO for each in judgement.problems)
    if gone:
        words = f"{counted(gone, 'problem')} came and went, nothing is wrong now"
    else:
        words = f"{counted(n, 'rule')} found nothing wrong"
    if blind:
        words += f", {blind} had too little to judge by"
    return Verdict("ok", f"{begin}; {words}.", "", 0)


def accused_tensors(problems: Sequence[Problem], most: int) -> list[str]:
    """The tensors of findings, of each problem some, the worst first."""
    names: dict[str, None] = {}
    for each in problems:
        names.update(dict.fromkeys(finding.tensor for finding in each.findings[:most]))
    return list(names)
