"""How far a rule has come with a run."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

__all__ = ["RuleStatus", "Status"]


class Status(enum.Enum):
    """The statuses of a rule, by the names that SageMaker Debugger gave them."""

    IN_PROGRESS = "InProgress"
    """Judging; nothing was found so far."""
    NO_ISSUES_FOUND = "NoIssuesFound"
    """The run has ended, and nothing was found."""
    ISSUES_FOUND = "IssuesFound"
    """Something was found; it goes on judging until the run ends."""
    ERROR = "Error"
    """The rule itself failed, and judges no more."""
    STOPPING = "Stopping"
    """Somebody asked the engine, not the training, to stop."""
    STOPPED = "Stopped"
    """It judged no more before the run had ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStatus:
    """The status of one rule.

    Attributes:
        rule: Its name.
        status: Its status.
        message: What went wrong, with ``Status.ERROR``; that there was nothing to
            judge, with ``Status.NO_ISSUES_FOUND``.
        n_findings: How many episodes it has found so far.
    """

    rule: str
    status: Status
    message: str = ""
    n_findings: int = 0

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "rule": self.rule,
            "status": self.status.value,
            "message": self.message,
            "n_findings": self.n_findings,
        }
