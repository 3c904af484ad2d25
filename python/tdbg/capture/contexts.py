"""What the capture side keeps for a step while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tdbg.capture.late import LateSteps
from tdbg.capture.plans import TensorPlan
from tdbg.capture.steps import Step
from tdbg.capture.wants import StepWants

__all__ = ["StepContext"]


class StepContext:
    """What the capture side keeps for a step.

    Attributes:
        step: The step.
        wants: What is wanted at it.
        start_ns: When it began (monotonic).
        last_ns: When something last happened in it.
        spent_ns: What tdbg had taken in all when it began.
        last_spent_ns: And when its last forward had ended.
        has_data: Whether anything was captured.
        calls: How often each module was called in this forward.
        done: Parameters and gradients that the step has already.
        found: Says which more it has, by the table that took them.
    """

    __slots__ = (
        "calls",
        "done",
        "found",
        "has_data",
        "last_ns",
        "last_spent_ns",
        "spent_ns",
        "start_ns",
        "step",
        "wants",
    )

    def __init__(
        self, step: Step, wants: StepWants, start_ns: int, spent_ns: int = 0
    ) -> None:
        self.step = step
        self.spent_ns = self.last_spent_ns = spent_ns
        self.wants = wants
        self.start_ns = self.last_ns = start_ns
        self.has_data = False
        self.calls: dict[Any, int] = {}
        self.done: set[TensorPlan] = set()
        self.found: dict[Any, Callable[[], Iterable[TensorPlan]]] = {}

    def reaches(self, now_ns: int, spent_ns: int) -> None:
        """It goes on until now, when tdbg has taken so much in all."""
        self.last_ns, self.last_spent_ns = now_ns, spent_ns

    @property
    def rest_ns(self) -> int:
        """What it took beside tdbg."""
        spent_ns = self.last_spent_ns - self.spent_ns
        return max(self.last_ns - self.start_ns - spent_ns, 0)

    @property
    def takes(self) -> bool:
        """Whether anything more may be captured in this step."""
        return self.wants.is_active and not self.step.is_taken

    def done_so_far(self) -> set[TensorPlan]:
        """``done``, with all that is ``found``."""
        for found in self.found.values():
            self.done.update(found())
        self.found.clear()
        return self.done

    def count_call(self, key: Any) -> int:
        """How often *key* was called before in this forward."""
        count = self.calls.get(key, 0)
        self.calls[key] = count + 1
        return count

    def note_data(self, late: LateSteps) -> None:
        """There is something of the step, which may have ended with nothing."""
        if not self.has_data:
            self.has_data = True
            if not self.step.is_open:
                late.revive(self.step.number)
