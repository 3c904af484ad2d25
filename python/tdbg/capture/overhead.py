"""What tdbg costs the training thread, measured by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Overhead", "OverheadMeter"]


@dataclass(frozen=True, slots=True)
class Overhead:
    """The cost so far.

    Attributes:
        steps: Steps that have ended.
        capture_seconds: Time spent in tdbg, of the training thread.
        step_seconds: Duration of these steps, capture included.
        last_share: Of the step that ended last, as ``share``.
        budget: The share that is allowed, or None.
        changes: How often what is captured was changed to stay inside the budget.
        left_out: What is left out now to stay inside, in words; empty for nothing.
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


class _Core(Protocol):
    """What counts the time of calls that reach the core without a word to Python."""

    @property
    def spent_ns(self) -> int: ...


class OverheadMeter:
    """Sums up the time between entry and exit of every call of tdbg.

    Args:
        core: Knows the time of calls that come past Python; None: there are none.

    Attributes:
        total_ns: The sum of all others; whoever enters adds to it on exit.
    """

    def __init__(self, core: _Core | None = None) -> None:
        self.total_ns = 0
        self._core = core
        self._charged = 0
        self._step_time = 0
        self._steps = 0
        self._last = (0, 0)

    @property
    def spent_ns(self) -> int:
        """All so far, but for the call that is under way."""
        core = self._core
        return self.total_ns if core is None else self.total_ns + core.spent_ns

    def end_step(self, rest_ns: int) -> int:
        """Nanoseconds to charge to the step that ends: since the last one's end.

        The call that ends a step is itself charged to the next one, so that a step
        may be charged with more than the time between its begin and its end.

        Args:
            rest_ns: What the step took beside tdbg.
        """
        core = self._core  # As `spent_ns`, without a call more in every step.
        total = self.total_ns if core is None else self.total_ns + core.spent_ns
        charge = total - self._charged
        self._charged = total
        self._steps += 1
        self._step_time += rest_ns + charge
        self._last = charge, rest_ns + charge
        return charge

    def totals(self) -> dict[str, int]:
        """Steps, capture and durations of all steps that have ended."""
        return {
            "steps": self._steps,
            "capture_ns": self._charged,
            "duration_ns": self._step_time,
        }

    def summary(
        self, budget: float | None = None, changes: int = 0, left_out: str = ""
    ) -> Overhead:
        """The cost so far."""
        spent = self.spent_ns
        return Overhead(
            self._steps,
            spent / 1e9,
            (self._step_time + spent - self._charged) / 1e9,
            _share(*self._last),
            budget,
            changes,
            left_out,
        )


def _share(capture: float, duration: float) -> float:
    rest = duration - capture
    return capture / rest if rest > 0 else 0.0
