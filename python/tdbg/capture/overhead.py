"""The cost of tdbg to the training: the time that the training's thread spends in it.

Thread safety: none; the thread of the training.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdbg._core import BatchCapture

__all__ = ["Overhead", "OverheadMeter", "RunDelay"]


@dataclass(frozen=True, slots=True)
class Overhead:
    """The cost of capture so far.

    Attributes:
        steps: Number of steps that have ended.
        capture_seconds: Time that the training's thread spent in tdbg.
        step_seconds: Duration of these steps, capture included.
        last_share: ``share`` of the step that ended last.
        budget: The share that is allowed, or None.
        changes: How often tdbg has changed what it captures, to keep the budget.
        left_out: Description of what tdbg leaves out now to keep the budget; empty if
            it leaves out nothing.
    """

    steps: int
    capture_seconds: float
    step_seconds: float
    last_share: float = 0.0
    budget: float | None = None
    changes: int = 0
    left_out: str = ""

    @property
    def share(self) -> float:
        """Time in tdbg, relative to the steps without it."""
        return _share(self.capture_seconds, self.step_seconds)

    def __str__(self) -> str:
        mean = self.capture_seconds / max(self.steps, 1) * 1e6
        text = f"{self.steps} steps, {mean:.0f} us a step, {self.share:.2%}"
        if self.budget is not None:
            text += f" of {self.budget:.2%}"
        return f"{text}: {self.left_out}" if self.left_out else text


class OverheadMeter:
    """Sums up the time between entry and exit of every call of tdbg.

    Args:
        core: Measures the calls that never reach Python; None: there are none.

    Attributes:
        total_ns: Time of the calls that reach Python; each call adds to it on exit.
        once_ns: The part of that time that comes only once, such as a compilation.
            Whoever charges it resets it.
    """

    def __init__(self, core: BatchCapture | None = None) -> None:
        self.total_ns = self.once_ns = 0
        self._core = core
        self._charged = 0
        self._step_time = 0
        self._steps = 0
        self._last = (0, 0)

    @property
    def spent_ns(self) -> int:
        """Time spent in all calls so far, except for the call that is under way."""
        core = self._core
        return self.total_ns if core is None else self.total_ns + core.spent_ns

    def spend_once(self, spent_ns: int) -> None:
        """Add time that no later step will take again."""
        self.total_ns += spent_ns
        self.once_ns += spent_ns

    def excuse(self, spent_ns: int) -> None:
        """Say that so much of the time under way is not taken again by each step."""
        self.once_ns += spent_ns

    def end_step(self, rest_ns: int, spent_ns: int) -> int:
        """Return the time to charge to the step that ends, in nanoseconds.

        This is the time spent since the previous step ended.  The call that ends a step
        is charged to the next one, so a step may be charged more than its own duration.

        Args:
            rest_ns: Duration of the step without the time spent in tdbg.
            spent_ns: Time spent in all calls so far: the attribute ``spent_ns``.
        """
        charge = spent_ns - self._charged
        self._charged = spent_ns
        self._steps += 1
        self._step_time += rest_ns + charge
        self._last = charge, rest_ns + charge
        return charge

    def count(self, n_steps: int, duration_ns: int) -> None:
        """Add steps in which no time was spent."""
        self._steps += n_steps
        self._step_time += duration_ns

    def totals(self) -> dict[str, int]:
        """Return the number, cost and duration of all steps that have ended."""
        return {
            "steps": self._steps,
            "capture_ns": self._charged,
            "duration_ns": self._step_time,
        }

    def summary(self, n_counted: int = 0, duration_ns: int = 0) -> Overhead:
        """Return the cost so far.

        Args:
            n_counted: Steps that ``count`` is yet to add.
            duration_ns: Their duration.
        """
        spent = self.spent_ns
        return Overhead(
            self._steps + n_counted,
            spent / 1e9,
            (self._step_time + duration_ns + spent - self._charged) / 1e9,
            _share(*self._last),
        )


def _share(capture: float, duration: float) -> float:
    rest = duration - capture
    return capture / rest if rest > 0 else 0.0


# Of the calling thread: nanoseconds on a processor, nanoseconds ready to run and
# waiting for one, number of turns.
_FILE = "/proc/thread-self/schedstat"
# Clocks of the system and of its scheduler differ a little.
_LEAST = 0.01


class RunDelay:
    """Reads how long the calling thread has waited for a processor.

    Other threads had them all.  That is no cost of tdbg, and no time of the training:
    on a busy machine a clock counts it for whoever was interrupted.

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
