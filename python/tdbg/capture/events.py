"""Events and the ends of steps: all that a session writes beside tensors.

``StepWriter`` writes the record of each step, and with it the events that are due:
members of collections, costs, values that were too large; it also logs losses.

Thread safety: none; the thread of the training.

Errors: those of the core's writer.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tdbg.capture.budget import Throttling
from tdbg.capture.lost_records import LostRecordsLog
from tdbg.capture.overhead import Overhead, OverheadMeter, RunDelay
from tdbg.capture.passed_steps import PassedSteps
from tdbg.capture.policy import Policy
from tdbg.capture.recorder import Recorder, StepContext
from tdbg.capture.schedule import Throttle
from tdbg.capture.steps import Step
from tdbg.config.quantities import conjoin
from tdbg.run.requests import Request
from tdbg.run.schema import EventKind

if TYPE_CHECKING:
    from tdbg.capture.writer import Writer

__all__ = [
    "CollectionEvents",
    "CostEvents",
    "LargeValues",
    "StepWriter",
    "write_event",
]

_log = logging.getLogger("tdbg")

# On disk (docs/format.md): never renumber.
INFORMATION = 1

# The largest event that docs/format.md allows is 1 MiB.
MAX_EVENT_BYTES = 1 << 20
# New names are written together, once a second.
EVENT_NS = 1_000_000_000
# The cost of steps without a record is written this often.
COST_NS = 10 * EVENT_NS


def write_event(
    recorder: Recorder, kind: int, content: dict[str, Any], step: int = -1
) -> None:
    """Write an event of the run; one that is too large is counted as refused."""
    text = json.dumps(content, separators=(",", ":")).encode()
    if len(text) <= MAX_EVENT_BYTES:
        recorder.writer.event(step, kind, INFORMATION, text)
        return
    recorder.refusals.add(
        step,
        f"event {', '.join(map(str, content))[:100]}",
        f"it is larger than {MAX_EVENT_BYTES:,} bytes",
        n_bytes=len(text),
    )
    _log.warning(
        "tdbg leaves out an event (%s): it has %d bytes, above the limit of %d",
        ", ".join(map(str, content))[:100],
        len(text),
        MAX_EVENT_BYTES,
    )


class CollectionEvents:
    """Writes which tensors belong to which collection, whenever that has changed.

    Args:
        recorder: Has the names of the tensors.

    Attributes:
        has_changed: Whether a collection has changed, so that the event is due.
        n_written: How many names the latest event has.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.has_changed = True
        self.n_written = 0
        self._written_ns = 0

    def write(self, step: int, now_ns: int, *, at_once: bool = False) -> None:
        """Write the event, if there is something new and it is due."""
        n_entries = len(self._recorder.entries)
        if not self.has_changed:
            is_due = at_once or now_ns - self._written_ns >= EVENT_NS
            if n_entries == self.n_written or not is_due:
                return
        self.has_changed = False
        self.n_written = n_entries
        self._written_ns = now_ns
        registry = self._recorder.policy.registry
        members = self._recorder.members()
        captured = {item.name for item in registry.captured()}
        content = {
            item.name: {
                **item.as_json(),
                "captured": item.name in captured,
                "tensor_names": members.get(item.name, []),
            }
            for item in registry
        }
        if _is_large(content):
            # Roles and expressions still say who belongs where.
            for entry in content.values():
                entry["tensor_names"] = []
        write_event(
            self._recorder, EventKind.COLLECTIONS, {"collections": content}, step
        )


class CostEvents:
    """Writes the cost of all steps together, if some of them have no record.

    Args:
        recorder: Writes the event.
        meter: Has the totals.

    Attributes:
        has_news: Whether a step has ended without a record since the last event; set
            by the caller.
    """

    def __init__(self, recorder: Recorder, meter: OverheadMeter) -> None:
        self._recorder = recorder
        self._meter = meter
        self.has_news = False
        self._written_ns = 0

    def step_ended(self, step: int, now_ns: int) -> None:
        """Write the totals if they are due; a step has ended, with a record."""
        self._written_ns = self._written_ns or now_ns
        if self.has_news and now_ns - self._written_ns >= COST_NS:
            self._written_ns = now_ns
            self.write(step)

    def write(self, step: int) -> None:
        """Write the totals, if a step has ended without a record."""
        if self.has_news:
            self.has_news = False
            content = {"what": "cost", **self._meter.totals()}
            write_event(self._recorder, EventKind.CHANGE, content, step)

    def conclude(self) -> None:
        """Write the totals, and the state of the devices, at the end."""
        self.write(-1)
        devices = self._recorder.device_state()
        if devices:
            content = {"what": "devices", "devices": devices}
            write_event(self._recorder, EventKind.CHANGE, content)


class LargeValues:
    """Reports, once for each tensor, values that exceed the limit that rules set.

    Args:
        recorder: Has the limits, and writes the event.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._n_seen = 0
        self._written: set[str] = set()

    def write(self, step: int) -> None:
        """Write the event if there are new ones; otherwise this reads one number."""
        n_large = self._recorder.n_too_large
        if n_large == self._n_seen:
            return
        self._n_seen = n_large
        found = {
            entry.name: {"bytes": size, "limit": entry.raw_limit}
            for entry in self._recorder.entries.values()
            if entry.raw_limit and entry.name not in self._written
            if (size := entry.too_large)
        }
        if found:
            self._written.update(found)
            content = {"what": "raw_limit", "tensors": found}
            write_event(self._recorder, EventKind.CHANGE, content, step)


def _is_large(content: dict[str, dict[str, Any]]) -> bool:
    # JSON needs up to six bytes for a character.
    size = sum(
        6 * len(name) + 3 for item in content.values() for name in item["tensor_names"]
    )
    return size > MAX_EVENT_BYTES // 2


# A step without data has a record if the last record is older than this.
STEP_RECORD_NS = 1_000_000_000


class StepWriter:
    """Writes the records of steps, with the events that are due.

    A step without data has a record only if it has flags, or if the last record is
    older than a second.

    Args:
        recorder: Captures the tensors of the steps.
        policy: Throttled to keep the budget.
        budget: Share of the training's time that capture may cost, or AUTO; None: any,
            or another rank decides.
        propose: As of ``Throttling``.

    Attributes:
        meter: Measures what capture costs.
    """

    def __init__(
        self,
        recorder: Recorder,
        policy: Policy,
        budget: float | str | None,
        propose: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> None:
        self.meter = OverheadMeter(recorder.direct)
        self._recorder = recorder
        self._policy = policy
        self._throttling = None
        if budget is not None:
            self._throttling = Throttling(budget, policy, propose)
            self._run_delay = RunDelay(time.perf_counter_ns())
        self._cost = CostEvents(recorder, self.meter)
        self._collections = CollectionEvents(recorder)
        self._losses = LostRecordsLog(recorder.writer)
        self._losses_of_replicas: list[LostRecordsLog] = []
        self._large = LargeValues(recorder)
        self._last_ns = 0

    def overhead(self, n_passed: int = 0, duration_ns: int = 0) -> Overhead:
        """Return the cost of capture so far.

        Args:
            n_passed: Number of steps that are not accounted for yet.
            duration_ns: Their duration.
        """
        found, throttling = self.meter.summary(n_passed, duration_ns), self._throttling
        if throttling is None:
            return found
        return dataclasses.replace(
            found,
            budget=throttling.budget,
            changes=throttling.n_changes,
            left_out=throttling.left_out,
        )

    def obey_throttle(self, request: Request) -> None:
        """Leave out what the rank that keeps the budget has decided.

        Where this is that rank, only if it has asked for it: others may write
        requests.
        """
        throttling = self._throttling
        if throttling is not None and not throttling.is_proposed:
            return
        self._policy.set_throttle(Throttle(**request.body))
        if throttling is not None:
            throttling.is_proposed = False

    def watch_losses(self, replica: Writer) -> None:
        """Log what the writer of a further replica loses, too."""
        self._losses_of_replicas.append(LostRecordsLog(replica))

    def collections_change(self) -> None:
        """Write the collections at the end of the next step: one has changed."""
        self._collections.has_changed = True

    def step_ended(
        self, step: Step, now_ns: int, spent_ns: int, context: StepContext
    ) -> None:
        """End a step, with a record if it is to have one.

        In every step: what has nothing to do is not called.

        Args:
            step: The step.
            now_ns: When it ended.
            spent_ns: Time that tdbg had spent in all by then.
            context: What capture knows of it.
        """
        mode, number, recorder = step.mode, step.number, self._recorder
        own_ns = context.last_spent_ns - context.spent_ns
        rest_ns = max(context.last_ns - context.start_ns - own_ns, 0)
        charge = self.meter.end_step(rest_ns, spent_ns)
        if self._throttling is not None:
            once_ns, self.meter.once_ns = self.meter.once_ns, 0
            part = self._run_delay.part_running(now_ns)
            change = self._throttling.end_step(
                step, part * max(charge - once_ns, 0), part * rest_ns
            )
            if change is not None:
                write_event(recorder, EventKind.CHANGE, change, number)
        is_recorded = (
            context.has_data or step.flags or now_ns - self._last_ns >= STEP_RECORD_NS
        )
        collections = self._collections
        if collections.has_changed or (
            is_recorded and len(recorder.entries) != collections.n_written
        ):
            collections.write(number, now_ns)
        if is_recorded:
            self._last_ns = now_ns
            if recorder.writer.n_lost != self._losses.settled:
                self._losses.step_ended(number)
            for watch in self._losses_of_replicas:
                watch.step_ended(number)
            if not context.step_plan.is_light:
                self._large.write(number)
            if self._cost.has_news:
                self._cost.step_ended(number, now_ns)
            recorder.step_ends(
                step,
                flags=step.flags,
                micro_batches=step.micro_batches,
                capture_ns=charge,
                duration_ns=rest_ns + charge,
            )
        else:
            self._cost.has_news = True
            recorder.pending.drop_step(
                number,
                mode._value_,
                step.mode_step,
                flags=step.flags,
                micro_batches=step.micro_batches,
                capture_ns=charge,
                duration_ns=rest_ns + charge,
            )

    def steps_passed(self, last: Step, passed: PassedSteps, now_ns: int) -> bool:
        """Record the numbers of steps that passed; end all of them but the last one.

        Args:
            last: The last of them, which ``step_ended`` ends.
            passed: The steps.
            now_ns: The time.

        Returns:
            Whether the last one has any numbers.
        """
        recorder, n_earlier = self._recorder, passed.n - 1
        pending = recorder.pending
        write_end = pending.end_step if pending.has_been_used else recorder.write_end
        has_data = False
        for n_before, duration_ns, entries, values, flags in passed.numbers:
            number = last.number - n_earlier + n_before
            recorder.take_step_numbers(number, entries, values, flags)
            has_data = n_before == n_earlier
            if not has_data:
                mode_step = last.mode_step - n_earlier + n_before
                write_end(number, last.mode._value_, mode_step, duration_ns=duration_ns)
                self._last_ns = now_ns
        if n_earlier:
            rest_ns = passed.duration_ns - passed.last_ns
            self.meter.count(n_earlier, rest_ns)
            if self._throttling is not None:
                part = self._run_delay.part_running(now_ns)
                self._throttling.count(n_earlier, part * rest_ns, passed.felt_ns)
            self._cost.has_news = True
        return has_data

    def conclude(self) -> None:
        """Write the events that are left: all steps have ended."""
        self._recorder.refusals.conclude()
        self._cost.conclude()
        self._tell_budget()
        self._collections.write(-1, time.perf_counter_ns(), at_once=True)
        self._tell_empty_collections()

    def _tell_empty_collections(self) -> None:
        """Log which collections have expressions that found no tensor."""
        if self._policy.is_disabled or not self._recorder.entries:
            return
        members = self._recorder.members()
        empty = [
            item.in_words
            for item in self._policy.registry.captured()
            if item.expects_names and item.name not in members
        ]
        if empty:
            _log.warning(
                "this process captured no tensor of %s: compare the expressions with "
                "the names of the tensors, and the schedule with the steps that were "
                "made",
                conjoin(empty),
            )

    def _tell_budget(self) -> None:
        """Log what the default budget left out, and what it could not."""
        throttling = self._throttling
        if throttling is None or not throttling.is_auto:
            return
        left_out = throttling.left_out
        is_kept = throttling.has_overspent and self._policy.has_written_schedules
        if not left_out and not is_kept:
            return
        cost = self.meter.summary()
        _log.warning(
            "%s, to stay within %g %% of the training's time (tdbg spent %.1f s "
            "beside %.1f s of steps, without the time between them%s): budget='off' "
            "(or TDBG_BUDGET=off) turns this off",
            left_out or "nothing left out beside the schedules that you wrote",
            100 * throttling.budget,
            cost.capture_seconds,
            cost.step_seconds - cost.capture_seconds,
            ", because your own schedules are kept" if is_kept else "",
        )

    def close(self) -> None:
        """Log what was lost: the writer is closed."""
        for watch in (self._losses, *self._losses_of_replicas):
            watch.close()
