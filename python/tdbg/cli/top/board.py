"""What ``tdbg top`` knows of the runs that it shows.

A run is looked at as often as it is worth: what is read of it for the screen is read
again only after twenty times the time that it took, so that looking at a training never
takes more than a twentieth of a core, and usually far less.

Thread safety: none; the thread of the screen.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tdbg.config.collections import CollectionKeys
from tdbg.errors import TdbgError
from tdbg.modes import TRAIN, ModeKeys
from tdbg.run.findings import Finding, Severity
from tdbg.run.model_info import ModelInfo
from tdbg.trial import Envelope, Trial, create_trial

__all__ = ["Series", "WatchedRun", "folder_of"]

# Collections that a map shows, the first one that the run has first.
_MAPPED = tuple(
    key.value
    for key in (
        CollectionKeys.GRADIENTS,
        CollectionKeys.WEIGHTS,
        CollectionKeys.OUTPUTS,
    )
)
ENDED = frozenset({"closed", "dead"})
UNREADABLE = "unreadable"

# A look at a run may take this share of the time, and is made so often at most.
_SHARE = 20
_LEAST_SECONDS = 0.25
# Steps per second are those of so many seconds.
_RATE_SECONDS = 15.0
# Among so many of the newest steps the newest value of a loss is looked for.
_NEWEST_STEPS = 256


@dataclass(frozen=True, slots=True)
class Series:
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
        n_steps: For how many steps it has trained, recorded or not.
        last_step: The newest global step; -1 if there is none.
        rate: Steps of training per second, lately; None: unknown.
        cost: What capture costs, in words.
        findings: Problems, those that are there now before those that are gone, the
            worst first; without what follows from another one.
        n_following: How many problems follow from those.
        is_judged: Whether any rule has judged the run.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = path.rstrip("/") or path
        self.state = "unknown"
        self.error = ""
        self.n_steps = 0
        self.last_step = -1
        self.rate: float | None = None
        self.cost = ""
        self.findings: list[Finding] = []
        self.n_following = 0
        self.is_judged = False
        self._trial: Trial | None = None
        self._next_look = 0.0
        self._times: deque[tuple[float, int]] = deque()
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
        before = self.state, self.last_step, len(self.findings), self.error
        try:
            is_new = self._look()
        except (TdbgError, OSError) as error:
            self.state, self.error, is_new = UNREADABLE, str(error), False
            self._trial = None
        took = time.monotonic() - began
        self._next_look = began + max(_LEAST_SECONDS, _SHARE * took)
        after = self.state, self.last_step, len(self.findings), self.error
        return is_new or before != after

    def _look(self) -> bool:
        if self._trial is None:
            self._trial = create_trial(self.path)
            is_new = True
        else:
            is_new = self._trial.refresh()
        trial = self._trial
        self.state, self.error = trial.status, ""
        if not is_new:
            return False
        steps = trial.steps(show_incomplete_steps=True)
        self.last_step = steps[-1] if steps else -1
        trained = trial.steps(mode=TRAIN, show_incomplete_steps=True)
        self.n_steps = trained[-1] - trained[0] + 1 if trained else 0
        self._note_rate(time.monotonic())
        self.cost = str(trial.overhead())
        self._read_findings(trial)
        return True

    def _note_rate(self, now: float) -> None:
        times = self._times
        times.append((now, self.n_steps))
        while len(times) > 2 and now - times[0][0] > _RATE_SECONDS:
            times.popleft()
        first, steps = times[0]
        elapsed = now - first
        self.rate = (self.n_steps - steps) / elapsed if elapsed > 1 else None

    def _read_findings(self, trial: Trial) -> None:
        newest = {
            (each.rule, each.tensor, each.first_step): each for each in trial.findings()
        }
        following = [each for each in newest.values() if each.cause is not None]
        self.n_following = sum(not each.is_over for each in following)
        self.findings = sorted(
            (each for each in newest.values() if each.cause is None),
            key=lambda each: (each.is_over, -each.severity, each.first_step),
        )
        self.is_judged = bool(trial.rule_statuses())

    def n_findings(self, severity: Severity) -> int:
        """How many problems of that severity are there now."""
        return sum(
            each.severity is severity and not each.is_over for each in self.findings
        )

    # ---- pictures --------------------------------------------------------------

    def losses(self, columns: int, start: int | None = None) -> list[Series]:
        """The losses, those of training first.

        Args:
            columns: How many columns their envelopes have, at most.
            start: First global step; None: the first.
        """
        trial = self._trial
        if trial is None:
            return []
        found = []
        for mode in trial.modes():
            names = trial.tensor_names(
                mode=mode, collection=CollectionKeys.LOSSES.value
            )
            of_mode = "" if mode is TRAIN else f" ({mode.name})"
            for name in names:
                envelope = self._envelope(trial, (name,), mode, start, columns, "mean")
                if not envelope.rows.any():
                    continue
                newest = self._newest(trial, name, mode, envelope)
                found.append(Series(name + of_mode, envelope, newest))
        return found

    def _newest(
        self, trial: Trial, name: str, mode: ModeKeys, envelope: Envelope
    ) -> float:
        """The newest value: of the newest step if there is one lately."""
        start = max(0, self.last_step + 1 - _NEWEST_STEPS)
        latest = self._envelope(trial, (name,), mode, start, _NEWEST_STEPS, "mean")
        shown = latest if latest.rows.any() else envelope
        last = np.flatnonzero(shown.rows[0])[-1]
        is_bad = shown.bad[0, last] > 0
        return float("nan") if is_bad else float(shown.mean["mean"][0, last])

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
        infos = trial.model_info()
        ordered = _in_order(names, infos[-1] if infos else None)
        if not ordered:
            return None
        return self._envelope(trial, tuple(ordered), TRAIN, start, columns, "l2")

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
            names, mode=mode, start=start, columns=columns, fields=field
        )
        if len(self._envelopes) > 100:
            self._envelopes.clear()
        took = time.monotonic() - now
        self._envelopes[key] = now + took + _SHARE * took, envelope
        return envelope


def _in_order(names: Sequence[str], info: ModelInfo | None) -> list[str]:
    """Sort tensors as the model has what they belong to, else by name and number."""
    places: dict[str, int] = {}
    if info is not None:
        for name in (*info.parameters, *info.modules):
            places.setdefault(name, len(places))

    def key(name: str) -> tuple[object, ...]:
        bare = name.removeprefix("gradient/")
        place = places.get(bare, places.get(_module_of(bare), len(places)))
        return place, [
            (0, int(part), "") if part.isdigit() else (1, 0, part)
            for part in re.split(r"(\d+)", name)
        ]

    return sorted(names, key=key)


def _module_of(name: str) -> str:
    """The module of an output or input: ``fc1`` of ``fc1_output_0``."""
    return re.sub(r"_(?:output|input)_.*$", "", name)


def folder_of(runs: Sequence[WatchedRun]) -> str:
    """What the names of all runs begin with, up to a slash; nothing of a single one."""
    if len(runs) < 2:
        return ""
    parents = [Path(run.name).parent.as_posix() + "/" for run in runs]
    return parents[0] if len(set(parents)) == 1 and parents[0] != "./" else ""
