"""Episodes: folds the verdicts of many steps into findings that begin and end.

A verdict that is a severity begins an episode of its rule, tensor and mode.  While
the episode lasts, only a higher severity is reported.  An episode ends after a few OK
verdicts in a row, so that one lucky step does not split it in two; unknown verdicts
neither prolong nor end an episode.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tdbg.modes import ModeKeys
from tdbg.rules.table import OK, Evaluation
from tdbg.rules.vocabulary import Vocabulary, vocabulary_of
from tdbg.run.findings import Finding, Phase, Severity, Stage

__all__ = ["CLEAR_AFTER", "Episodes"]

# OK verdicts in a row that end an episode.
CLEAR_AFTER = 3


@dataclass(slots=True)
class _Episode:
    """An open episode; *n_ok*: its OK verdicts in a row so far."""

    number: int
    finding: Finding
    n_ok: int = 0


class Episodes:
    """The episodes of one rule.

    Args:
        rule: The rule's name.
        stage: Where its findings stand in the chain of causes.
        words: Returns the vocabulary of the run's framework.
    """

    def __init__(
        self,
        rule: str,
        stage: Stage | None = None,
        words: Callable[[], Vocabulary] = vocabulary_of,
    ) -> None:
        self._rule = rule
        self._words = words
        self._stage = stage
        self._open: dict[tuple[str, ModeKeys], _Episode] = {}
        self._all: list[Finding] = []
        self._last_names: tuple[str, ...] = ()
        self._index: dict[str, int] = {}

    @property
    def all(self) -> list[Finding]:
        """One finding for every episode, in its current state, by beginning."""
        return list(self._all)

    def fold(self, evaluation: Evaluation) -> Iterator[Finding]:
        """Add verdicts; yield the episodes that begin, get worse or end."""
        severities = evaluation.severities
        affected = set(np.flatnonzero((severities > OK).any(axis=1)).tolist())
        if self._open:
            names = self._names(evaluation.names)
            rows = (
                names.get(name) for name, mode in self._open if mode is evaluation.mode
            )
            affected.update(i for i in rows if i is not None)
        for i in sorted(affected):
            yield from self._fold_tensor(evaluation, i)

    def _names(self, names: tuple[str, ...]) -> dict[str, int]:
        """Index of each name; mostly the names are those of the last call."""
        if self._last_names is not names:
            self._last_names = names
            self._index = {name: i for i, name in enumerate(names)}
        return self._index

    def _fold_tensor(self, evaluation: Evaluation, i: int) -> Iterator[Finding]:
        key = (evaluation.names[i], evaluation.mode)
        decided = np.flatnonzero(evaluation.severities[i] >= OK)
        if not len(decided):
            return
        severities = evaluation.severities[i, decided]
        # Runs of equal verdicts.
        starts = np.flatnonzero(np.diff(severities, prepend=np.int8(-1)))
        for start, end in zip(starts, [*starts[1:], len(severities)], strict=True):
            level = int(severities[start])
            if level == OK:
                yield from self._add_ok(evaluation, key, decided[start:end])
            else:
                yield from self._add_bad(evaluation, i, level, decided[start:end])

    def _add_ok(
        self,
        evaluation: Evaluation,
        key: tuple[str, ModeKeys],
        columns: np.ndarray[tuple[int], np.dtype[np.intp]],
    ) -> Iterator[Finding]:
        episode = self._open.get(key)
        if episode is None:
            return
        needed = CLEAR_AFTER - episode.n_ok
        if len(columns) < needed:
            episode.n_ok += len(columns)
            return
        del self._open[key]
        step = int(evaluation.steps[columns[needed - 1]])
        over = replace(episode.finding, phase="end")
        self._all[episode.number] = over
        yield replace(over, step=step)

    def _add_bad(
        self,
        evaluation: Evaluation,
        i: int,
        level: int,
        columns: np.ndarray[tuple[int], np.dtype[np.intp]],
    ) -> Iterator[Finding]:
        key = (evaluation.names[i], evaluation.mode)
        episode = self._open.get(key)
        phase: Phase | None = None
        if episode is None:
            phase = "begin"
            finding = self._describe(evaluation, i, int(columns[0]), level)
            episode = _Episode(len(self._all), replace(finding, n_steps=0))
            self._open[key] = episode
            self._all.append(finding)
        elif level > episode.finding.severity:
            phase = "worse"
            worse = self._describe(evaluation, i, int(columns[0]), level)
            episode.finding = replace(
                worse,
                phase=phase,
                first_step=episode.finding.first_step,
                n_steps=episode.finding.n_steps,
            )
        episode.n_ok = 0
        if phase is not None:
            yield replace(episode.finding, n_steps=episode.finding.n_steps + 1)
        steps = evaluation.steps[columns]
        # An idle run is judged again at its last step, which counts once.
        begun = episode.finding.n_steps > 0
        last = episode.finding.last_step
        episode.finding = replace(
            episode.finding,
            last_step=max(last, int(steps[-1])),
            n_steps=episode.finding.n_steps
            + (int(np.count_nonzero(steps > last)) if begun else len(steps)),
        )
        self._all[episode.number] = episode.finding

    def _describe(self, evaluation: Evaluation, i: int, j: int, level: int) -> Finding:
        described = evaluation.describe(i, j)
        advice = described.advice
        if not isinstance(advice, str):
            advice = advice(self._words())
        step = int(evaluation.steps[j])
        return Finding(
            rule=self._rule,
            severity=Severity(level),
            step=step,
            mode=evaluation.mode,
            tensor=evaluation.names[i],
            message=described.message,
            value=described.value,
            threshold=described.threshold,
            advice=advice,
            first_step=step if described.since is None else described.since,
            last_step=step,
            stage=self._stage if described.stage is None else described.stage,
            evidence=described.evidence,
            gain=described.gain,
        )
