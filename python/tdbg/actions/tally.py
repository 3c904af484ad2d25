"""How many findings there were and are, by rule and severity, for metrics."""

from __future__ import annotations

from collections import Counter

from tdbg.findings import Finding

__all__ = ["Tally"]

Key = tuple[str, str]


class Tally:
    """Counts episodes.

    Attributes:
        total: Episodes so far, by rule and severity at which they stood at most.
        active: Those that go on, by rule and present severity.
        last_step: The last step of a finding, by rule.
    """

    def __init__(self) -> None:
        self.total: Counter[Key] = Counter()
        self.active: Counter[Key] = Counter()
        self.last_step: dict[str, int] = {}
        self._open: dict[tuple[str, str, str], Key] = {}

    def add(self, finding: Finding) -> None:
        """Take in what began, became worse or ended."""
        episode = finding.rule, finding.tensor, finding.mode.name
        key = finding.rule, finding.severity.label
        self.last_step[finding.rule] = finding.step
        before = self._open.pop(episode, None)
        if before is not None:
            self.active[before] -= 1
        if finding.is_over:
            return
        if before != key:
            self.total[key] += 1
        self.active[key] += 1
        self._open[episode] = key
