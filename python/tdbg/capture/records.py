"""What is written of a step when it ends, and what goes with it.

Thread safety: the training's thread.

Errors: what the core raises.
"""

from __future__ import annotations

import time

from tdbg.capture.budget import Throttling
from tdbg.capture.events import (
    CHANGE,
    CollectionEvents,
    CostEvents,
    LargeValues,
    write_event,
)
from tdbg.capture.losses import LossWatch
from tdbg.capture.overhead import Overhead, OverheadMeter
from tdbg.capture.policy import Policy
from tdbg.capture.recorder import Recorder
from tdbg.capture.steps import Step

__all__ = ["StepRecords"]

# A step that saved nothing is recorded if the last record is older than this.
QUIET_NS = 1_000_000_000


class StepRecords:
    """Ends steps: with their record, if there is something to say of them.

    Events that come now and then come with a record: what collections hold, what
    capture costs, that records are lost.

    Args:
        recorder: Has what was captured.
        policy: What the budget is taken from.
        budget: Share of the training's time that capture may cost; None: any.

    Attributes:
        meter: Measures what capture costs.
    """

    def __init__(
        self, recorder: Recorder, policy: Policy, budget: float | None
    ) -> None:
        self.meter = OverheadMeter(recorder.taker)
        self._recorder = recorder
        self._throttling = None if budget is None else Throttling(budget, policy)
        self._cost = CostEvents(recorder, self.meter)
        self._collections = CollectionEvents(recorder)
        self._losses = LossWatch(recorder.sink)
        self._large = LargeValues(recorder)
        self._last_ns = 0

    def overhead(self) -> Overhead:
        """What capture has cost so far."""
        throttling = self._throttling
        if throttling is None:
            return self.meter.summary()
        return self.meter.summary(
            throttling.budget, throttling.n_changes, throttling.throttle.text()
        )

    def collections_change(self) -> None:
        """A collection has changed: tell it at the end of the next step."""
        self._collections.has_changed = True

    def step_ended(
        self, step: Step, now_ns: int, rest_ns: int, *, has_data: bool
    ) -> None:
        """Write its record, if anything was captured, or if the last one is old.

        Args:
            step: The step.
            now_ns: When it ended.
            rest_ns: What it took beside tdbg.
            has_data: Whether anything was captured in it.
        """
        mode, number = step.mode, step.number
        charge = self.meter.end_step(rest_ns)
        if self._throttling is not None:
            change = self._throttling.end_step(mode, charge, rest_ns)
            if change is not None:
                write_event(self._recorder, CHANGE, change, number)
        is_recorded = has_data or step.flags or now_ns - self._last_ns >= QUIET_NS
        if is_recorded or self._collections.has_changed:
            self._collections.tell(number, now_ns)
        if is_recorded:
            self._last_ns = now_ns
            self._losses.step_ended(number)
            self._large.tell(number)
            if self._cost.has_news:
                self._cost.step_ended(number, now_ns)
            self._recorder.step_ends(step)
            end = self._recorder.late.end_step
        else:
            self._cost.has_news = True
            end = self._recorder.late.drop_step
        end(
            number,
            mode._value_,
            step.mode_step,
            flags=step.flags,
            micro_batches=step.micro_batches,
            capture_ns=charge,
            duration_ns=rest_ns + charge,
        )

    def conclude(self) -> None:
        """All steps have ended: write what was not told yet."""
        self._cost.conclude()
        self._collections.tell(-1, time.perf_counter_ns(), at_once=True)

    def close(self) -> None:
        """The writer is closed: tell what was lost."""
        self._losses.close()
