"""A timeline: processes with tracks of slices, and counters.

Thread safety: values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Counter", "Event", "SliceTrack", "Timeline", "nested_lanes"]

Times = NDArray[np.int64]


class Event(NamedTuple):
    """The beginning of a slice, or its end.

    Attributes:
        time: In ns, on the run's clock.
        slice: Its place in the track.
        begins: Whether it begins.
    """

    time: int
    slice: int
    begins: bool


@dataclass(frozen=True, slots=True, eq=False)
class SliceTrack:
    """A row of the timeline.

    Attributes:
        process: Number of the process that it belongs to.
        name: What stands before the row.
        start: When each slice begins, on the run's clock in ns.  Shape (n,).
        duration: How long each lasts, in ns.  Shape (n,).
        names: What each is called.
        notes: What else is known of each: text by name; empty: nothing of any.
    """

    process: int
    name: str
    start: Times
    duration: Times
    names: Sequence[str]
    notes: Sequence[dict[str, str | int | float]] = ()

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, eq=False)
class Counter:
    """A number over time.

    Attributes:
        process: Number of the process that it belongs to.
        name: What it is.
        unit: Its unit; empty: none.
        time: When it was what it was, on the run's clock in ns.  Shape (n,).
        values: Finite numbers.  Shape (n,).
    """

    process: int
    name: str
    unit: str
    time: Times
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.time)


@dataclass(slots=True)
class Timeline:
    """What is drawn of a run.

    Attributes:
        processes: Their names, by number, in the order in which they are drawn.
        tracks: Rows of slices, in the order in which they are drawn.
        counters: Likewise, below the rows.
        start_ns: A time on the run's clock, not after anything here.
        wall_ns: The same moment in ns since 1970 UTC.
    """

    processes: dict[int, str] = field(default_factory=dict)
    tracks: list[SliceTrack] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)
    start_ns: int = 0
    wall_ns: int = 0

    @property
    def n_slices(self) -> int:
        """How many slices there are."""
        return sum(map(len, self.tracks))

    @property
    def n_values(self) -> int:
        """How many values of counters there are."""
        return sum(map(len, self.counters))


def nested_lanes(track: SliceTrack) -> list[list[Event]]:
    """Return the slices of a track as lanes in each of which they nest.

    A slice that overlaps another one without lying in it goes to a further lane.  In a
    lane, each end belongs to the slice that began last.
    """
    order = np.lexsort((-track.duration, track.start)).tolist()
    starts = track.start.tolist()
    ends = (track.start + np.maximum(track.duration, 0)).tolist()
    lanes: list[_Lane] = []
    for i in order:
        for lane in lanes:
            if lane.take(i, starts[i], ends[i]):
                break
        else:
            lanes.append(_Lane())
            lanes[-1].take(i, starts[i], ends[i])
    return [list(lane.close()) for lane in lanes]


class _Lane:
    """Events that nest, and the slices that have not ended."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._open: list[tuple[int, int]] = []  # End, and slice.

    def take(self, number: int, start: int, end: int) -> bool:
        """Add a slice that begins at or after all before it; False: it does not fit."""
        while self._open and self._open[-1][0] <= start:
            self._end_last()
        if self._open and self._open[-1][0] < end:
            return False
        self._events.append(Event(start, number, begins=True))
        self._open.append((end, number))
        return True

    def _end_last(self) -> None:
        end, number = self._open.pop()
        self._events.append(Event(end, number, begins=False))

    def close(self) -> Iterator[Event]:
        """Return all events."""
        while self._open:
            self._end_last()
        return iter(self._events)
