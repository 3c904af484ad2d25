"""What came of judging a run.

Thread safety: a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tdbg.findings import Finding
from tdbg.rules.status import RuleStatus, Status

__all__ = ["Report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of judging a run.

    Attributes:
        run: The run.
        findings: Every episode as one finding, as it stood at last, by first step,
            and of the same step the worst first.
        statuses: One a rule, in the order in which the rules were given.
        n_steps: How many recorded steps were judged.
        last_step: The last of them, or -1.
        notes: What did not work: recording, an action.
    """

    run: str
    findings: tuple[Finding, ...]
    statuses: tuple[RuleStatus, ...]
    n_steps: int
    last_step: int
    notes: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether nothing was found, and every rule could judge."""
        failed = any(status.status is Status.ERROR for status in self.statuses)
        return not self.findings and not failed

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "run": self.run,
            "findings": [finding.to_json() for finding in self.findings],
            "statuses": [status.to_json() for status in self.statuses],
            "n_steps": self.n_steps,
            "last_step": self.last_step,
            "notes": list(self.notes),
        }
