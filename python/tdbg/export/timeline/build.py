"""Draws a run as a timeline: what stands where, and when.

Thread safety: functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.errors import ConfigurationError
from tdbg.export.selection import Selection, statistic_column
from tdbg.export.timeline.model import Counter, SliceTrack, Timeline
from tdbg.modes import ModeKeys
from tdbg.run.profile_tables import PHASE_COLUMNS
from tdbg.trial import Profile, Trial

__all__ = ["TimelineOptions", "timeline_of"]

Rows = NDArray[np.void]
Times = NDArray[np.int64]
Steps = tuple[int | None, int | None]

_MODES = {mode.value: mode.name for mode in ModeKeys}
# Process numbers: the run, the hosts, the ranks.
_RUN, _HOSTS, _RANKS = 1, 2, 1000
# What the counters of a device are called.
_RESOURCES = {
    "cpu": "processors busy",
    "gpu": "busy",
    "memory": "memory used",
    "gpu_memory": "memory used",
    "i/o": "busy",
    "network": "traffic",
}
_DEVICE_STREAM, _LOADER_WORKER = 1 << 63, 1 << 62


@dataclass(frozen=True, slots=True)
class TimelineOptions:
    """What of a run is drawn.

    Attributes:
        steps: First and last global step; None: all.
        regex: Of which tensors statistics are drawn; None: of all.
        statistics: Names of statistics that are drawn as counters.

    Raises:
        ConfigurationError: If there is no such statistic, or no such range.
    """

    steps: Steps | None = None
    regex: str | Iterable[str] | None = None
    statistics: Iterable[str] = ()

    def __post_init__(self) -> None:
        """Check what does not need the run."""
        checked = Selection(regex=self.regex, statistics=self.statistics)
        object.__setattr__(self, "statistics", checked.statistics)
        if self.steps is not None:
            first, last = self.steps
            if first is not None and last is not None and last < first:
                msg = f"steps must be (first, last), not {self.steps!r}"
                raise ConfigurationError(msg)


def timeline_of(trial: Trial, options: TimelineOptions | None = None) -> Timeline:
    """Return the timeline of a run, of all ranks and hosts, on one clock.

    Its processes are the run (findings, losses, statistics), each host (its devices)
    and each rank (steps, phases, loaders, communication, windows, spans).

    Args:
        trial: The run.
        options: What is drawn; None: everything but statistics of tensors.
    """
    options = options or TimelineOptions()
    with trial.no_refresh():
        drawing = _Drawing(trial, options)
        return drawing.timeline()


class _Drawing:
    def __init__(self, trial: Trial, options: TimelineOptions) -> None:
        self._trial = trial
        self._options = options
        self._profile: Profile = trial.profile
        self._clock = self._profile.clock
        table = trial.step_table()
        self._steps = table["step"]
        self._ends = table["wall_ns"] - self._clock.wall_ns(0)
        self._table = table
        self._drawn = Timeline()

    def timeline(self) -> Timeline:
        drawn = self._drawn
        drawn.processes[_RUN] = "run"
        hosts = sorted({use.node for use in self._profile.device_uses()})
        drawn.processes |= {_HOSTS + host: f"host {host}" for host in hosts}
        names = self._trial.workers()
        drawn.processes |= {_RANKS + i: name for i, name in enumerate(names)}
        self._add_findings()
        for worker in range(len(names)):
            drawn.tracks += [each for each in self._rows_of(worker) if len(each)]
        drawn.counters += [each for each in self._counters() if len(each)]
        starts = [int(track.start.min()) for track in drawn.tracks]
        starts += [int(counter.time.min()) for counter in drawn.counters]
        begin = self._clock.of_wall(self._clock.start_ns)
        drawn.start_ns = min(starts, default=begin)
        drawn.wall_ns = self._clock.wall_ns(drawn.start_ns)
        return drawn

    # --- The run ----------------------------------------------------------------

    def _time_of(self, steps: Times) -> Times:
        """When global steps ended, recorded or not; the nearest before counts."""
        if not len(self._steps):
            begin = self._clock.of_wall(self._clock.start_ns)
            return np.full(len(steps), begin, np.int64)
        at = np.searchsorted(self._steps, steps, side="right") - 1
        found: Times = self._ends[np.maximum(at, 0)]
        return found

    def _is_chosen(self, steps: Times) -> NDArray[np.bool_]:
        chosen = np.ones(len(steps), np.bool_)
        if self._options.steps is not None:
            first, last = self._options.steps
            if first is not None:
                chosen &= steps >= first
            if last is not None:
                chosen &= steps <= last
        return chosen

    def _add_findings(self) -> None:
        """A slice for each finding, from its first step to its last one so far."""
        found: dict[tuple[str, str, int], Any] = {}
        for finding in self._trial.findings():
            found[finding.identity] = finding
        findings = list(found.values())
        if not findings:
            return
        first = np.array([f.first_global_step or 0 for f in findings], np.int64)
        last = np.array([f.last_global_step or 0 for f in findings], np.int64)
        chosen = self._is_chosen(first)
        start = self._time_of(first)
        track = SliceTrack(
            _RUN,
            "findings",
            start[chosen],
            (self._time_of(last) - start)[chosen],
            [
                f"{f.rule} ({f.severity.name.lower()})"
                for f, is_in in zip(findings, chosen, strict=True)
                if is_in
            ],
            [
                {"tensor": f.tensor, "message": f.message, "step": f.step}
                for f, is_in in zip(findings, chosen, strict=True)
                if is_in
            ],
        )
        if len(track):
            self._drawn.tracks.append(track)

    def _counters(self) -> Iterator[Counter]:
        for loss in self._trial.losses():
            yield self._of_steps(f"{loss.name} ({loss.mode.name})", loss.steps,
                                 loss.values)  # fmt: skip
        for scalar in self._trial.scalars().values():
            yield self._of_steps(scalar.name, scalar.steps, scalar.values)
        yield from self._statistics()
        for use in self._profile.device_uses():
            # Rates have no value for the first sample.
            chosen = np.isfinite(use.values)
            chosen &= self._is_within(use.time)
            scale, unit = (100.0, "%") if use.unit == "share" else (1.0, use.unit)
            what = _RESOURCES[use.resource]
            if use.resource == "i/o" and not use.device:
                what = "processors waiting for disks"
            name = f"{use.device} {what}" if use.device else what
            yield Counter(_HOSTS + use.node, name, unit, use.time[chosen],
                          scale * use.values[chosen])  # fmt: skip

    def _is_within(self, time: Times) -> NDArray[np.bool_]:
        if self._options.steps is None or not len(self._table):
            return np.ones(len(time), np.bool_)
        chosen = self._table[self._is_chosen(self._steps)]
        if not len(chosen):
            return np.zeros(len(time), np.bool_)
        ends = chosen["wall_ns"] - self._clock.wall_ns(0)
        first = int(ends[0] - chosen["duration_ns"][0])
        return (time >= first) & (time <= int(ends[-1]))

    def _of_steps(
        self, name: str, steps: Times, values: NDArray[np.float64]
    ) -> Counter:
        chosen = self._is_chosen(steps) & np.isfinite(values)
        return Counter(_RUN, name, "", self._time_of(steps[chosen]), values[chosen])

    def _statistics(self) -> Iterator[Counter]:
        requested = tuple(self._options.statistics)
        if not requested:
            return
        names = self._trial.tensor_names(regex=self._options.regex)
        table = self._trial.statistics(names)
        for name in requested:
            columns = statistic_column(table, name)
            for tensor, values in zip(table.names, columns, strict=True):
                yield self._of_steps(
                    f"{tensor} {name}", table.steps, np.asarray(values, np.float64)
                )

    # --- A rank -----------------------------------------------------------------

    def _rows_of(self, worker: int) -> Iterator[SliceTrack]:
        steps = self._options.steps
        process = _RANKS + worker
        rows = self._profile.steps(worker=worker, steps=steps)
        if len(rows):
            yield _steps(process, rows)
            yield _phases(process, rows)
        elif worker == 0:
            yield self._recorded_steps(process)
        yield from _loaders(process, self._profile.workers(worker=worker, steps=steps))
        collectives = self._profile.collectives(worker=worker, steps=steps)
        yield _collectives(process, collectives)
        yield self._windows(process, worker)
        yield from _spans(process, self._profile.spans(worker=worker, steps=steps))

    def _recorded_steps(self, process: int) -> SliceTrack:
        """Steps of a run without a profile, from their records."""
        chosen = self._is_chosen(self._steps)
        table, ends = self._table[chosen], self._ends[chosen]
        return SliceTrack(
            process,
            "steps",
            ends - table["duration_ns"],
            table["duration_ns"],
            [_MODES.get(mode, "?") for mode in table["mode"].tolist()],
            [{"step": step} for step in table["step"].tolist()],
        )

    def _windows(self, process: int, worker: int) -> SliceTrack:
        found = [
            window
            for window in self._profile.windows()
            if window.worker == worker and 0 <= window.start_ns <= window.end_ns
        ]
        start = np.array([window.start_ns for window in found], np.int64)
        chosen = self._is_within(start)
        found = [window for window, is_in in zip(found, chosen, strict=True) if is_in]
        end = np.array([window.end_ns for window in found], np.int64)
        return SliceTrack(
            process,
            "profile windows",
            start[chosen],
            end - start[chosen],
            [", ".join(window.kinds) or "window" for window in found],
            [{"id": window.id, "reason": window.reason} for window in found],
        )


def _steps(process: int, rows: Rows) -> SliceTrack:
    return SliceTrack(
        process,
        "steps",
        rows["time"] - rows["duration_ns"],
        rows["duration_ns"],
        [_MODES.get(mode, "?") for mode in rows["mode"].tolist()],
        [{"step": step} for step in rows["global_step"].tolist()],
    )


def _phases(process: int, rows: Rows) -> SliceTrack:
    """The phases of each step, summed: in one order, whatever theirs was."""
    columns = list(PHASE_COLUMNS.items())
    columns = [*columns[1:], columns[0]]  # The rest of a step stands last.
    durations = np.stack([rows[column] for _, column in columns], axis=1)
    ends = np.cumsum(durations, axis=1)
    begun = rows["time"] - rows["duration_ns"]
    starts = begun[:, None] + ends - durations
    step, phase = np.nonzero(durations > 0)
    words = [each.name.lower().replace("_", " ") for each, _ in columns]
    return SliceTrack(
        process,
        "phases, summed in each step",
        starts[step, phase],
        durations[step, phase],
        [words[i] for i in phase.tolist()],
    )


def _loaders(process: int, rows: Rows) -> Iterator[SliceTrack]:
    for loader in np.unique(rows["loader"]).tolist():
        of_loader = rows[rows["loader"] == loader]
        waits = of_loader[of_loader["wait_ns"] > 0]
        yield SliceTrack(
            process,
            f"loader {loader}: waiting",
            waits["time"] - waits["wait_ns"],
            waits["wait_ns"],
            ["wait"] * len(waits),
            [{"ready": depth} for depth in waits["depth"].tolist()],
        )
        fetched = of_loader[of_loader["fetch_ns"] > 0]
        for number in np.unique(fetched["loader_worker"]).tolist():
            own = fetched[fetched["loader_worker"] == number]
            yield SliceTrack(
                process,
                f"loader {loader}, worker {number}: fetching (at the latest)",
                _latest_starts(own["time"], own["fetch_ns"]),
                own["fetch_ns"],
                ["fetch"] * len(own),
            )


def _latest_starts(times: Times, durations: Times) -> Times:
    """When fetches began at the latest.

    A batch was fetched before its consumer got it, and before its worker fetched the
    next one; when exactly is not known.
    """
    starts = np.empty(len(times), np.int64)
    after = np.iinfo(np.int64).max
    for i in range(len(times) - 1, -1, -1):
        after = min(int(times[i]), after) - int(durations[i])
        starts[i] = after
    return starts


def _collectives(process: int, rows: Rows) -> SliceTrack:
    return SliceTrack(
        process,
        "communication",
        rows["time"] - rows["duration_ns"],
        rows["duration_ns"],
        [f"collective {kind}" for kind in rows["kind"].tolist()],
        [
            {"sequence": sequence, "bytes": n_bytes}
            for sequence, n_bytes in zip(
                rows["sequence"].tolist(), rows["bytes"].tolist(), strict=True
            )
        ],
    )


def _spans(process: int, rows: Rows) -> Iterator[SliceTrack]:
    for thread in np.unique(rows["thread"]).tolist():
        own = rows[rows["thread"] == thread]
        yield SliceTrack(
            process,
            _thread_name(thread),
            own["start_ns"],
            own["duration_ns"],
            own["name"].tolist(),
        )


def _thread_name(thread: int) -> str:
    if thread & _DEVICE_STREAM:
        device = thread >> 32 & 0x3FFFFFFF
        return f"device {device}, stream {thread & 0xFFFFFFFF}"
    if thread & _LOADER_WORKER:
        return f"loader worker {thread & 0xFFFFFFFF}"
    return f"thread {thread}" if thread else "spans"
