"""A rule at work on a run: its verdicts become findings and a status.

Thread safety: none; owned by the engine.

Errors: a rule that raises gets the status ``Error`` and is not asked again.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from tdbg.findings import Finding
from tdbg.rules._base import Rule
from tdbg.rules.at_work import AtWork
from tdbg.rules.engine.episodes import Episodes
from tdbg.rules.status import RuleStatus, Status
from tdbg.rules.verdicts import UNKNOWN, Judgement

__all__ = ["Judge"]


class Judge(AtWork):
    """A rule in the engine's own process; keeps what it has found.

    Args:
        rule: The rule.
        on_status: Called whenever the status has changed.
    """

    def __init__(self, rule: Rule, on_status: Callable[[RuleStatus], None]) -> None:
        super().__init__(rule, on_status)
        self._episodes = Episodes(rule.name)

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
            answers: Iterable[object] = question()  # A rule is anybody's code.
            for judgement in answers:
                if not isinstance(judgement, Judgement):
                    msg = f"a rule yields Judgements, not {type(judgement).__name__}"
                    raise TypeError(msg)
                self.n_judged += int(np.count_nonzero(judgement.levels != UNKNOWN))
                found += self._episodes.fold(judgement)
        except Exception as error:
            self.fail(error)
        self.seconds += time.perf_counter() - started
        self._count_begun(sum(finding.phase == "begin" for finding in found))
        return found

    def fail(self, error: Exception) -> None:
        """It judges no more."""
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
