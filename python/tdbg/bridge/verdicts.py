"""What rules say about a run, as a tracker takes it: a verdict, problems, alerts.

Thread safety: values and functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tdbg.rules import Report
from tdbg.run.findings import Severity
from tdbg.trial import Trial
from tdbg.view import Diagnosis, Verdict, diagnosis_of, head_of, verdict_of

__all__ = ["FINDING_COLUMNS", "Alert", "RunOutcome", "alerts_of", "outcome_of"]

#: What is told of each finding, in a table.
FINDING_COLUMNS = (
    *("severity", "rule", "tensor", "first_step", "last_step", "n_steps"),
    *("over", "message", "advice", "cause"),
)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What rules say about a run now.

    Attributes:
        verdict: The verdict, in a sentence.
        diagnosis: The problems, the worst first.
    """

    verdict: Verdict
    diagnosis: Diagnosis

    def to_json(self) -> dict[str, Any]:
        """Return the verdict and all findings as a dictionary that JSON can hold."""
        return {
            "verdict": self.verdict.sentence,
            "tone": self.verdict.tone,
            "wrong": self.verdict.wrong,
            "recovered": self.verdict.recovered,
            "findings": self.findings(),
        }

    def findings(self) -> list[dict[str, Any]]:
        """Return a dictionary of ``FINDING_COLUMNS`` for each finding, by problem."""
        return [
            {
                "severity": each.severity.label,
                "rule": each.rule,
                "tensor": each.tensor,
                "first_step": each.first_step,
                "last_step": each.last_step,
                "n_steps": each.n_steps,
                "over": each.is_over,
                "message": each.message,
                "advice": each.advice,
                "cause": "" if each.cause is None else each.cause.rule,
            }
            for problem in self.diagnosis.problems
            for each in problem.findings
        ]


def outcome_of(trial: Trial, report: Report | None) -> RunOutcome:
    """Put together what the run holds of who judged it, and what an engine found."""
    told = list(trial.findings())
    statuses = dict(trial.rule_statuses())
    if report is not None:
        told += report.findings
        statuses |= {each.rule: each.to_json() for each in report.statuses}
    diagnosis = diagnosis_of(told, statuses)
    return RunOutcome(verdict_of(head_of(trial), diagnosis), diagnosis)


@dataclass(frozen=True, slots=True)
class Alert:
    """What somebody is told once.

    Attributes:
        key: Tells it from all other alerts of the run.
        title: The rule and where.
        text: What is wrong, since when, and what to do.
        severity: How bad it is.
        step: The training step since when.
    """

    key: str
    title: str
    text: str
    severity: Severity
    step: int


def alerts_of(outcome: RunOutcome, least: Severity) -> Iterator[Alert]:
    """Yield the alerts of all problems of at least that severity that have no cause.

    A problem is one alert, however many tensors have it.  It is another one when it has
    become worse, and when it is over.
    """
    for problem in outcome.diagnosis.problems:
        if problem.severity < least or problem.causes:
            continue
        first = min(problem.findings, key=lambda each: each.identity[2])
        state = "over" if problem.is_over else problem.severity.label
        worst = problem.worst
        when = f"since step {first.first_step}"
        if problem.is_over:
            when = f"from step {first.first_step} to {worst.last_step}; it is over"
        text = f"{worst.message}\n{when}\n{worst.advice}".rstrip()
        yield Alert(
            key=f"{problem.rule} {first.identity[2]} {state}",
            title=f"{problem.rule} in {problem.place}",
            text=text,
            severity=Severity.INFO if problem.is_over else problem.severity,
            step=first.first_step,
        )
