"""Builds runs for tests, as a hook would, from NumPy arrays."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tdbg import _core
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run
from tdbg.run.profile_tables import table_name, written_columns

__all__ = ["RunBuilder", "new_attempt", "simple_run"]

ROLE_OF_PREFIX = {"gradient/": Role.GRADIENT, "unit/": Role.UNIT_SUMMARY}


class RunBuilder:
    """One writer of a run: a worker, or with another *role* an engine."""

    def __init__(
        self,
        path: Path,
        *,
        rank: int = 0,
        world_size: int = 1,
        attempt: bytes = b"attempt-number-0",
        ordinal: int = 0,
        role: str = "train",
        **options: Any,
    ) -> None:
        run = create_run(path)
        options.setdefault("min_free_bytes", 0)
        self.capture = _core.Capture(
            str(run.path),
            run_uuid=run.uuid,
            attempt_uuid=attempt,
            attempt_ordinal=ordinal,
            role=role,
            rank=rank,
            world_size=world_size,
            **options,
        )
        self._mode_steps = dict.fromkeys(ModeKeys, 0)

    @property
    def directory(self) -> Path:
        return Path(self.capture.directory)

    def define(
        self,
        name: str,
        array: NDArray[Any],
        role: Role | None = None,
        **options: Any,
    ) -> int:
        """Id of a definition for arrays like this one."""
        if role is None:
            matching = (r for p, r in ROLE_OF_PREFIX.items() if name.startswith(p))
            role = next(matching, Role.OUTPUT if "_output_" in name else Role.WEIGHT)
        text = array.dtype.name
        known = array.dtype.kind in "biufcV" and text not in ("longdouble", "float128")
        return self.capture.define(
            name,
            int(role),
            text if known else array.dtype.str,
            array.shape,
            item_size=array.dtype.itemsize,
            **options,
        )

    def save(
        self,
        step: int,
        name: str,
        array: NDArray[Any],
        *,
        what: str = "any",
        call: int = 0,
        micro_batch: int = 0,
        role: Role | None = None,
        **options: Any,
    ) -> None:
        """Save the row, the value, or ("any") both."""
        number = self.define(name, array, role, **options)
        site = {"call": call, "micro_batch": micro_batch}
        pointer, strides = array.ctypes.data, array.strides
        if what in ("any", "statistics"):
            self.capture.statistics(step, [number], [pointer], [strides], **site)
        if what in ("any", "values"):
            self.capture.values(step, number, pointer, strides, **site)

    def histogram(
        self,
        step: int,
        name: str,
        array: NDArray[Any],
        *,
        call: int = 0,
        micro_batch: int = 0,
        scale: float = 1.0,
        role: Role | None = None,
        **options: Any,
    ) -> None:
        """Save the histogram."""
        assert self.capture.count_histogram(
            step,
            self.define(name, array, role, **options),
            array.ctypes.data,
            array.strides,
            call=call,
            micro_batch=micro_batch,
            scale=scale,
        )

    def scalar(self, step: int, name: str, value: float, wall_ns: int = 1) -> None:
        number = self.capture.define(name, int(Role.SCALAR))
        self.capture.scalar(step, number, value, wall_ns)

    def samples(self, table: str, rows: NDArray[Any], instance: str = "") -> None:
        """Rows of a table of a profile, as one record."""
        name, columns = table_name(table, instance), written_columns(rows.dtype)
        assert self.capture.samples(name, columns, np.ascontiguousarray(rows))

    def spans(self, step: int, spans: Sequence[tuple[str, int, int, int]]) -> None:
        """Spans of time in one record: name, start, duration in ns, and thread."""
        rows = np.zeros(len(spans), _core.SPAN_DTYPE)
        for row, (name, start, duration, thread) in zip(rows, spans, strict=True):
            row["definition"] = self.capture.define(name, int(Role.SPAN))
            row["start_ns"], row["duration_ns"] = start, duration
            row["thread"] = thread
        assert self.capture.spans(step, rows)

    def event(self, kind: int, content: Mapping[str, Any], step: int = -1) -> None:
        """An event of the run."""
        assert self.capture.event(step, int(kind), 1, json.dumps(content).encode())

    def end_step(
        self,
        step: int,
        mode: ModeKeys = ModeKeys.TRAIN,
        mode_step: int | None = None,
        **options: Any,
    ) -> None:
        """End the step; all steps below it are of its mode unless others were ended."""
        if mode_step is None:
            others = sum(n for other, n in self._mode_steps.items() if other != mode)
            mode_step = max(step - others, 0)
        self._mode_steps[mode] = mode_step + 1
        self.capture.end_step(step, mode.value, mode_step, **options)

    def step(
        self,
        step: int,
        tensors: Mapping[str, NDArray[Any]],
        mode: ModeKeys = ModeKeys.TRAIN,
        *,
        what: str = "any",
        **options: Any,
    ) -> None:
        """A whole step of these tensors."""
        for name, array in tensors.items():
            self.save(step, name, array, what=what)
        self.end_step(step, mode, **options)

    def flush(self) -> None:
        self.capture.flush()

    def close(self) -> None:
        assert self.capture.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def simple_run(path: Path, steps: Sequence[int] = range(5), seed: int = 0) -> None:
    """A finished run of one worker: fc.weight and its gradient at each step."""
    random = np.random.default_rng(seed)
    with RunBuilder(path) as run:
        for step in steps:
            run.step(
                step,
                {
                    "fc.weight": random.normal(size=(4, 3)).astype(np.float32),
                    "gradient/fc.weight": random.normal(size=(4, 3)).astype(np.float32),
                },
            )


def new_attempt() -> bytes:
    return uuid.uuid4().bytes
