"""The time that a thread waits for a processor, because other threads have them all.

It is no cost of tdbg, and no time of the training: on a busy machine a clock counts
it for whoever was interrupted.

Thread safety: none; the thread of the training.  Errors: none.
"""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["RunDelay"]

# Of the calling thread: nanoseconds on a processor, nanoseconds ready to run and
# waiting for one, number of turns.
_FILE = "/proc/thread-self/schedstat"
# Clocks of the system and of its scheduler differ a little.
_LEAST = 0.01


class RunDelay:
    """Reads how long the calling thread has waited for a processor.

    Example:
        delay = RunDelay(time.perf_counter_ns())
        step()
        undisturbed_ns = duration_ns * delay.part_running(time.perf_counter_ns())

    Args:
        now_ns: The time (``time.perf_counter_ns``).
    """

    def __init__(self, now_ns: int) -> None:
        self._thread = 0
        self._file = -1
        self._close: weakref.finalize[..., RunDelay] | None = None
        self._now_ns = now_ns
        self._part = 1.0
        self._delay_ns = self._read()

    def part_running(self, now_ns: int) -> float:
        """Return which part of the time since the last call it did not wait.

        Asked again with the same time, it returns the same.  It is 1.0 where the
        system does not say, and for the time in which another thread called last.
        """
        if now_ns == self._now_ns:
            return self._part
        thread, before_ns = self._thread, self._delay_ns
        self._delay_ns = self._read()
        duration_ns, self._now_ns = now_ns - self._now_ns, now_ns
        self._part = 1.0
        if self._thread == thread and duration_ns > 0:
            part = 1.0 - (self._delay_ns - before_ns) / duration_ns
            self._part = min(1.0, max(_LEAST, part))
        return self._part

    def _read(self) -> int:
        """Return the delay of this thread in all, in nanoseconds."""
        try:
            if threading.get_ident() != self._thread:
                self._open()
            return int(os.pread(self._file, 64, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def _open(self) -> None:
        self._thread = threading.get_ident()
        if self._close is not None:
            self._close()
        self._file = -1
        self._file = os.open(_FILE, os.O_RDONLY | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._file)
