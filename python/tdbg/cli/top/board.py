"""What ``tdbg top`` knows about the runs that it shows.

A run is looked at as often as it is worth: what is read of it for the screen is read
again only after twenty times the time that it took, so that looking at a training never
takes more than a twentieth of a core, and usually far less.

Thread safety: none; the thread of the screen.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tdbg.config.collections import CollectionKeys
from tdbg.errors import TdbgError
from tdbg.modes import TRAIN, TRAINING, ModeKeys
from tdbg.run.findings import Finding, Severity
from tdbg.trial import Envelope, Trial, create_trial
from tdbg.view import (
    ENDED,
    UNREADABLE,
    RunView,
    in_forward_order,
    last_value,
    loss_names,
    view_of,
)
from tdbg.view.time import Line, PhaseBreakdown, newest_lines, step_breakdown

__all__ = ["LossCurve", "WatchedRun", "folder_of"]

# Collections that a map shows, the first one that the run has first.
_MAPPED = tuple(
    key.value
    for key in (
        CollectionKeys.GRADIENTS,
        CollectionKeys.WEIGHTS,
        CollectionKeys.OUTPUTS,
    )
)

# A look at a run may take this share of the time, and is made so often at most.
_SHARE = 20
_LEAST_SECONDS = 0.25
# Steps per second are those of so many seconds.
_RATE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class LossCurve:
    """A loss over the steps of its mode.

    Attributes:
        name: Name of the tensor, with its mode if that is not training.
        envelope: Its envelope of one row, of the field ``mean``.
        newest: The newest value; NaN if it is not finite.
    """

    name: str
    envelope: Envelope
    newest: float


class WatchedRun:
    """A run that is shown.

    Args:
        path: Its directory.

    Attributes:
        name: What it is called on the screen.
        state: Of the training, as ``Trial.status``; or ``unreadable``.
        error: Why it cannot be read.
        n_steps: Training steps, recorded or not.
        last_step: The newest training step; -1 if there is none.
        rate: Recent training steps per second; None: unknown.
        view: How it is; None until it was read once.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = path.rstrip("/") or path
        self.state = "unknown"
        self.error = ""
        self.n_steps = 0
        self.last_step = -1
        self.rate: float | None = None
        self.view: RunView | None = None
        self._trial: Trial | None = None
        # The steps when the run was looked at.
        self._table = np.empty(0, np.void)
        self._next_look = 0.0
        self._times: deque[tuple[float, int]] = deque()
        self._breakdown: PhaseBreakdown | None = None
        self._lines: dict[int, Line] = {}
        self._next_time = 0.0
        self._envelopes: dict[tuple[object, ...], tuple[float, Envelope]] = {}

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ENDED or self.state == UNREADABLE

    def look(self) -> bool:
        """Take in what was written since; return whether the screen changes."""
        began = time.monotonic()
        if began < self._next_look:
            return False
        before = self.state, self.last_step, self.view, self.error
        try:
            is_new = self._look()
        except (TdbgError, OSError) as error:
            self.state, self.error, is_new = UNREADABLE, str(error), False
            self._trial = None
        took = time.monotonic() - began
        self._next_look = began + max(_LEAST_SECONDS, _SHARE * took)
        after = self.state, self.last_step, self.view, self.error
        return is_new or before != after

    def _look(self) -> bool:
        if self._trial is None:
            self._trial = create_trial(self.path)
            is_new = True
        else:
            is_new = self._trial.refresh()
        trial, state = self._trial, self._trial.status
        is_new |= self.view is None or state != self.view.head.state
        self.error = ""
        if is_new:
            self._table = trial.step_table()
            self.view = view_of(trial, table=self._table)
            head = self.view.head
            self.state, self.n_steps = head.state, head.steps
            self.last_step = -1 if head.last_step is None else head.last_step
            self._note_rate(time.monotonic())
        return is_new

    def _note_rate(self, now: float) -> None:
        times = self._times
        times.append((now, self.n_steps))
        while len(times) > 2 and now - times[0][0] > _RATE_SECONDS:
            times.popleft()
        first, steps = times[0]
        elapsed = now - first
        self.rate = (self.n_steps - steps) / elapsed if elapsed > 1 else None

    @property
    def findings(self) -> list[Finding]:
        """The findings that follow from no other, the one to look at first foremost."""
        episodes = [] if self.view is None else self.view.diagnosis.episodes
        return [each.newest for each in episodes if each.newest.cause is None]

    @property
    def n_following(self) -> int:
        """Number of findings that are there now and follow from those."""
        episodes = [] if self.view is None else self.view.diagnosis.episodes
        following = (each.newest for each in episodes if each.newest.cause is not None)
        return sum(not each.is_over for each in following)

    def n_problems(self, severity: Severity) -> int:
        """Number of problems of that severity that are there now."""
        if self.view is None:
            return 0
        return self.view.diagnosis.counts[severity.label]

    # ---- pictures --------------------------------------------------------------

    def losses(self, columns: int, start: int | None = None) -> list[LossCurve]:
        """The losses, those of training first.

        Args:
            columns: How many columns their envelopes have, at most.
            start: First training step; None: the first.
        """
        trial = self._trial
        if trial is None:
            return []
        found = []
        # *The* loss of the run first, as everywhere.
        names = loss_names(trial)
        for mode in sorted(trial.modes(), key=lambda mode: mode not in TRAINING):
            of_mode = "" if mode in TRAINING else f" ({mode.name})"
            for name in names:
                envelope = self._envelope(trial, (name,), mode, start, columns, "mean")
                if not envelope.rows.any():
                    continue
                last = last_value(trial, name, mode, self._table)
                if last is not None:
                    found.append(LossCurve(name + of_mode, envelope, last.value))
        return found

    def breakdown(self) -> PhaseBreakdown | None:
        """Where the time of training steps went; None if nobody measured that.

        It is read again after twenty times as long as that took.
        """
        now = time.monotonic()
        if self._trial is not None and now >= self._next_time:
            with self._trial.no_refresh():
                self._breakdown = step_breakdown(self._trial)
                self._lines = newest_lines(self._trial.events("change"))
            took = time.monotonic() - now
            self._next_time = now + took + max(_LEAST_SECONDS, _SHARE * took)
        return self._breakdown

    def python_lines(self) -> dict[int, Line]:
        """At which line of Python each rank was most, when ``breakdown`` was read."""
        return self._lines

    def mapped(self) -> list[str]:
        """The collections that a map can show."""
        trial = self._trial
        if trial is None:
            return []
        return [each for each in _MAPPED if trial.tensor_names(collection=each)]

    def layer_map(
        self, collection: str, columns: int, start: int | None = None
    ) -> Envelope | None:
        """The magnitudes of a collection, in the order of the model; None: nothing."""
        trial = self._trial
        if trial is None:
            return None
        names = trial.tensor_names(collection=collection)
        if not names:
            return None
        ordered = tuple(in_forward_order(trial, names))
        return self._envelope(trial, ordered, TRAIN, start, columns, "l2")

    def _envelope(
        self,
        trial: Trial,
        names: Sequence[str],
        mode: ModeKeys,
        start: int | None,
        columns: int,
        field: str,
    ) -> Envelope:
        """An envelope, which stays for twenty times as long as it took to read."""
        now = time.monotonic()
        key = (names, mode, start, columns, field)
        kept = self._envelopes.get(key)
        if kept is not None and now < kept[0]:
            return kept[1]
        envelope = trial.envelope(
            names, mode=mode, start=start, columns=columns, fields=field, by="training"
        )
        if len(self._envelopes) > 100:
            self._envelopes.clear()
        took = time.monotonic() - now
        self._envelopes[key] = now + took + _SHARE * took, envelope
        return envelope


def folder_of(runs: Sequence[WatchedRun]) -> str:
    """Return the folder that all runs share, with its slash; empty for a single run."""
    if len(runs) < 2:
        return ""
    parents = [Path(run.name).parent.as_posix() + "/" for run in runs]
    return parents[0] if len(set(parents)) == 1 and parents[0] != "./" else ""
