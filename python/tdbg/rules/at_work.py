"""A rule at work on a run, wherever it judges: how far it has come.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

from collections.abc import Callable

from tdbg.rules._base import Rule
from tdbg.rules.status import RuleStatus, Status

__all__ = ["AtWork"]


class AtWork:
    """Keeps the status of a rule; base of what has it judge.

    Args:
        rule: The rule.
        on_status: Called whenever the status has changed.

    Attributes:
        rule: The rule.
        seconds: How long it has taken so far; 0 where that is not known.
        n_judged: How many verdicts it has given so far, unknown ones left out.
    """

    def __init__(self, rule: Rule, on_status: Callable[[RuleStatus], None]) -> None:
        self.rule = rule
        self.seconds = 0.0
        self.n_judged = 0
        self._on_status = on_status
        self._status = Status.IN_PROGRESS
        self._message = ""
        self._n_findings = 0

    @property
    def status(self) -> RuleStatus:
        """How far it has come."""
        return RuleStatus(
            rule=self.rule.name,
            status=self._status,
            message=self._message,
            n_findings=self._n_findings,
        )

    @property
    def has_failed(self) -> bool:
        """Whether it judges no more."""
        return self._status is Status.ERROR

    def stop(self) -> None:
        """Somebody asked the engine to stop."""
        if not self.has_failed:
            self._set_status(Status.STOPPING)

    def finish(self, message: str = "") -> None:
        """No more will come.

        Args:
            message: What to say where nothing was found.
        """
        if self._status is Status.STOPPING:
            self._set_status(Status.STOPPED)
        elif self._status is Status.IN_PROGRESS:
            self._set_status(Status.NO_ISSUES_FOUND, message)

    def _count_begun(self, n_begun: int) -> None:
        """So many episodes have begun."""
        self._n_findings += n_begun
        if n_begun and self._status is Status.IN_PROGRESS:
            self._set_status(Status.ISSUES_FOUND)

    def _set_status(self, status: Status, message: str = "") -> None:
        self._status, self._message = status, message or self._message
        self._on_status(self.status)
