"""Episodes: verdicts of many steps, folded into findings that begin and end.

A verdict that is a severity begins an episode of its rule, tensor and mode.  While
it lasts nothing is said but that it has become worse.  It ends after a few healthy
verdicts in a row, so that one lucky step does not make two findings of one; unknown
ones neither prolong nor end it.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tdbg.findings import Finding, Phase, Severity
from tdbg.modes import ModeKeys
from tdbg.rules.verdicts import HEALTHY, Judgement

__all__ = ["CLEAR_AFTER", "Episodes"]

# Healthy verdicts in a row that end an episode.
CLEAR_AFTER = 3


@dataclass(slots=True)
class _Episode:
    """An episode that has not ended."""

    number: int
    finding: Finding
    healthy: int = 0


class Episodes:
    """The episodes of one rule.

    Args:
        rule: Its name.
    """

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._open: dict[tuple[str, ModeKeys], _Episode] = {}
        self._all: list[Finding] = []
        self._last_names: tuple[str, ...] = ()
        self._index: dict[str, int] = {}

    @property
    def all(self) -> list[Finding]:
        """Every episode so far as one finding, as it stands, in order of beginning."""
        return list(self._all)

    def fold(self, judgement: Judgement) -> Iterator[Finding]:
        """Take in verdicts; yield what begins, gets worse or ends."""
        levels = judgement.levels
        concerned = set(np.flatnonzero((levels > HEALTHY).any(axis=1)).tolist())
        if self._open:
            names = self._names(judgement.names)
            found = (
                names.get(name) for name, mode in self._open if mode is judgement.mode
            )
            concerned.update(i for i in found if i is not None)
        for i in sorted(concerned):
            yield from self._fold_tensor(judgement, i)

    def _names(self, names: tuple[str, ...]) -> dict[str, int]:
        """Where each is; mostly they are those of the last time."""
        if self._last_names is not names:
            self._last_names = names
            self._index = {name: i for i, name in enumerate(names)}
        return self._index

    def _fold_tensor(self, judgement: Judgement, i: int) -> Iterator[Finding]:
        key = (judgement.names[i], judgement.mode)
        decided = np.flatnonzero(judgement.levels[i] >= HEALTHY)
        if not len(decided):
            return
        levels = judgement.levels[i, decided]
        # Stretches of the same verdict.
        starts = np.flatnonzero(np.diff(levels, prepend=np.int8(-1)))
        for start, end in zip(starts, [*starts[1:], len(levels)], strict=True):
            level = int(levels[start])
            if level == HEALTHY:
                yield from self._recover(judgement, key, decided[start:end])
            else:
                yield from self._hold(judgement, i, level, decided[start:end])

    def _recover(
        self,
        judgement: Judgement,
        key: tuple[str, ModeKeys],
        columns: np.ndarray[tuple[int], np.dtype[np.intp]],
    ) -> Iterator[Finding]:
        episode = self._open.get(key)
        if episode is None:
            return
        needed = CLEAR_AFTER - episode.healthy
        if len(columns) < needed:
            episode.healthy += len(columns)
            return
        del self._open[key]
        step = int(judgement.steps[columns[needed - 1]])
        over = replace(episode.finding, phase="end")
        self._all[episode.number] = over
        yield replace(over, step=step)

    def _hold(
        self,
        judgement: Judgement,
        i: int,
        level: int,
        columns: np.ndarray[tuple[int], np.dtype[np.intp]],
    ) -> Iterator[Finding]:
        key = (judgement.names[i], judgement.mode)
        episode = self._open.get(key)
        phase: Phase | None = None
        if episode is None:
            phase = "begin"
            finding = self._describe(judgement, i, int(columns[0]), level)
            episode = _Episode(len(self._all), replace(finding, n_steps=0))
            self._open[key] = episode
            self._all.append(finding)
        elif level > episode.finding.severity:
            phase = "worse"
            worse = self._describe(judgement, i, int(columns[0]), level)
            episode.finding = replace(
                worse,
                phase=phase,
                first_step=episode.finding.first_step,
                n_steps=episode.finding.n_steps,
            )
        episode.healthy = 0
        if phase is not None:
            yield replace(episode.finding, n_steps=episode.finding.n_steps + 1)
        steps = judgement.steps[columns]
        # A step of which it is said again, because nothing new has come, counts once.
        begun = episode.finding.n_steps > 0
        last = episode.finding.last_step
        episode.finding = replace(
            episode.finding,
            last_step=max(last, int(steps[-1])),
            n_steps=episode.finding.n_steps
            + (int(np.count_nonzero(steps > last)) if begun else len(steps)),
        )
        self._all[episode.number] = episode.finding

    def _describe(self, judgement: Judgement, i: int, j: int, level: int) -> Finding:
        described = judgement.describe(i, j)
        step = int(judgement.steps[j])
        return Finding(
            rule=self._rule,
            severity=Severity(level),
            step=step,
            mode=judgement.mode,
            tensor=judgement.names[i],
            message=described.message,
            value=described.value,
            threshold=described.threshold,
            advice=described.advice,
            first_step=step,
            last_step=step,
        )
