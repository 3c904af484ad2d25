"""One tensor of a run: its values and statistics by step.

Steps are global steps with ``mode=GLOBAL`` (the default), and that mode's own count
with any other.

Thread safety: may be used from any thread; the trial's lock is held inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg import statistics
from tdbg._core import Definition
from tdbg.errors import (
    ConfigurationError,
    QueryError,
    ShapeUnavailableForStep,
    TensorUnavailableForStep,
)
from tdbg.modes import ModeKeys
from tdbg.trial import _lookup
from tdbg.trial._histogram import HistogramQueries
from tdbg.trial._lookup import Call
from tdbg.trial._roles import extreme_class, has_statistics, role_of
from tdbg.trial._row import TensorStatistics, as_row, extremes_of
from tdbg.trial._run import RunState
from tdbg.trial._selection import global_step_of, saved_near, steps_of
from tdbg.trial._shards import is_shard, whole_count
from tdbg.trial._states import StepState, missing_step, mode_key, state_of
from tdbg.trial._statistics import merge_rows
from tdbg.trial._values import ValuesOfSteps, incomplete, value_of

__all__ = ["TensorHandle"]


class TensorHandle(HistogramQueries):
    """A tensor as the trial sees it; made by ``Trial.tensor``.

    Attributes:
        name: Its name.
    """

    def __init__(self, run: RunState, name: str) -> None:
        self._run = run
        self.name = name

    def __repr__(self) -> str:
        return f"TensorHandle({self.name!r}, role={self.role!r}, dtype={self.dtype!r})"

    @property
    def role(self) -> str:
        """What it is: weight, bias, gradient, input, output, loss, scalar, ..."""
        definition = self._definition()
        return "other" if definition is None else role_of(definition).name.lower()

    @property
    def position(self) -> int:
        """Its place in the order in which tensors first came: that of execution."""
        with self._run.fresh() as run:
            for lane in run.lanes:
                if self.name in lane.writer.ids:
                    return lane.writer.ids[self.name][0]
            return 0

    @property
    def dtype(self) -> str:
        """Name of the element type of NumPy or ml_dtypes."""
        definition = self._definition()
        return definition.dtype or "float64" if definition is not None else ""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Further names of the same tensor."""
        definition = self._definition()
        return () if definition is None else definition.aliases

    def steps(
        self,
        mode: ModeKeys | str = ModeKeys.GLOBAL,
        what: str = "any",
        show_incomplete_steps: bool = False,
    ) -> list[int]:
        """Steps at which it was saved, ascending.

        Args:
            mode: In the count of this mode; GLOBAL: all, as global steps.
            what: "values" for raw values, "statistics" for rows, "any" for both,
                "histograms".
            show_incomplete_steps: Also those for which more may come.
        """
        with self._run.fresh() as run:
            return steps_of(run, self.name, mode_key(mode), what, show_incomplete_steps)

    def prev_steps(
        self,
        step: int,
        n: int | None = None,
        mode: ModeKeys | str = ModeKeys.GLOBAL,
    ) -> list[int]:
        """The last *n* (None: all) of its steps up to *step*, itself included."""
        before = [s for s in self.steps(mode) if s <= step]
        return before if n is None else before[max(0, len(before) - max(0, n)) :]

    def workers(self, step: int, mode: ModeKeys | str = ModeKeys.GLOBAL) -> list[str]:
        """Names of the workers that saved it at *step*.

        Raises:
            TensorUnavailableForStep: If there is none.
        """
        with self._run.fresh() as run:
            at = self._global_step(step, mode_key(mode))
            found = {entry.lane.worker for entry in _lookup.entries(run, self.name, at)}
            rows = _lookup.row_entries(run, self.name, at)
            found |= {entry.lane.worker for entry in rows}
            if not found:
                raise self._unavailable(step, mode_key(mode))
            return [worker for worker in run.workers if worker in found]

    def calls(
        self,
        step: int,
        mode: ModeKeys | str = ModeKeys.GLOBAL,
        worker: str | None = None,
    ) -> list[Call]:
        """The (micro_batch, call) pairs that were saved at *step*, in order."""
        with self._run.fresh() as run:
            at = self._global_step(step, mode_key(mode))
            found = {e.call for e in _lookup.entries(run, self.name, at, worker)}
            for entry in _lookup.row_entries(run, self.name, at, worker):
                found.update(_lookup.calls_of(entry))
            return sorted(found)

    def value(
        self,
        step: int,
        mode: ModeKeys | str = ModeKeys.GLOBAL,
        worker: str | None = None,
        *,
        call: int | None = None,
        micro_batch: int | None = None,
    ) -> NDArray[Any]:
        """The raw value, as an array that cannot be written to.

        Where several were saved at the step, it is that of the first worker's first
        micro-batch and call; unit summaries are added up instead, and the parts of a
        sharded tensor put together.

        Raises:
            StepUnavailable: If nothing was saved at *step*.
            StepNotYetAvailable: If that step may still come.
            NoMoreData: If the training ended before it.
            TensorUnavailableForStep: If this tensor has no raw value there, or not
                all parts of it.
            InvalidWorker: If there is no such worker.
            StorageError: If the value cannot be read.
        """
        key = mode_key(mode)
        with self._run.fresh() as run:
            at = self._global_step(step, key)
            found = _lookup.entries(run, self.name, at, worker)
            found = [e for e in found if _lookup.is_call(e.call, call, micro_batch)]
            if not found:
                raise self._unavailable(step, key, worker, call, micro_batch)
            return value_of(run, self.name, step, found, is_whole=worker is None)

    def values_between(self, start: int, stop: int) -> Mapping[int, NDArray[Any]]:
        """Raw values at global steps in ``start <= step < stop``, read when asked for.

        Cheaper than ``value`` for many steps, and each is what ``value`` gives.
        """
        with self._run.fresh() as run:
            found = _lookup.entries_between(run, self.name, start, stop)
            return ValuesOfSteps(run, self.name, found)

    def values(
        self, mode: ModeKeys | str = ModeKeys.GLOBAL, worker: str | None = None
    ) -> dict[int, NDArray[Any]]:
        """All raw values by step."""
        key = mode_key(mode)
        with self._run.fresh() as run, run.frozen():
            steps = steps_of(run, self.name, key, "values", False, worker)
            return {step: self.value(step, key, worker) for step in steps}

    def stats(
        self,
        step: int,
        mode: ModeKeys | str = ModeKeys.GLOBAL,
        worker: str | None = None,
        *,
        call: int | None = None,
        micro_batch: int | None = None,
    ) -> TensorStatistics:
        """The statistics row: counts, and moments and extremes of what is finite.

        Merged over calls, micro-batches and workers, unless one is asked for;
        computed from the raw value where no row was saved. docs/distributed.md says
        what merges over workers.

        Raises:
            QueryError: As ``value`` does.
        """
        row, number = self._row(step, mode_key(mode), worker, call, micro_batch)
        return TensorStatistics.of(row, number)

    def reduction_value(
        self,
        step: int,
        reduction_name: str,
        mode: ModeKeys | str = ModeKeys.GLOBAL,
        worker: str | None = None,
        abs: bool = False,  # noqa: A002 - smdebug's name
    ) -> float:
        """What NumPy says, in float64, of all elements: NaN in, NaN out.

        Args:
            step: The step.
            reduction_name: min, max, mean, std, variance, sum, l1 or l2.
            mode: Whose count *step* is in.
            worker: Of this worker alone.
            abs: Of the absolute values.

        Raises:
            ConfigurationError: If there is no such reduction.
            QueryError: As ``value`` does.
        """
        if reduction_name not in statistics.REDUCTIONS:
            valid = ", ".join(statistics.REDUCTIONS)
            msg = f"unknown reduction {reduction_name!r}: use one of {valid}"
            raise ConfigurationError(msg)
        row, number = self._row(step, mode_key(mode), worker, None, None)
        extremes = extremes_of(row, number)
        return statistics.reduction_value(row, reduction_name, abs, extremes=extremes)

    def reduction_values(
        self,
        step: int,
        mode: ModeKeys | str = ModeKeys.GLOBAL,
        worker: str | None = None,
    ) -> dict[tuple[str, bool], float]:
        """All reductions by (name, of absolute values)."""
        row, number = self._row(step, mode_key(mode), worker, None, None)
        return statistics.reduction_values(row, extremes=extremes_of(row, number))

    def shape(
        self,
        step: int,
        mode: ModeKeys | str = ModeKeys.GLOBAL,
        worker: str | None = None,
    ) -> tuple[int, ...]:
        """Its shape at *step*, on the first worker that saved it.

        Of a sharded tensor that of the whole, unless a worker is asked for.

        Raises:
            ShapeUnavailableForStep: If it was not saved at that step.
            InvalidWorker: If there is no such worker.
        """
        with self._run.fresh() as run:
            key = mode_key(mode)
            try:
                at = self._global_step(step, key)
            except QueryError as error:
                raise ShapeUnavailableForStep(str(error)) from error
            for entry in _lookup.row_entries(run, self.name, at, worker):
                calls = _lookup.calls_of(entry)
                first = entry.rows["definition"][calls.index(min(calls))]
                definition = entry.lane.writer.definitions[int(first)]
                return _shape_of(definition, worker)
            for raw in _lookup.entries(run, self.name, at, worker):
                return _shape_of(raw.definition, worker)
            msg = f"{self.name!r} has no shape at step {step} (mode {key.name})"
            raise ShapeUnavailableForStep(msg)

    # --- Inside -------------------------------------------------------------

    def _definition(self) -> Definition | None:
        with self._run.lock:
            return self._run.definition(self.name)

    def _global_step(self, step: int, mode: ModeKeys) -> int:
        """The global step that *step* is; raises where nothing can be there."""
        run = self._run
        found = global_step_of(run, step, mode)
        if found is None or not run.has_data(found):
            raise missing_step(run, step, mode)
        return found

    def _row(
        self,
        step: int,
        mode: ModeKeys,
        worker: str | None,
        call: int | None,
        micro_batch: int | None,
    ) -> tuple[np.void, int]:
        """The row at *step*, and the class that its extremes are of."""
        with self._run.fresh() as run:
            at = self._global_step(step, mode)
            found = _lookup.row_entries(run, self.name, at, worker)
            found = [_lookup.of_call(entry, call, micro_batch) for entry in found]
            found = [entry for entry in found if len(entry.rows)]
            if not found:
                raw = [
                    entry
                    for entry in _lookup.entries(run, self.name, at, worker)
                    if _lookup.is_call(entry.call, call, micro_batch)
                ]
                found = [
                    _lookup.reduce_value(entry, at)
                    for entry in raw
                    if has_statistics(entry.definition)
                ]
                if raw and not found:
                    dtype = raw[0].definition.dtype
                    msg = f"{self.name!r}: {dtype} has no statistics"
                    raise TensorUnavailableForStep(msg)
            if not found:
                raise self._unavailable(step, mode, worker, call, micro_batch)
            definitions = found[0].lane.writer.definitions
            row = found[0].rows[0]
            definition = definitions[int(row["definition"])]
            is_part = worker is None and whole_count(definition) > 0
            if len(found) == 1 and len(found[0].rows) == 1 and not is_part:
                return row, extreme_class(definition.dtype)
            merged = merge_rows(self.name, at, found, in_parts=worker is not None)
            if not merged.present.all():
                raise incomplete(run, self.name, step, found)
            return as_row(merged), int(merged.extreme_classes[0])

    def _unavailable(
        self,
        step: int,
        mode: ModeKeys,
        worker: str | None = None,
        call: int | None = None,
        micro_batch: int | None = None,
    ) -> QueryError:
        """The error for what is not there at a step that exists."""
        run = self._run
        if state_of(run, step, mode) is StepState.NOT_YET_AVAILABLE:
            return missing_step(run, step, mode)
        msg = f"{self.name!r} has no value at step {step} (mode {mode.name})"
        if worker is not None:
            msg += f" of {worker}"
        if call is not None or micro_batch is not None:
            msg += f" for call {call}, micro-batch {micro_batch}"
        at = global_step_of(run, step, mode)
        if at is not None and _lookup.row_entries(run, self.name, at, worker):
            msg += (
                "; its statistics are there: use stats(step) or "
                "reduction_value(step, name)"
            )
        else:
            near = saved_near(run, self.name, step, mode)
            msg += "" if near is None else f"; the nearest step that has one is {near}"
        return TensorUnavailableForStep(msg)


def _shape_of(definition: Definition, worker: str | None) -> tuple[int, ...]:
    is_part = worker is None and is_shard(definition)
    return definition.global_shape if is_part else definition.shape
