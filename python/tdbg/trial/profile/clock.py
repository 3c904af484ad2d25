"""The clocks of a run's hosts, as one.

Rows of a profile carry the monotonic clock of their host.  Each step record has that
clock beside the wall clock: the median of the difference, over the steps of all
workers of one boot of a host, puts the hosts on one time.

Thread safety: values; build and ask them under the trial's lock.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tdbg.errors import ConfigurationError
from tdbg.trial.writers import WriterReader

__all__ = ["Moment", "RunClock", "TimeRange"]

#: Seconds since the run began, or a time of day.
Moment = float | dt.datetime
TimeRange = tuple[Moment | None, Moment | None]

# Of the step records at each end of a writer; the others say the same.
_ANCHORS = 500
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RunClock:
    """Converts between the clocks of a run.

    Attributes:
        start_ns: Wall time at which the first writer began, in ns since 1970 UTC.
        nodes: A key for each boot of a host, in the order of the workers.
    """

    def __init__(self, writers: Sequence[WriterReader]) -> None:
        created = [int(writer.identity["created_ns"]) for writer in writers]
        self.start_ns = min(created, default=0)
        self._node_of: dict[str, bytes] = {}
        anchors: dict[bytes, list[int]] = {}
        for writer in writers:
            node = _node(writer)
            self._node_of[writer.name] = node
            anchors.setdefault(node, []).extend(_anchors(writer))
        self.nodes = list(anchors)
        self._offsets = {
            node: int(np.median(found)) if found else None
            for node, found in anchors.items()
        }
        self._resolve(dict(zip((w.name for w in writers), created, strict=True)))

    def _resolve(self, created: dict[str, int]) -> None:
        """Give nodes without a step an offset as good as there is."""
        known = [offset for offset in self._offsets.values() if offset is not None]
        for node, offset in self._offsets.items():
            if offset is None and node == _this_boot():
                self._offsets[node] = time.time_ns() - time.monotonic_ns()
            elif offset is None:
                began = min(created[name] for name in self._writers_of(node))
                self._offsets[node] = known[0] if known else began
        self._reference = next(iter(self._offsets.values()), 0) or 0

    def _writers_of(self, node: bytes) -> list[str]:
        return [name for name, own in self._node_of.items() if own == node]

    def node_of(self, writer: WriterReader) -> int:
        """Return the number of the host that a writer wrote on."""
        return self.nodes.index(self._node_of[writer.name])

    def shift_of(self, writer: WriterReader) -> int:
        """Return what to add to a writer's times to have them on the run's clock.

        That is the monotonic clock of the first worker's host: 0 for its own rows.
        """
        offset = self._offsets[self._node_of[writer.name]] or 0
        return offset - self._reference

    def wall_ns(self, time_ns: int) -> int:
        """Return the wall time of a time on the run's clock, in ns since 1970 UTC."""
        return time_ns + self._reference

    def of_wall(self, wall_ns: int) -> int:
        """Return the time on the run's clock of a wall time."""
        return wall_ns - self._reference

    def of_moment(self, moment: Moment) -> int:
        """Return the time on the run's clock of what a user gives.

        Args:
            moment: Seconds since the run began, or a ``datetime``; one without a time
                zone is local time.

        Raises:
            ConfigurationError: If it is neither.
        """
        if isinstance(moment, dt.datetime):
            return self.of_wall(int(moment.timestamp() * 1e9))
        try:
            seconds = float(moment)
        except (TypeError, ValueError):
            seconds = float("nan")
        if not np.isfinite(seconds):
            msg = (
                "a time is a number of seconds since the run began, or a datetime, "
                f"not {moment!r}"
            )
            raise ConfigurationError(msg)
        return self.of_wall(self.start_ns) + int(seconds * 1e9)


def _node(writer: WriterReader) -> bytes:
    found = writer.page()
    return b"" if found is None else bytes(found["boot_id"])


def _anchors(writer: WriterReader) -> list[int]:
    n = writer.reader.n_steps
    found: list[int] = []
    for start, stop in ((0, min(n, _ANCHORS)), (max(_ANCHORS, n - _ANCHORS), n)):
        if start < stop:
            steps = writer.reader.steps(start, stop)
            steps = steps[steps["monotonic_ns"] > 0]
            found += (steps["wall_ns"] - steps["monotonic_ns"]).tolist()
    return found


def _this_boot() -> bytes:
    with contextlib.suppress(OSError, ValueError):
        return bytes.fromhex(_BOOT_ID.read_text().strip().replace("-", ""))
    return b"?"
