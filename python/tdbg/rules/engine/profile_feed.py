"""Cuts the profile of a run into bins: each is made once, when it is complete.

A row is written about a second after its time, one of a device about 5 seconds.  So a
bin is complete once the data reach a little beyond that, or when the run has ended.  A
row that comes later counts nowhere.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tdbg.config.needs import every_need
from tdbg.modes import TRAINING, ModeKeys
from tdbg.rules.engine.sample_ledger import SampleLedger
from tdbg.rules.profile import BIN_NS, Bin, ProfileWindow, Rows
from tdbg.rules.rule import Rule
from tdbg.rules.samples import SampleFacts
from tdbg.rules.window import Window
from tdbg.run.json_values import list_of
from tdbg.run.profile_tables import Phase
from tdbg.run.told_phases import ToldPhases, spent_phases, told_phases

if TYPE_CHECKING:
    from tdbg.trial import EventRecord, Trial

__all__ = ["ProfileFeed"]

# How far the slowest worker's rows must reach beyond a bin, and the fastest one's: a
# worker whose steps are long, or that has stopped, holds up nobody.
MARGIN_NS = 6 * 10**9
LATEST_NS = 10 * 10**9
# Bins of a window, at most.
WINDOW_BINS = 60
# How often a live run is looked at.
POLL_SECONDS = 1.0
# Steps and time after the start, a new data loader or a compilation that are not usual.
WARM_STEPS = 20
WARM_NS = 10 * 10**9

# What several rules read, beside what they are about.
ALWAYS = frozenset({"loader", "system", "process", "gpu", "collective"})
# Its rows go into no bin: there may be 100,000 of them.
FINGERPRINT = "fingerprint"
# The collective operation by which ranks average their gradients.
AVERAGES = "ddp_all_reduce"
# Events that say when something was.
TIMED = ("gc", "compilation", "checkpoint", "python_lines")

# More than a time in seconds is off by.
SLACK_NS = 1_000_000

_TRAINING = [mode.value for mode in TRAINING]
# What tells the series of a table apart, besides the worker; tables of intervals are
# not here.
_KEYS: Mapping[str, str] = {
    **dict.fromkeys(("system", "core"), ""),
    **dict.fromkeys(("disk", "network"), "instance"),
    "gpu": "instance",
    "process": "pid",
}
_WRITER = re.compile(r"train-(\d+)-")


@dataclass(slots=True)
class _WarmUp:
    """How far a worker has warmed up: counts its steps of training."""

    n_steps: int = 0
    first_ns: int = 0
    # Numbers of the steps up to which nothing is warm, and up to which none is usual.
    cold_until: int = WARM_STEPS
    unusual_until: int = -1
    epochs: dict[int, int] = field(default_factory=dict)
    # Of epochs whose first step has not ended yet: whether their loader is new.
    begun: list[bool] = field(default_factory=list)

    def masks(self, rows: Rows, batches: Rows) -> NDArray[np.bool_]:
        """Return which steps come after the beginning, are warm, and are usual.

        Args:
            rows: The next steps of training of the worker.
            batches: The batches that it got, up to the last of these steps.
        """
        number = self.n_steps + np.arange(len(rows))
        if not self.n_steps and len(rows):
            self.first_ns = int(rows["time"][0])
        self.n_steps += len(rows)
        cold = np.where(rows["compile_ns"] > 0, number + WARM_STEPS, -1)
        paused = (rows["checkpoint_ns"] > 0) | (rows["evaluation_ns"] > 0)
        unusual = np.where(paused, number + 1, -1)
        for at, is_new_loader in self._epochs(rows, batches):
            unusual[at] = max(unusual[at], number[at])
            if is_new_loader:
                cold[at] = max(cold[at], number[at] + WARM_STEPS)
        cold, self.cold_until = _reach(cold, self.cold_until)
        unusual, self.unusual_until = _reach(unusual, self.unusual_until)
        has_begun = rows["time"] - self.first_ns >= WARM_NS
        has_begun &= number >= WARM_STEPS
        is_warm = has_begun & (number > cold)
        return np.stack([has_begun, is_warm, is_warm & (number > unusual)])

    def _epochs(self, rows: Rows, batches: Rows) -> list[tuple[int, bool]]:
        """Return the steps that begin an epoch, and whether their loader is new."""
        found = [(0, is_new) for is_new in self.begun] if len(rows) else []
        if len(rows):
            self.begun.clear()
        for batch in batches:
            loader, epoch = int(batch["loader"]), int(batch["epoch"])
            known = self.epochs.get(loader)
            if known == epoch:
                continue
            self.epochs[loader] = epoch
            at = int(np.searchsorted(rows["time"], batch["time"]))
            if at < len(rows):
                found.append((at, known is None))
            else:
                self.begun.append(known is None)
        return found


def _reach(until: NDArray[Any], before: int) -> tuple[NDArray[Any], int]:
    reached = np.maximum.accumulate(np.concatenate([[before], until]))[1:]
    return reached, int(reached[-1]) if len(reached) else before


@dataclass(slots=True)
class _Facts:
    """The content of events, sorted by what they are about."""

    of_wall: Callable[[int], int]
    machine: dict[str, Any] = field(default_factory=dict)
    loaders: dict[tuple[int, int], Mapping[str, Any]] = field(default_factory=dict)
    collective_kinds: tuple[str, ...] = ()
    _timed: list[tuple[int, str, Mapping[str, Any]]] = field(default_factory=list)
    # Of windows that are being worked out: their operators, by worker and id.
    _operators: dict[tuple[int, str], list[Mapping[str, Any]]] = field(
        default_factory=dict
    )

    def add(self, event: EventRecord) -> None:
        data, what = event.data, event.data.get("what")
        match = _WRITER.match(event.writer)
        worker = int(match[1]) if match else 0
        if what == "machine":
            self.machine = self.machine or dict(data)
        elif what == "loader" and isinstance(data.get("loader"), int):
            self.loaders[worker, data["loader"]] = data
        elif what == "collectives":
            self.collective_kinds = tuple(map(str, list_of(data.get("kinds"))))
        elif what == "operators":
            key = worker, str(data.get("window"))
            self._operators.setdefault(key, []).append(data)
        elif what == "profile_window" and data.get("state") == "ended":
            found = self._operators.pop((worker, str(data.get("id"))), [])
            # It is known from when it is written down on, not from when it was taken.
            told = {**data, "rank": worker, "operators": found}
            self._timed.append((self.of_wall(event.wall_ns), "window", told))
        elif what in TIMED and isinstance(data.get("start_ns"), int):
            self._timed.append((data["start_ns"], str(what), {**data, "rank": worker}))

    def between(self, start: int, end: int) -> dict[str, list[Mapping[str, Any]]]:
        found: dict[str, list[Mapping[str, Any]]] = {}
        for at, what, data in self._timed:
            if start <= at < end:
                found.setdefault(what, []).append(data)
        return found


def _overlapping(name: str, rows: Rows, start: int, end: int) -> Rows:
    """Return the rows of a bin; of a table with series, with the last before it."""
    first, last = np.searchsorted(rows["time"], [start, end])
    key = _KEYS.get(name)
    if key is None:
        return rows[first:last]
    before = rows[:first]
    names = before["worker"].astype(np.int64)
    if key:
        _, numbers = np.unique(before[key], return_inverse=True)
        names = names * (1 + len(before)) + numbers
    _, last_of_key = np.unique(names[::-1], return_index=True)
    kept = np.sort(first - 1 - last_of_key)
    return np.concatenate([rows[kept], rows[first:last]])


class ProfileFeed:
    """Reads the profile of a run and makes windows of bins for the rules that ask.

    Args:
        trial: The run.
        rules: All rules; those whose ``needs`` name tables of the profile get windows.
        max_bins: Largest number of new bins in a window.

    Attributes:
        seen: The tables that had rows so far.
        failures: Exceptions of ``needs`` and look-backs, by index of the rule.
    """

    def __init__(
        self, trial: Trial, rules: Sequence[Rule], max_bins: int | None = None
    ) -> None:
        self._trial = trial
        self._max_bins = max_bins or WINDOW_BINS
        self.seen: set[str] = set()
        self.failures: dict[int, Exception] = {}
        self._tables: dict[int, frozenset[str]] = {}
        self._lookback_bins = self._lookback_steps = 0
        for i, rule in enumerate(rules):
            self._add(i, rule)
        self._looked_at = -math.inf
        self._origin: int | None = None
        # Number of the next bin, and the first one that is not complete.
        self._next = self._until = 0
        # The time of each worker's newest step.
        self._newest: dict[int, int] = {}
        self._window = ProfileWindow()
        self._warm_ups: dict[int, _WarmUp] = {}
        self._last_step = (-1, ModeKeys.GLOBAL)
        self._samples = SampleLedger()
        # The phases in which some step has spent time.
        self._spent: set[Phase] = set()

    @property
    def n_bins(self) -> int:
        """How many bins were read so far."""
        return self._next

    @property
    def told(self) -> ToldPhases:
        """The phases that the run has told so far."""
        return told_phases(self._trial.configuration(), self._spent)

    @property
    def readers(self) -> tuple[int, ...]:
        """The rules that read the profile, by index."""
        return tuple(self._tables)

    def window(self) -> Window:
        """Return the current window; its tables of tensors are empty."""
        bins = self._window.bins[self._window.start :]
        return Window(
            first=bins[0].first_step,
            last=bins[-1].last_step,
            n_workers=bins[-1].n_workers,
            run=str(getattr(self._trial, "path", "")),
            profile=self._window,
            _observed=self._trial.observations,
            _training_step=self._training_step,
        )

    def _training_step(self, step: int) -> int:
        (found,) = self._trial.training_steps_at([step])
        return int(found)

    def advance(self) -> bool:
        """Read the next bins; return False if none is complete."""
        if not self._tables:
            return False
        if self._next >= self._until:
            self._look()
        if self._next >= self._until:
            return False
        first, self._next = self._next, min(self._until, self._next + self._max_bins)
        new = self._read(first, self._next)
        old = self._kept()
        self._window = ProfileWindow(bins=(*old, *new), start=len(old))
        return True

    def _kept(self) -> tuple[Bin, ...]:
        """The bins that some rule may look back at."""
        bins = self._window.bins
        n_steps, n = 0, 0
        while n < len(bins) and (
            n < self._lookback_bins or n_steps < self._lookback_steps
        ):
            n += 1
            n_steps += int((bins[-n].usual_steps["worker"] == 0).sum())
        return bins[len(bins) - n :]

    def _start_of(self, number: int) -> int:
        return (self._origin or 0) + number * BIN_NS

    def _look(self) -> None:
        """Find out which bins are complete."""
        ended, now = self._trial.loaded_all_steps, time.monotonic()
        if not ended and now - self._looked_at < POLL_SECONDS:
            return
        self._looked_at = now
        if self._origin is None:
            if "step" not in self._trial.profile.tables():
                return
            rows = self._rows("step", 0, None)
            rows = rows[rows["worker"] == 0]
            if not len(rows):
                return
            self._origin = int(rows["time"][0] - rows["duration_ns"][0])
        rows = self._rows("step", self._start_of(self._next), None)
        for worker in np.unique(rows["worker"]).tolist():
            self._newest[worker] = int(rows["time"][rows["worker"] == worker].max())
        newest = self._newest.values()
        if ended:
            self._until = 1 + (max(newest) - self._origin) // BIN_NS
            return
        reached = max(min(newest) - MARGIN_NS, max(newest) - LATEST_NS)
        self._until = max(self._next, (reached - self._origin) // BIN_NS)

    def _rows(self, table: str, start: int, end: int | None) -> Rows:
        """Return the rows of a table from one time on and before another, by time."""
        profile = self._trial.profile
        # Seconds are too coarse to cut by: the range is a little wider.
        bounds = np.array([start - SLACK_NS, (end or 0) + SLACK_NS])
        first, last = profile.seconds(bounds).tolist()
        rows = profile.table(table, time=(first, None if end is None else last))
        is_inside = rows["time"] >= start
        if end is not None:
            is_inside &= rows["time"] < end
        rows = rows[is_inside]
        if len(rows):
            self.seen.add(table)
        return rows

    def _read(self, first: int, until: int) -> list[Bin]:
        """Return the bins from one number to another."""
        start, end = self._start_of(first), self._start_of(until)
        steps = self._rows("step", start, end)
        needed = ALWAYS.union(*self._tables.values()) - {"step"}
        tables = {
            name: self._rows(name, start - BIN_NS * (name in _KEYS), end)
            for name in needed
        }
        masks = self._masks(steps, tables["loader"])
        facts = self._facts()
        found = []
        for number in range(first, until):
            bounds = self._start_of(number), self._start_of(number + 1)
            at = slice(*np.searchsorted(steps["time"], bounds))
            of_bin = {
                name: _overlapping(name, rows, *bounds) for name, rows in tables.items()
            }
            found.append(self._bin(number, steps[at], masks[:, at], of_bin, facts))
        return found

    def _bin(
        self,
        number: int,
        steps: Rows,
        masks: NDArray[np.bool_],
        tables: Mapping[str, Rows],
        facts: _Facts,
    ) -> Bin:
        """Return the next bin."""
        start, end = self._start_of(number), self._start_of(number + 1)
        first_step, last_step, mode = self._steps_of(steps)
        kept = {name: own for name, own in tables.items() if name != FINGERPRINT}
        spent = spent_phases(steps, tables["loader"])
        # Whether steps tell of waiting may change: those that capture see more.
        self._spent = self._spent - {Phase.DATA_WAIT} | spent
        configuration = self._trial.configuration()
        return Bin(
            number=number,
            start_ns=start,
            end_ns=end,
            first_step=first_step,
            last_step=last_step,
            mode=mode,
            steps=steps,
            has_begun=masks[0],
            is_warm=masks[1],
            is_judged=masks[2],
            n_workers=max(1, len(self._trial.workers())),
            machine=facts.machine,
            loaders=facts.loaders,
            collective_kinds=facts.collective_kinds,
            events=facts.between(start, end),
            start_seconds=float(self._trial.profile.seconds(start)),
            tables=kept,
            samples=self._samples_of(tables, end, facts),
            configuration=configuration,
            told=told_phases(configuration, self._spent),
        )

    def _samples_of(
        self, tables: Mapping[str, Rows], end: int, facts: _Facts
    ) -> Mapping[str, SampleFacts]:
        """Return what is known of the samples at the end of a bin."""
        if FINGERPRINT not in tables:
            return {}
        kinds = facts.collective_kinds
        of_gradients = kinds.index(AVERAGES) if AVERAGES in kinds else -1
        return self._samples.add(
            tables[FINGERPRINT],
            tables["loader"],
            end,
            facts.loaders,
            n_workers=max(1, len(self._trial.workers())),
            averages=bool((tables["collective"]["kind"] == of_gradients).any()),
        )

    def _steps_of(self, steps: Rows) -> tuple[int, int, ModeKeys]:
        """Return the first worker's first and last step in a bin, and the mode of it.

        Where it has none there, its last one before it.
        """
        last, mode = self._last_step
        first = last
        own = steps[(steps["worker"] == 0) & np.isin(steps["mode"], _TRAINING)]
        if len(own):
            first, last = int(own["global_step"].min()), int(own["global_step"].max())
            mode = ModeKeys(int(own["mode"][own["global_step"].argmax()]))
        self._last_step = last, mode
        return first, last, mode

    def _masks(self, steps: Rows, batches: Rows) -> NDArray[np.bool_]:
        """Return ``has_begun``, ``is_warm`` and ``is_judged`` of all workers."""
        masks = np.zeros((3, len(steps)), bool)
        is_trained = np.isin(steps["mode"], _TRAINING)
        for worker in np.unique(steps["worker"]).tolist():
            at = np.flatnonzero(is_trained & (steps["worker"] == worker))
            warm_up = self._warm_ups.setdefault(worker, _WarmUp())
            own = batches[batches["worker"] == worker]
            masks[:, at] = warm_up.masks(steps[at], own)
        return masks

    def _facts(self) -> _Facts:
        """Return what events say of the machine, the loaders and the time."""
        facts = _Facts(self._trial.profile.clock.of_wall)
        for event in self._trial.events():
            facts.add(event)
        return facts

    def _add(self, i: int, rule: Rule) -> None:
        try:
            needs = every_need(rule.needs)
            tables = frozenset[str]().union(*(need.profile for need in needs))
            bins, steps = int(rule.lookback_bins), int(rule.lookback_steps)
        except Exception as error:  # User code: may raise anything.
            self.failures[i] = error
            return
        if tables:
            self._tables[i] = tables
            self._lookback_bins = max(self._lookback_bins, bins)
            self._lookback_steps = max(self._lookback_steps, steps)
