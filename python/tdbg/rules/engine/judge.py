"""A rule at work on a run: its verdicts become findings and a status.

Thread safety: none; owned by the engine.

Errors: a rule that raises gets the status ``Error`` and is not asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np

from tdbg.findings import Finding
from tdbg.rules._base import Rule
from tdbg.rules.engine.episodes import Episodes
from tdbg.rules.status import RuleStatus, Status
from tdbg.rules.verdicts import UNKNOWN, Judgement

__all__ = ["Judge"]


class Judge:
    """Keeps what a rule has found.

    Args:
        rule: The rule.
        on_status: Called whenever the status has changed.

    Attributes:
        rule: The rule.
        seconds: How long it has taken so far.
        n_judged: How many verdicts it has given so far, unknown ones left out.
    """

    def __init__(self, rule: Rule, on_status: Callable[[RuleStatus], None]) -> None:
        self.rule = rule
        self.seconds = 0.0
        self.n_judged = 0
        self._on_status = on_status
        self._episodes = Episodes(rule.name)
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

    @property
    def findings(self) -> list[Finding]:
        """Every episode as one finding, as it stands."""
        return self._episodes.all

    def ask(self, question: Callable[[], Iterable[Judgement]]) -> list[Finding]:
        """Take in the verdicts that it answers with; what begins, worsens and ends."""
        if self.has_failed:
            return []
        found: list[Finding] = []
        started = time.perf_counter()
        try:
            for judgement in question():
                self.n_judged += int(np.count_nonzero(judgement.levels != UNKNOWN))
                found += self._episodes.fold(judgement)
        except Exception as error:  # A rule is anybody's code.
            self.fail(error)
        self.seconds += time.perf_counter() - started
        begun = sum(finding.phase == "begin" for finding in found)
        self._n_findings += begun
        if begun and self._status is Status.IN_PROGRESS:
            self.set_status(Status.ISSUES_FOUND)
        return found

    def fail(self, error: Exception) -> None:
        """It judges no more."""
        if not self.has_failed:
            self.set_status(Status.ERROR, f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        """Somebody asked the engine to stop."""
        if not self.has_failed:
            self.set_status(Status.STOPPING)

    def finish(self, message: str = "") -> None:
        """No more will come.

        Args:
            message: What to say where nothing was found.
        """
        if self._status is Status.STOPPING:
            self.set_status(Status.STOPPED)
        elif self._status is Status.IN_PROGRESS:
            self.set_status(Status.NO_ISSUES_FOUND, message)

    def set_status(self, status: Status, message: str = "") -> None:
        """From now on this."""
        self._status, self._message = status, message or self._message
        self._on_status(self.status)
