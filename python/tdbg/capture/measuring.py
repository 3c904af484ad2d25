"""A sink that writes nothing and notes what it would have written: for dry runs.

Thread safety: the session's.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tdbg.capture.sink import NullSink
from tdbg.capture.sizes import head_bytes, histogram_bytes, tensor_bytes

__all__ = ["MeasuringSink", "Seen"]

# Of a larger tensor so many bytes are compressed, and stand for all.
_SAMPLE = 4 << 20
# Of a number so many steps are noted.
_STEPS = 64


class _Definition:
    """What was defined, and what one value of it takes."""

    __slots__ = ("dtype", "key", "raw", "shape", "stored", "text")

    def __init__(self, name: str, role: int, text: str, shape: Sequence[int]) -> None:
        self.key = (name, role)
        self.text = text
        self.dtype = np.dtype(getattr(ml_dtypes, text, text)) if text else None
        self.shape = tuple(shape)
        size = self.dtype.itemsize if self.dtype is not None else 0
        self.raw = math.prod(self.shape) * size
        self.stored: int | None = None  # None: no value was seen.

    @property
    def value_bytes(self) -> int:
        """What a value takes on the disk."""
        return tensor_bytes(self.raw, self.raw if self.stored is None else self.stored)


class Seen:
    """What a step had of one name.

    Attributes:
        rows: Statistics rows: one a call and micro-batch.
        calls: What was called so, by call; each has a value where values are wanted.
        histogram: Bytes of its histograms, as they were taken.
        units: Bytes of its unit summaries, likewise.
        scalars: Numbers.
        scalar_steps: Of its mode, in which numbers were recorded; the first ones.
    """

    __slots__ = ("calls", "histogram", "rows", "scalar_steps", "scalars", "units")

    def __init__(self) -> None:
        self.rows = self.histogram = self.units = self.scalars = 0
        self.calls: dict[int, _Definition] = {}
        self.scalar_steps: list[int] = []

    @property
    def raw_bytes(self) -> int:
        """Of its values, in memory."""
        return sum(each.raw for each in self.calls.values())

    @property
    def value_bytes(self) -> int:
        """Of its values, on the disk."""
        return sum(each.value_bytes for each in self.calls.values())

    @property
    def is_single(self) -> bool:
        """Whether each of its values is one number."""
        return all(math.prod(each.shape) == 1 for each in self.calls.values())


class MeasuringSink(NullSink):
    """Notes what a step would have written, by mode and name.

    Args:
        codec: How values would be stored.

    Attributes:
        steps: Complete steps so far that captured anything, by mode.
        seen: By mode, and by name and role: what the first step had that had any.
    """

    def __init__(self, codec: str) -> None:
        super().__init__()
        self._codec = codec
        self._definitions: dict[int, _Definition] = {}
        self._open: dict[int, dict[tuple[str, int], Seen]] = {}
        self.steps: dict[int, int] = {}
        self.seen: dict[int, dict[tuple[str, int], Seen]] = {}

    def define(self, *arguments: Any, **_: Any) -> int:
        """A new number, that stands for this name, type and shape."""
        number = super().define()
        name, role, text, shape = (*arguments, "", ())[:4]
        self._definitions[number] = _Definition(name, role, text, shape)
        return number

    def statistics(
        self, step: int, ids: Sequence[int], *_: Any, **options: Any
    ) -> None:
        """Rows of these."""
        for number in ids:
            self._add_row(step, number, options.get("call", 0))

    def add_rows(
        self, step: int, ids: Sequence[int], calls: Sequence[int], *_: Any, **__: Any
    ) -> None:
        """Rows that a device took."""
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
        """A value; the first of each is compressed to learn its size."""
        definition = self._definitions[id]
        if definition.stored is None:
            definition.stored = self._stored(definition, pointer, strides)
        self._of(step, definition).calls[options.get("call", 0)] = definition
        return True

    def unit_summary(self, step: int, unit_id: int, *_: Any, **__: Any) -> bool:
        """Counts of units, as three rows of numbers."""
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
        """A histogram, which is taken to learn its size."""
        definition = self._definitions[id]
        array = _array(definition, pointer, strides)
        keys, _counts = import_module("tdbg._core").count_bins(array)
        self._of(step, definition).histogram += histogram_bytes(len(keys))
        return True

    def scalar(self, step: int, id: int, *_: Any) -> bool:  # noqa: A002
        """A number."""
        self._of(step, self._definitions[id]).scalars += 1
        return True

    def end_step(self, step: int, mode: int, mode_step: int, **_: Any) -> bool:
        """The step is complete: what it had counts."""
        self.steps[mode] = self.steps.get(mode, 0) + 1
        known = self.seen.setdefault(mode, {})
        for key, seen in self._open.pop(step, {}).items():
            first = known.setdefault(key, seen)
            if seen.scalars and len(first.scalar_steps) < _STEPS:
                first.scalar_steps.append(mode_step)
        return True

    def _of(self, step: int, definition: _Definition) -> Seen:
        return self._open.setdefault(step, {}).setdefault(definition.key, Seen())

    def _add_row(self, step: int, number: int, call: int) -> None:
        definition = self._definitions[number]
        seen = self._of(step, definition)
        seen.rows += 1
        seen.calls.setdefault(call, definition)

    def _stored(
        self, definition: _Definition, pointer: int, strides: Sequence[int] | None
    ) -> int:
        """What a value is stored as, without the head of its record."""
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
    """The tensor that lies there."""
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
