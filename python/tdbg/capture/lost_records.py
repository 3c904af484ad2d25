"""Says when records are being lost, why, and what to do about it.

Thread safety: none; the thread of the training.

Errors: those of the core's writer.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tdbg.config.quantities import conjoin, plural
from tdbg.run.refused import enumerated
from tdbg.run.schema import GapContent

if TYPE_CHECKING:
    from tdbg.capture.writer import Writer

__all__ = ["QUIET_SECONDS", "LostRecordsLog"]

# Records are no longer being lost after so long without a loss: a queue that is full
# now and then makes one episode, not hundreds.
QUIET_SECONDS = 10.0

_WHAT = {
    GapContent.ROWS: "statistics",
    GapContent.TENSORS: "raw values",
    GapContent.SCALARS: "scalars",
    GapContent.STEPS: "ends of steps",
    GapContent.EVENTS: "events",
    GapContent.SPANS: "spans",
    GapContent.HISTOGRAMS: "histograms",
    GapContent.SAMPLES: "rows of the profile",
}
_SLOW_REMEDY = (
    "save values less often (save_interval), compress them (codec='auto' or 'max'), "
    "or enlarge the queue (queue_bytes)"
)
_REASONS = {  # What it means, and what to do about it.
    "queue_full": (
        "the disk is slower than capture, and the queue is full",
        _SLOW_REMEDY
        + "; overflow='block' waits for the disk, 'sample' keeps whole steps",
    ),
    "stalled": (
        "the disk made no progress for a second, and the queue is full",
        "check the disk, or the network behind it;  " + _SLOW_REMEDY,
    ),
    "sampled": (
        "the disk is slower than capture, so only some steps keep their values",
        _SLOW_REMEDY,
    ),
    "disk_nearly_full": (
        "the disk is nearly full",
        "free some space, or lower min_free_bytes",
    ),
    "io_error": ("the disk refuses to write", "check the disk and your quota"),
    "larger_than_queue": (
        "a tensor is larger than the whole queue",
        "set queue_bytes above the size of the largest tensor",
    ),
    "device_error": (
        "the device did not deliver the captured data",
        "see the reason in hook.device_state()",
    ),
}
_log = logging.getLogger("tdbg")
# By reason: how many records, their bytes, and what was in them.
_Losses = dict[str, tuple[int, int, int]]


class LostRecordsLog:
    """Logs one warning when records begin to be lost, and one when that is over.

    While nothing is lost, the end of a step reads one number.

    Args:
        writer: The core's writer.
        now: A monotonic clock, in seconds.

    Attributes:
        settled: The ``n_lost`` of the writer at which nothing is being lost; -1:
            something is.

    Example:
        >>> from tdbg.capture.writer import NullWriter
        >>> LostRecordsLog(NullWriter()).step_ended(0)
    """

    __slots__ = (
        "_before",
        "_is_losing",
        "_last",
        "_now",
        "_seen",
        "_writer",
        "settled",
    )

    def __init__(
        self, writer: Writer, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._writer = writer
        self._now = now
        self._before: _Losses = {}  # What was lost before this episode.
        self._seen = 0
        self.settled = 0
        self._is_losing = False
        self._last = 0.0  # When something was lost last.

    def step_ended(self, step: int) -> None:
        """Log what has changed since the step before."""
        n_lost = self._writer.n_lost
        if n_lost != self.settled:
            self._update(n_lost, step)

    def close(self) -> None:
        """Log what was lost until the writer was closed."""
        n_lost = self._writer.n_lost
        if n_lost != self.settled:
            self._update(n_lost, None)
        if self._is_losing:
            self._end("")

    def _update(self, n_lost: int, step: int | None) -> None:
        now = self._now()
        if n_lost != self._seen:
            self._seen = n_lost
            self._last = now
            if not self._is_losing:
                self._start(step)
        elif now - self._last >= QUIET_SECONDS:
            self._end(f" and has lost nothing more for {QUIET_SECONDS:.0f} s")

    def _start(self, step: int | None) -> None:
        self._is_losing = True
        self.settled = -1
        lost = self._new_losses()
        reason = max(lost, key=lambda name: lost[name][0], default="queue_full")
        what = lost.get(reason, (0, 0, 0))[2]
        meaning, remedy = _REASONS.get(reason, (reason, _SLOW_REMEDY))
        _log.warning(
            "tdbg is losing %s%s%s: %s%s. To lose less, %s. The training continues; "
            "tdbg counts each lost record and logs when the losses end",
            _names(what),
            self._tensors([reason]),
            "" if step is None else f" at step {step}",
            meaning,
            self._details(reason),
            remedy,
        )

    def _end(self, idle: str) -> None:
        lost = self._new_losses()
        self._before = self._writer.losses()
        self._is_losing = False
        self.settled = self._seen
        records = sum(entry[0] for entry in lost.values())
        n_bytes = sum(entry[1] for entry in lost.values())
        reasons = ", ".join(f"{name} {lost[name][0]}" for name in sorted(lost))
        _log.warning(
            "tdbg lost %s (%.1f MB)%s%s: %s%s",
            plural(records, "record"),
            n_bytes / 1e6,
            self._tensors(lost),
            idle,
            reasons,
            self._kept() if "sampled" in lost else "",
        )

    def _tensors(self, reasons: Iterable[str]) -> str:
        """Name the tensors that lost records for these reasons: " of a and 2 more"."""
        found = self._writer.lost_tensors()
        names: dict[str, None] = {}
        n_more = 0
        for reason in reasons:
            named, more = found.get(reason, ([], 0))
            names.update(dict.fromkeys(name for name, *_ in named))
            n_more = max(n_more, more)
        return f" of {enumerated(names, n_more)}" if names else ""

    def _new_losses(self) -> _Losses:
        lost: _Losses = {}
        for name, (records, n_bytes, what) in self._writer.losses().items():
            known = self._before.get(name, (0, 0, 0))
            if name != "refused" and records > known[0]:
                lost[name] = (records - known[0], n_bytes - known[1], what)
        return lost

    def _details(self, reason: str) -> str:
        counters = self._writer.counters()
        if reason == "io_error" and counters.get("last_errno"):
            number = counters["last_errno"]
            gone = (
                "its files were deleted or replaced: " if number == errno.ENOENT else ""
            )
            return f" ({gone}{os.strerror(number)})"
        seconds = counters.get("silence_ms", 0) / 1e3
        return f" (no answer for {seconds:.0f} s)" if seconds >= 1 else ""

    def _kept(self) -> str:
        counters = self._writer.counters()
        kept = counters.get("steps_kept", 0)
        total = kept + counters.get("steps_left_out", 0)
        return f"; {kept} of {total} steps kept their values"


def _names(what: int) -> str:
    names = [name for bit, name in _WHAT.items() if what & bit]
    return conjoin(names) if names else "data"
