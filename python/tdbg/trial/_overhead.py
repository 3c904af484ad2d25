"""What capture cost the training, from what the training wrote down.

Thread safety: functions over a ``RunState`` whose lock is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tdbg.modes import ModeKeys
from tdbg.trial._run import RunState
from tdbg.trial._writer_view import EventRecord, WriterView

__all__ = ["RunOverhead", "overhead"]


@dataclass(frozen=True, slots=True)
class RunOverhead:
    """The cost of capture, as the training's own clock measured it.

    What PyTorch itself spends on calling hooks is not in it: about 1 us a module.

    Attributes:
        steps: How many were measured, in all workers together.
        capture_seconds: Time of the training thread in tdbg.
        step_seconds: Duration of these steps, capture included.
        budget: The share that was allowed, or None.
        changes: What was changed to stay inside it, oldest first: ``step``, ``why``,
            ``measured``, ``level``, ``text``, ...
        devices: How tensors on CUDA devices were taken, of trainings that have ended:
            ``worker``, ``device``, and what ``hook.device_state()`` says.
    """

    steps: int = 0
    capture_seconds: float = 0.0
    step_seconds: float = 0.0
    budget: float | None = None
    changes: tuple[dict[str, Any], ...] = ()
    devices: tuple[dict[str, Any], ...] = ()

    @property
    def share(self) -> float:
        """Time in tdbg, relative to the steps without it."""
        rest = self.step_seconds - self.capture_seconds
        return self.capture_seconds / rest if rest > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "share": self.share,
            "steps": self.steps,
            "capture_seconds": self.capture_seconds,
            "step_seconds": self.step_seconds,
            "budget": self.budget,
            "changes": list(self.changes),
            "devices": list(self.devices),
        }

    def __str__(self) -> str:
        text = f"measured cost: steps take {100 * self.share:.1f} % longer"
        if self.budget is not None:
            text += f", budget {100 * self.budget:g} %"
        if self.changes:
            left_out = str(self.changes[-1].get("text") or "nothing left out now")
            text += f", changed {len(self.changes)} times: {left_out}"
        for each in self.devices:
            if not each.get("is_usable"):
                text += f"; device {each['device']} without kernels: {each['reason']}"
        return text


def overhead(run: RunState, mode: ModeKeys) -> RunOverhead:
    """The cost in the newest attempt, in one mode or (GLOBAL) in all."""
    steps = capture = duration = 0
    budget, changes, devices = None, [], []
    for writer in run.newest:
        counts = _of_writer(writer, mode)
        steps, capture = steps + counts[0], capture + counts[1]
        duration += counts[2]
        budget = _budget(writer) or budget
        changes += [
            {"step": event.step, "worker": writer.rank, **event.data}
            for event in _changes(writer, "budget")
        ]
        devices += _devices(writer)
    changes.sort(key=lambda change: int(change["step"]))
    seconds = capture / 1e9, duration / 1e9
    return RunOverhead(steps, *seconds, budget, tuple(changes), tuple(devices))


def _of_writer(writer: WriterView, mode: ModeKeys) -> tuple[int, int, int]:
    """Steps, capture and duration; a step without a record is in the totals only."""
    rows = writer.steps.data
    before = (0, 0, 0)
    if mode is ModeKeys.GLOBAL:
        for event in _changes(writer, "cost"):
            totals = tuple(
                event.data.get(name) for name in ("steps", "capture_ns", "duration_ns")
            )
            if all(isinstance(value, int) and value >= 0 for value in totals):
                before = totals  # type: ignore[assignment]
                # Those at the end speak of all steps.
                rows = rows[rows["step"] > event.step] if event.step >= 0 else rows[:0]
    else:
        rows = rows[rows["mode"] == mode.value]
    rows = rows[rows["duration_ns"] > 0]
    return (
        before[0] + len(rows),
        before[1] + int(np.sum(rows["capture_ns"])),
        before[2] + int(np.sum(rows["duration_ns"])),
    )


def _changes(writer: WriterView, what: str) -> list[EventRecord]:
    return [
        event
        for event in writer.events
        if event.kind == "change" and event.data.get("what") == what
    ]


def _devices(writer: WriterView) -> list[dict[str, Any]]:
    """What the last event about them says."""
    for event in reversed(_changes(writer, "devices")):
        devices = event.data.get("devices")
        if isinstance(devices, dict):
            return [
                {"worker": writer.rank, "device": int(number), "reason": "", **state}
                for number, state in sorted(devices.items())
                if number.isdecimal() and isinstance(state, dict)
            ]
    return []


def _budget(writer: WriterView) -> float | None:
    for event in writer.events:
        if event.kind == "configuration":
            hook = event.data.get("hook")
            given = hook.get("budget") if isinstance(hook, dict) else None
            return float(given) if isinstance(given, int | float) else None
    return None
