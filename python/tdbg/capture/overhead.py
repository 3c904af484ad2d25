"""What tdbg costs the training thread, measured by itself."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Overhead", "OverheadMeter"]


@dataclass(frozen=True, slots=True)
class Overhead:
    """The cost so far.

    Attributes:
        steps: Steps that have ended.
        capture_seconds: Time spent in tdbg, of the training thread.
        step_seconds: Duration of these steps, capture included.
    """

    steps: int
    capture_seconds: float
    step_seconds: float

    @property
    def share(self) -> float:
        """Time in tdbg, relative to the steps without it."""
        rest = self.step_seconds - self.capture_seconds
        return self.capture_seconds / rest if rest > 0 else 0.0

    def __str__(self) -> str:
        mean = self.capture_seconds / max(self.steps, 1) * 1e6
        return f"{self.steps} steps, {mean:.0f} us a step, {self.share:.2%}"


class OverheadMeter:
    """Sums up the time between entry and exit of every call of tdbg.

    Attributes:
        total_ns: That sum; whoever enters adds to it on exit.
    """

    def __init__(self) -> None:
        self.total_ns = 0
        self._charged = 0
        self._step_time = 0
        self._steps = 0

    def end_step(self, duration_ns: int) -> int:
        """Nanoseconds to charge to the step that ends: since the last one's end.

        The call that ends a step is itself charged to the next one.
        """
        charge = self.total_ns - self._charged
        self._charged = self.total_ns
        self._steps += 1
        self._step_time += duration_ns
        return charge

    def summary(self) -> Overhead:
        """The cost so far."""
        return Overhead(self._steps, self.total_ns / 1e9, self._step_time / 1e9)
