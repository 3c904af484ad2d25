"""The events that a session writes: their kinds, and who belongs where."""

from __future__ import annotations

import json
from typing import Any

from tdbg.capture.overhead import OverheadMeter
from tdbg.capture.recorder import Recorder

__all__ = [
    "CHANGE",
    "COLLECTIONS",
    "CONFIGURATION",
    "STATUS",
    "CollectionEvents",
    "CostEvents",
    "LargeValues",
    "write_event",
]

# On disk (docs/format.md): never renumber.
CONFIGURATION, COLLECTIONS, CHANGE, STATUS = 1, 2, 3, 5
INFORMATION = 1

# The largest event that docs/format.md allows is 1 MiB.
MAX_EVENT_BYTES = 1 << 20
# New names are told together, once a second.
QUIET_NS = 1_000_000_000
# What unrecorded steps have cost is told so often.
COST_NS = 10 * QUIET_NS


def write_event(
    recorder: Recorder, kind: int, content: dict[str, Any], step: int = -1
) -> None:
    """Write an event of the run, if it is not too large for one."""
    text = json.dumps(content, separators=(",", ":")).encode()
    if len(text) <= MAX_EVENT_BYTES:
        recorder.sink.event(step, kind, INFORMATION, text)


class CollectionEvents:
    """Tells which tensors belong to which collection, whenever that has changed.

    Args:
        recorder: Knows the tensors.

    Attributes:
        has_changed: Whether a collection has, so that telling it does not wait.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.has_changed = True
        self._n_told = 0
        self._told_ns = 0

    def tell(self, step: int, now_ns: int, *, at_once: bool = False) -> None:
        """Write the event, if there is something new and it is due."""
        n_plans = len(self._recorder.plans)
        if not self.has_changed:
            is_due = at_once or now_ns - self._told_ns >= QUIET_NS
            if n_plans == self._n_told or not is_due:
                return
        self.has_changed = False
        self._n_told = n_plans
        self._told_ns = now_ns
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
        write_event(self._recorder, COLLECTIONS, {"collections": content}, step)


class CostEvents:
    """Tells what all steps together have cost, where some of them have no record.

    Args:
        recorder: Writes the event.
        meter: Knows the totals.

    Attributes:
        has_news: Whether a step without a record has ended since; set by who ends it.
    """

    def __init__(self, recorder: Recorder, meter: OverheadMeter) -> None:
        self._recorder = recorder
        self._meter = meter
        self.has_news = False
        self._told_ns = 0

    def step_ended(self, step: int, now_ns: int) -> None:
        """A step has ended and is recorded, which says what it has cost."""
        self._told_ns = self._told_ns or now_ns
        if self.has_news and now_ns - self._told_ns >= COST_NS:
            self._told_ns = now_ns
            self.tell(step)

    def tell(self, step: int) -> None:
        """Write the totals, if a step without a record has ended since."""
        if self.has_news:
            self.has_news = False
            content = {"what": "cost", **self._meter.totals()}
            write_event(self._recorder, CHANGE, content, step)

    def conclude(self) -> None:
        """Write the totals, and what became of the devices, at the end."""
        self.tell(-1)
        devices = self._recorder.device_state()
        if devices:
            content = {"what": "devices", "devices": devices}
            write_event(self._recorder, CHANGE, content)


class LargeValues:
    """Tells, once each, of which tensors rules do not get the values: too large ones.

    Args:
        recorder: Knows them, and writes the event.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._n_seen = 0
        self._told: set[str] = set()

    def tell(self, step: int) -> None:
        """Write the event, if there is a new one; else it costs one number."""
        n_large = self._recorder.n_too_large
        if n_large == self._n_seen:
            return
        self._n_seen = n_large
        found = {
            plan.name: {"bytes": size, "limit": plan.raw_limit}
            for plan in self._recorder.plans.values()
            if plan.raw_limit and plan.name not in self._told
            if (size := plan.largest_left_out())
        }
        if found:
            self._told.update(found)
            content = {"what": "raw_limit", "tensors": found}
            write_event(self._recorder, CHANGE, content, step)


def _is_large(content: dict[str, dict[str, Any]]) -> bool:
    # JSON needs up to six bytes for a character.
    size = sum(
        6 * len(name) + 3 for item in content.values() for name in item["tensor_names"]
    )
    return size > MAX_EVENT_BYTES // 2
