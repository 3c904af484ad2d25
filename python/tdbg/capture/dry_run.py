"""What a dry run found: what would be captured, and how large it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tdbg.capture.measuring import MeasuringSink, Seen
from tdbg.capture.naming import GROUP_SCALARS
from tdbg.capture.plans import TensorPlan
from tdbg.capture.policy import Policy
from tdbg.capture.recorder import Recorder
from tdbg.capture.sizes import ROW, SCALAR, step_bytes
from tdbg.capture.wants import (
    HISTOGRAM,
    LIMITED_VALUES,
    ROWS,
    SMALL_VALUES,
    UNITS,
    VALUES,
    StepWants,
)
from tdbg.collections import Collection, Role
from tdbg.modes import ModeKeys

__all__ = ["DryRunPart", "DryRunSummary", "summarize"]

STEPS = 1000


@dataclass(frozen=True, slots=True)
class DryRunPart:
    """A part of what would be captured in one mode.

    Attributes:
        mode: In which steps.
        name: Of the collection; ``total`` for everything, each tensor once, with
            what the steps themselves take.
        tensors: How many names it has.
        statistics_bytes: Of a step that takes statistics, on the disk.
        raw_bytes: Of the raw values of a step that saves them, in memory.
        value_bytes: The same on the disk, as the first ones compress.
        histogram_bytes: Of a step that stores histograms or counts units.
        bytes_per_1000_steps: Of the first thousand steps, as they are scheduled.
    """

    mode: ModeKeys
    name: str
    tensors: int
    statistics_bytes: int
    raw_bytes: int
    value_bytes: int
    histogram_bytes: int
    bytes_per_1000_steps: int


@dataclass(frozen=True, slots=True)
class DryRunSummary:
    """What would be captured, by mode and collection.

    Attributes:
        steps: Complete steps that captured anything, by mode.
        rules: Names of the rules whose needs are captured.
        parts: The collections of each mode, and behind them its total.
    """

    steps: dict[ModeKeys, int]
    parts: tuple[DryRunPart, ...]
    rules: tuple[str, ...] = ()

    def part(self, name: str, mode: ModeKeys = ModeKeys.TRAIN) -> DryRunPart:
        """The part of that name and mode.

        Raises:
            KeyError: If nothing of it was seen.
        """
        for part in self.parts:
            if (part.name, part.mode) == (name, mode):
                return part
        raise KeyError(name)

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "steps": {mode.name: count for mode, count in self.steps.items()},
            "rules": list(self.rules),
            "parts": [{**asdict(each), "mode": each.mode.name} for each in self.parts],
        }

    def __str__(self) -> str:
        if not self.steps:
            return "dry run: nothing was captured"
        heads = ("tensors", "statistics", "raw values", "stored", "histograms")
        lines = []
        if self.rules:
            lines.append(f"rules: {', '.join(self.rules)}")
        for mode, count in self.steps.items():
            lines.append(
                f"dry run, {mode.name}, {count} steps captured; bytes of a step:"
            )
            titles = "".join(f"{head:>12}" for head in heads)
            lines.append(f"  {'':<20}{titles}{f'{STEPS} steps':>12}")
            for part in self.parts:
                if part.mode is mode:
                    sizes = (
                        part.statistics_bytes,
                        part.raw_bytes,
                        part.value_bytes,
                        part.histogram_bytes,
                        part.bytes_per_1000_steps,
                    )
                    text = "".join(f"{_text(size):>12}" for size in sizes)
                    lines.append(f"  {part.name:<20}{part.tensors:>12}{text}")
        return "\n".join(lines)


def summarize(sink: MeasuringSink, recorder: Recorder) -> DryRunSummary:
    """What the sink of a session has seen so far."""
    modes = {ModeKeys(mode): count for mode, count in sorted(sink.steps.items())}
    parts: list[DryRunPart] = []
    for mode in modes:
        items = [
            (recorder.plans[name, Role(role)], seen)
            for (name, role), seen in sink.seen.get(mode.value, {}).items()
            if (name, Role(role)) in recorder.plans
        ]
        schedule = _Schedule(recorder, mode)
        for name, has in _collections(recorder.policy):
            members = [(plan, seen) for plan, seen in items if has(plan)]
            if members:
                cost = sum(schedule.cost(plan, seen) for plan, seen in members)
                parts.append(_part(mode, name, members, cost))
        cost = sum(schedule.cost(plan, seen) for plan, seen in items)
        cost += schedule.cost_of_steps(items)
        parts.append(_part(mode, "total", items, cost))
    rules = tuple(str(rule.get("name")) for rule in recorder.policy.rules)
    return DryRunSummary(modes, tuple(parts), rules)


def _collections(
    policy: Policy,
) -> Iterable[tuple[str, Callable[[TensorPlan], bool]]]:
    """Names of what is captured, with what says whether a tensor belongs to it.

    Beside the captured collections those that only rules ask for, and the counts of
    units, which only they ask for.
    """

    def holder(collection: Collection) -> Callable[[TensorPlan], bool]:
        return lambda plan: collection.has(plan.name, plan.role)

    captured = {item.name: item for item in policy.registry.captured()}
    needed = {name for need in policy.needed.needs for name in need.collections}
    others = {item.name: item for item in policy.registry if item.name in needed}
    for name, collection in sorted({**others, **captured}.items()):
        yield name, holder(collection)
    yield "units", lambda plan: plan.role is Role.UNIT_SUMMARY


class _Schedule:
    """What is wanted at the first steps of a mode, each kind of step once."""

    def __init__(self, recorder: Recorder, mode: ModeKeys) -> None:
        self._policy = recorder.policy
        self._mode = mode
        # With how many there are of it, and whether the hook takes statistics there.
        self._kinds: dict[tuple[int, bool], tuple[StepWants, int, bool]] = {}
        for step in range(STEPS):
            wants = self._policy.scheduled(mode, step)
            is_due = self._policy.reduces(mode, step)
            _, count, _ = self._kinds.get((id(wants), is_due), (wants, 0, is_due))
            self._kinds[id(wants), is_due] = wants, count + 1, is_due

    def cost(self, plan: TensorPlan, seen: Seen) -> int:
        """Bytes of a tensor in all these steps."""
        return sum(
            count * self._bytes(plan, seen, wants, is_due=is_due)
            for wants, count, is_due in self._kinds.values()
        )

    def cost_of_steps(self, items: list[tuple[TensorPlan, Seen]]) -> int:
        """Bytes of the steps themselves, those in which anything is captured."""
        total = 0
        for wants, count, is_due in self._kinds.values():
            n_rows = sum(
                seen.rows for plan, seen in items if wants.of_plan(plan) & ROWS
            )
            if any(
                self._bytes(plan, seen, wants, is_due=is_due) for plan, seen in items
            ):
                total += count * step_bytes(n_rows)
        return total

    def _bytes(
        self, plan: TensorPlan, seen: Seen, wants: StepWants, *, is_due: bool
    ) -> int:
        """Of a tensor in one of the steps in which this is wanted."""
        if plan.role is not Role.SCALAR:
            return _bytes(wants.of_plan(plan), plan, seen)
        is_here = is_due or not self._is_rare(plan, seen)
        return SCALAR * seen.scalars if is_here else 0

    def _is_rare(self, plan: TensorPlan, seen: Seen) -> bool:
        """Whether it is a number of an optimizer's group that does not change.

        Those that do, and others' numbers, are taken to come at every step.
        """
        return plan.name.startswith(GROUP_SCALARS) and all(
            step == 0 or self._policy.reduces(self._mode, step)
            for step in seen.scalar_steps
        )


def _bytes(wanted: int, plan: TensorPlan, seen: Seen) -> int:
    total = ROW * seen.rows if wanted & ROWS else 0
    if (
        wanted & VALUES
        or (wanted & SMALL_VALUES and seen.is_single)
        or (wanted & LIMITED_VALUES and seen.raw_bytes <= plan.raw_limit)
    ):
        total += seen.value_bytes
    if wanted & HISTOGRAM:
        total += seen.histogram
    return total + (seen.units if wanted & UNITS else 0)


def _part(
    mode: ModeKeys,
    name: str,
    items: Iterable[tuple[TensorPlan, Seen]],
    bytes_per_1000_steps: int,
) -> DryRunPart:
    every = [seen for _, seen in items]
    return DryRunPart(
        mode=mode,
        name=name,
        tensors=len(every),
        statistics_bytes=sum(ROW * seen.rows + SCALAR * seen.scalars for seen in every),
        raw_bytes=sum(seen.raw_bytes for seen in every),
        value_bytes=sum(seen.value_bytes for seen in every),
        histogram_bytes=sum(seen.histogram + seen.units for seen in every),
        bytes_per_1000_steps=bytes_per_1000_steps,
    )


def _text(n_bytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"
