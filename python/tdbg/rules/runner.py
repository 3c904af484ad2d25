"""Runs one rule over a run: turns its evaluations into findings and a status.

Thread safety: none; owned by the engine.

Errors: a rule that raises gets the status ``Error`` and is not called again.
"""

from __future__ import annotations

import enum
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tdbg.rules.episodes import Episodes
from tdbg.rules.rule import Rule
from tdbg.rules.table import UNKNOWN, Evaluation
from tdbg.rules.vocabulary import Vocabulary, vocabulary_of
from tdbg.run.findings import Finding

__all__ = ["LocalRunner", "RuleRunner", "RuleStatus", "Status"]


class Status(enum.Enum):
    """The statuses of a rule, by the names that SageMaker Debugger gave them."""

    IN_PROGRESS = "InProgress"
    """The rule is judging and has found nothing so far."""
    NO_ISSUES_FOUND = "NoIssuesFound"
    """The run has ended, and the rule found nothing."""
    ISSUES_FOUND = "IssuesFound"
    """The rule found something; it goes on judging until the run ends."""
    ERROR = "Error"
    """The rule itself failed and is not called again."""
    STOPPING = "StopState"
    """Somebody stopped the engine (not the training)."""
    STOPPED = "Stopped"
    """The engine stopped before the run had ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStatus:
    """The status of one rule.

    Attributes:
        rule: The rule's name.
        status: Its status.
        message: With ``Status.ERROR``, what went wrong; with
            ``Status.NO_ISSUES_FOUND``, why there was nothing to judge, if so.
        n_findings: How many episodes the rule has found so far.
        applies: Whether the rule's question arises in this training.  If not,
            *message* says why, and nothing is missing.
    """

    rule: str
    status: Status
    message: str = ""
    n_findings: int = 0
    applies: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the status as a dictionary that JSON can hold."""
        return {
            "rule": self.rule,
            "status": self.status.value,
            "message": self.message,
            "n_findings": self.n_findings,
            "applies": self.applies,
        }


class RuleRunner:
    """Keeps the status of a rule; the base of runners here and in other processes.

    Args:
        rule: The rule.
        on_status: Called whenever the status has changed.

    Attributes:
        rule: The rule.
        seconds: Run time of the rule so far; 0 in another process.
        n_judged: How many verdicts the rule has given so far, unknown ones left out.
    """

    def __init__(self, rule: Rule, on_status: Callable[[RuleStatus], None]) -> None:
        self.rule = rule
        self.seconds = 0.0
        self.n_judged = 0
        self._on_status = on_status
        self._status = Status.IN_PROGRESS
        self._message = ""
        self._n_findings = 0
        self._applies = True

    @property
    def status(self) -> RuleStatus:
        """The current status."""
        return RuleStatus(
            rule=self.rule.name,
            status=self._status,
            message=self._message,
            n_findings=self._n_findings,
            applies=self._applies,
        )

    @property
    def has_failed(self) -> bool:
        """Whether the rule failed, so that it is not called again."""
        return self._status is Status.ERROR

    def stop(self) -> None:
        """Note that the engine is stopping."""
        if not self.has_failed:
            self._set_status(Status.STOPPING)

    def finish(self, message: str = "", *, applies: bool = True) -> None:
        """Set the final status.

        Args:
            message: Of the status if the rule found nothing.
            applies: Whether the rule's question arises in this training.
        """
        if self._status is Status.STOPPING:
            self._set_status(Status.STOPPED)
        elif self._status is Status.IN_PROGRESS:
            self._applies = applies
            self._set_status(Status.NO_ISSUES_FOUND, message)

    def _count_begun(self, n_begun: int) -> None:
        self._n_findings += n_begun
        if n_begun and self._status is Status.IN_PROGRESS:
            self._set_status(Status.ISSUES_FOUND)

    def _set_status(self, status: Status, message: str = "") -> None:
        self._status, self._message = status, message or self._message
        self._on_status(self.status)


class LocalRunner(RuleRunner):
    """Runs a rule in this process, and keeps its episodes.

    Args:
        rule: The rule.
        on_status: Called when its status changes.
        words: Returns the vocabulary of the run's framework.
    """

    def __init__(
        self,
        rule: Rule,
        on_status: Callable[[RuleStatus], None],
        words: Callable[[], Vocabulary] = vocabulary_of,
    ) -> None:
        super().__init__(rule, on_status)
        self._episodes = Episodes(rule.name, rule.stage, words)

    @property
    def findings(self) -> list[Finding]:
        """One finding for every episode, in its current state."""
        return self._episodes.all

    def run(self, evaluate: Callable[[], Iterable[Evaluation]]) -> list[Finding]:
        """Call *evaluate*, a method of the rule.

        Returns:
            Episodes that began, got worse or ended.
        """
        if self.has_failed:
            return []
        found: list[Finding] = []
        started = time.perf_counter()
        try:
            evaluations: Iterable[object] = evaluate()  # User code: check its types.
            for evaluation in evaluations:
                if not isinstance(evaluation, Evaluation):
                    msg = f"a rule yields Evaluations, not {type(evaluation).__name__}"
                    raise TypeError(msg)
                self.n_judged += int(np.count_nonzero(evaluation.severities != UNKNOWN))
                found += self._episodes.fold(evaluation)
        except Exception as error:
            self.fail(error)
        self.seconds += time.perf_counter() - started
        self._count_begun(sum(finding.phase == "begin" for finding in found))
        return found

    def fail(self, error: Exception) -> None:
        """Set the status ``Error``."""
        if not self.has_failed:
            text = f"{type(error).__name__}: {error}"
            self._set_status(Status.ERROR, text + _where(error, self.rule))


def _where(error: Exception, rule: Rule) -> str:
    """The line of the rule at which it was raised, as " (my_rule.py, line 20)"."""
    file = getattr(sys.modules.get(type(rule).__module__), "__file__", None)
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == file
    ]
    return f" ({Path(file).name}, line {lines[-1]})" if file and lines else ""
