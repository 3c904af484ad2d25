"""Dry runs: what a hook would capture, and how large that would be on disk.

``MeasuringWriter`` stands in for the core; ``summarize`` adds up what it measured.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tdbg.capture.naming import GROUP_SCALARS
from tdbg.capture.policy import Policy
from tdbg.capture.recorder import Recorder
from tdbg.capture.schedule import (
    HISTOGRAM,
    LIMITED_VALUES,
    ROWS,
    SMALL_VALUES,
    UNITS,
    VALUES,
    StepPlan,
)
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.capture.writer import NullWriter
from tdbg.config.collections import Collection, Role
from tdbg.config.quantities import plural
from tdbg.modes import ModeKeys
from tdbg.run.schema import ALIGNMENT, CHUNK_BYTES, RECORD_HEADER_BYTES

__all__ = [
    "ROW",
    "SCALAR",
    "DryRunPart",
    "DryRunSummary",
    "MeasuringWriter",
    "StepContent",
    "head_bytes",
    "histogram_bytes",
    "step_bytes",
    "summarize",
    "tensor_bytes",
]


_ENTRY = 64  # In the `index` record, for each record.
# A statistics row, and its copy in the column of its tensor.
ROW = 112 + 120
# A number: its record, its entries in the index, and its posting.
SCALAR = 128 + _ENTRY + 32 + 4


def head_bytes(raw: int) -> int:
    """Return the bytes before the data of a tensor of *raw* bytes, in its payload."""
    return _padded(64 + 16 * -(-raw // CHUNK_BYTES))


def tensor_bytes(raw: int, stored: int) -> int:
    """Return the size of a `tensor` record: *raw* bytes, compressed to *stored*."""
    return _padded(RECORD_HEADER_BYTES + head_bytes(raw) + stored) + _ENTRY + 48 + 4


def histogram_bytes(n_bins: int) -> int:
    """Return the size of a `histogram` record."""
    payload = 16 + (2 * n_bins + 7) // 8 * 8 + 8 * n_bins
    return _padded(RECORD_HEADER_BYTES + payload) + 2 * _ENTRY


def step_bytes(n_rows: int) -> int:
    """Return the size of a `step` record and of the record that holds its rows."""
    total = _padded(RECORD_HEADER_BYTES + 88) + _ENTRY + 104
    if n_rows:
        rows = 112 * n_rows
        total += _padded(RECORD_HEADER_BYTES + 16 + rows) - rows + _ENTRY + 48
    return total


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


# Bytes of a larger tensor that are compressed, and stand for all.
_SAMPLE = 4 << 20
# Number of steps that are noted for each number.
_STEPS = 64


class _Definition:
    """A definition, and the size of one value of it."""

    __slots__ = ("dtype", "key", "raw", "shape", "stored", "text")

    def __init__(self, name: str, role: int, text: str, shape: Sequence[int]) -> None:
        self.key = (name, role)
        self.text = text
        self.dtype = np.dtype(getattr(ml_dtypes, text, text)) if text else None
        self.shape = tuple(shape)
        size = self.dtype.itemsize if self.dtype is not None else 0
        self.raw = math.prod(self.shape) * size
        self.stored: int | None = None  # None: no value came.

    @property
    def value_bytes(self) -> int:
        """Size of a value on disk, in bytes."""
        return tensor_bytes(self.raw, self.raw if self.stored is None else self.stored)


class StepContent:
    """What one step captured under one name.

    Attributes:
        rows: Number of rows of statistics: one for each call and micro-batch.
        calls: Definition of the tensor of each call; each call has one value.
        histogram: Size of the histograms, in bytes.
        units: Size of the unit summaries, in bytes.
        scalars: Number of numbers.
        scalar_steps: The first steps of the mode in which numbers were recorded.
    """

    __slots__ = ("calls", "histogram", "rows", "scalar_steps", "scalars", "units")

    def __init__(self) -> None:
        self.rows = self.histogram = self.units = self.scalars = 0
        self.calls: dict[int, _Definition] = {}
        self.scalar_steps: list[int] = []

    @property
    def raw_bytes(self) -> int:
        """Size of the values in memory, in bytes."""
        return sum(each.raw for each in self.calls.values())

    @property
    def value_bytes(self) -> int:
        """Size of the values on disk, in bytes."""
        return sum(each.value_bytes for each in self.calls.values())

    @property
    def is_single(self) -> bool:
        """Whether each value is one number."""
        return all(math.prod(each.shape) == 1 for each in self.calls.values())


class MeasuringWriter(NullWriter):
    """Measures what steps would write, by mode and name; stores nothing.

    Args:
        codec: The codec that values would be stored with.

    Attributes:
        steps: Number of complete steps that captured anything, by mode.
        content: By mode, and by name and role, what the first step with that name
            captured.
    """

    def __init__(self, codec: str) -> None:
        super().__init__()
        self._codec = codec
        self._definitions: dict[int, _Definition] = {}
        self._open: dict[int, dict[tuple[str, int], StepContent]] = {}
        self.steps: dict[int, int] = {}
        self.content: dict[int, dict[tuple[str, int], StepContent]] = {}

    def define(self, *arguments: Any, **_: Any) -> int:
        """Return a new id for the name, element type and shape."""
        number = super().define()
        name, role, text, shape = (*arguments, "", ())[:4]
        self._definitions[number] = _Definition(name, role, text, shape)
        return number

    def statistics(
        self, step: int, ids: Sequence[int], *_: Any, **options: Any
    ) -> None:
        """Count rows."""
        for number in ids:
            self._add_row(step, number, options.get("call", 0))

    def add_rows(
        self, step: int, ids: Sequence[int], calls: Sequence[int], *_: Any, **__: Any
    ) -> None:
        """Count rows that a device computed."""
        for number, call in zip(ids, calls, strict=True):
            self._add_row(step, number, call)

    def values(
        self,
        step: int,
        id: int,  # noqa: A002 - the core's name
        pointer: int,
        strides: Sequence[int] | None = None,
        **options: Any,
    ) -> bool:
        """Measure a value; the first one of each definition is compressed."""
        definition = self._definitions[id]
        if definition.stored is None:
            definition.stored = self._stored(definition, pointer, strides)
        self._of(step, definition).calls[options.get("call", 0)] = definition
        return True

    def unit_summary(self, step: int, unit_id: int, *_: Any, **__: Any) -> bool:
        """Measure a unit summary: three rows of numbers."""
        definition = self._definitions[unit_id]
        size = tensor_bytes(definition.raw, definition.raw)
        self._of(step, definition).units += size
        return True

    def count_histogram(
        self,
        step: int,
        id: int,  # noqa: A002 - the core's name
        pointer: int,
        strides: Sequence[int] | None = None,
        **_: Any,
    ) -> bool:
        """Compute a histogram, and measure it."""
        definition = self._definitions[id]
        array = _array(definition, pointer, strides)
        keys, _counts = import_module("tdbg._core").count_bins(array)
        self._of(step, definition).histogram += histogram_bytes(len(keys))
        return True

    def scalar(self, step: int, id: int, *_: Any) -> bool:  # noqa: A002
        """Count a number."""
        self._of(step, self._definitions[id]).scalars += 1
        return True

    def end_step(self, step: int, mode: int, mode_step: int, **_: Any) -> bool:
        """Count the content of a step that is complete."""
        self.steps[mode] = self.steps.get(mode, 0) + 1
        known = self.content.setdefault(mode, {})
        for key, content in self._open.pop(step, {}).items():
            first = known.setdefault(key, content)
            if content.scalars and len(first.scalar_steps) < _STEPS:
                first.scalar_steps.append(mode_step)
        return True

    def _of(self, step: int, definition: _Definition) -> StepContent:
        return self._open.setdefault(step, {}).setdefault(definition.key, StepContent())

    def _add_row(self, step: int, number: int, call: int) -> None:
        definition = self._definitions[number]
        content = self._of(step, definition)
        content.rows += 1
        content.calls.setdefault(call, definition)

    def _stored(
        self, definition: _Definition, pointer: int, strides: Sequence[int] | None
    ) -> int:
        """Return the compressed size of a value, without the head of its record."""
        raw = definition.raw
        if self._codec == "none" or not raw or definition.dtype is None:
            return raw
        array = np.ascontiguousarray(_array(definition, pointer, strides))
        size = min(raw, _SAMPLE // array.itemsize * array.itemsize)
        values = array.reshape(-1).view(np.uint8)[:size]
        room = np.empty(2 * size + 4096, np.uint8)
        codec = import_module("tdbg._core").TensorCodec(self._codec)
        length = codec.encode(values, room, definition.text, definition.key[1])
        return int((length - head_bytes(size)) * raw / size)


def _array(
    definition: _Definition, pointer: int, strides: Sequence[int] | None
) -> NDArray[Any]:
    """Return the tensor at an address."""
    shape, dtype = definition.shape, definition.dtype
    if dtype is None or not definition.raw:
        return np.empty(shape, dtype)
    extent = definition.raw
    if strides is not None:
        steps = zip(shape, strides, strict=True)
        extent = sum((n - 1) * step for n, step in steps) + dtype.itemsize
    place = memoryview((ctypes.c_uint8 * extent).from_address(pointer))
    memory = np.frombuffer(place, np.uint8)
    return np.ndarray(shape, dtype, memory, strides=strides)


STEPS = 1000


@dataclass(frozen=True, slots=True)
class DryRunPart:
    """A part of what would be captured in one mode.

    Attributes:
        mode: The mode of the steps.
        name: The collection; ``total`` for everything, each tensor once, with the
            records of the steps themselves.
        tensors: Number of names.
        statistics_bytes: Size on disk of the statistics of one step.
        raw_bytes: Size in memory of the raw values of one step.
        value_bytes: Size on disk of the raw values of one step, compressed like the
            first ones.
        histogram_bytes: Size on disk of the histograms and unit summaries of one step.
        bytes_per_1000_steps: Size on disk of the first thousand steps, as scheduled,
            without the profile, whose size grows with time.
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
        steps: Number of complete steps that captured anything, by mode.
        rules: Names of the rules whose needs are captured.
        parts: The collections of each mode, followed by its total.
    """

    steps: dict[ModeKeys, int]
    parts: tuple[DryRunPart, ...]
    rules: tuple[str, ...] = ()

    def part(self, name: str, mode: ModeKeys = ModeKeys.TRAIN) -> DryRunPart:
        """Return the part of a name and mode.

        Raises:
            KeyError: If nothing of it was captured.
        """
        for part in self.parts:
            if (part.name, part.mode) == (name, mode):
                return part
        raise KeyError(name)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
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
            captured = plural(count, "step")
            lines.append(f"dry run, {mode.name}, {captured} captured; bytes of a step:")
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


def summarize(writer: MeasuringWriter, recorder: Recorder) -> DryRunSummary:
    """Add up what the writer of a session has measured so far."""
    modes = {ModeKeys(mode): count for mode, count in sorted(writer.steps.items())}
    parts: list[DryRunPart] = []
    for mode in modes:
        items = [
            (recorder.entries[name, Role(role)], content)
            for (name, role), content in writer.content.get(mode.value, {}).items()
            if (name, Role(role)) in recorder.entries
        ]
        schedule = _Schedule(recorder, mode)
        for name, has in _collections(recorder.policy):
            members = [(entry, content) for entry, content in items if has(entry)]
            if members:
                cost = sum(schedule.cost(entry, content) for entry, content in members)
                parts.append(_part(mode, name, members, cost))
        cost = sum(schedule.cost(entry, content) for entry, content in items)
        cost += schedule.cost_of_steps(items)
        parts.append(_part(mode, "total", items, cost))
    rules = tuple(str(rule.get("name")) for rule in recorder.policy.rules)
    return DryRunSummary(modes, tuple(parts), rules)


def _collections(
    policy: Policy,
) -> Iterable[tuple[str, Callable[[TensorEntry], bool]]]:
    """Return the names of the parts, with functions of the tensors that they have.

    The parts are the captured collections, those that only rules need, and the unit
    summaries, which only rules need.
    """

    def holder(collection: Collection) -> Callable[[TensorEntry], bool]:
        return lambda entry: collection.has(entry.name, entry.role)

    captured = {item.name: item for item in policy.registry.captured()}
    needed = {name for need in policy.rule_needs.needs for name in need.collections}
    others = {item.name: item for item in policy.registry if item.name in needed}
    for name, collection in sorted({**others, **captured}.items()):
        yield name, holder(collection)
    yield "units", lambda entry: entry.role is Role.UNIT_SUMMARY


class _Schedule:
    """The first steps of a mode, each kind of step once."""

    def __init__(self, recorder: Recorder, mode: ModeKeys) -> None:
        self._policy = recorder.policy
        self._mode = mode
        # Step plan, number of such steps, and whether the hook has statistics there.
        self._kinds: dict[tuple[int, bool], tuple[StepPlan, int, bool]] = {}
        for step in range(STEPS):
            step_plan = self._policy.of_mode(mode).scheduled(step)
            is_due = bool(self._policy.scalars_due(mode, step))
            _, count, _ = self._kinds.get(
                (id(step_plan), is_due), (step_plan, 0, is_due)
            )
            self._kinds[id(step_plan), is_due] = step_plan, count + 1, is_due

    def cost(self, entry: TensorEntry, content: StepContent) -> int:
        """Return the size of a tensor in all these steps, in bytes."""
        return sum(
            count * self._bytes(entry, content, step_plan, is_due=is_due)
            for step_plan, count, is_due in self._kinds.values()
        )

    def cost_of_steps(self, items: list[tuple[TensorEntry, StepContent]]) -> int:
        """Return the size of the records of steps in which anything is captured."""
        total = 0
        for step_plan, count, is_due in self._kinds.values():
            n_rows = sum(
                content.rows
                for entry, content in items
                if step_plan.of_entry(entry) & ROWS
            )
            if any(
                self._bytes(entry, content, step_plan, is_due=is_due)
                for entry, content in items
            ):
                total += count * step_bytes(n_rows)
        return total

    def _bytes(
        self,
        entry: TensorEntry,
        content: StepContent,
        step_plan: StepPlan,
        *,
        is_due: bool,
    ) -> int:
        """Return the size of a tensor in one step with this plan."""
        if entry.role is not Role.SCALAR:
            return _bytes(step_plan.of_entry(entry), entry, content)
        is_here = is_due or not self._is_rare(entry, content)
        return SCALAR * content.scalars if is_here else 0

    def _is_rare(self, entry: TensorEntry, content: StepContent) -> bool:
        """Whether a number is of an optimizer's group, and does not change.

        All other numbers are taken to come at every step.
        """
        return entry.name.startswith(GROUP_SCALARS) and all(
            step == 0 or bool(self._policy.scalars_due(self._mode, step))
            for step in content.scalar_steps
        )


def _bytes(requested: int, entry: TensorEntry, content: StepContent) -> int:
    total = ROW * content.rows if requested & ROWS else 0
    if (
        requested & VALUES
        or (requested & SMALL_VALUES and content.is_single)
        or (requested & LIMITED_VALUES and content.raw_bytes <= entry.raw_limit)
    ):
        total += content.value_bytes
    if requested & HISTOGRAM:
        total += content.histogram
    return total + (content.units if requested & UNITS else 0)


def _part(
    mode: ModeKeys,
    name: str,
    items: Iterable[tuple[TensorEntry, StepContent]],
    bytes_per_1000_steps: int,
) -> DryRunPart:
    every = [content for _, content in items]
    return DryRunPart(
        mode=mode,
        name=name,
        tensors=len(every),
        statistics_bytes=sum(
            ROW * content.rows + SCALAR * content.scalars for content in every
        ),
        raw_bytes=sum(content.raw_bytes for content in every),
        value_bytes=sum(content.value_bytes for content in every),
        histogram_bytes=sum(content.histogram + content.units for content in every),
        bytes_per_1000_steps=bytes_per_1000_steps,
    )


def _text(n_bytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"
