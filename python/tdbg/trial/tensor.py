"""One tensor of a run: its values and statistics by step.

Steps are training steps, as the training's own loop counts them; of a tensor that was
recorded in evaluation alone, they are steps of evaluation.  With a mode, they are that
mode's own count, and global steps with ``mode="GLOBAL"``.

Thread safety: may be used from any thread; the trial's lock is held inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg._core import ROW_DTYPE, Definition
from tdbg.config.quantities import join_names
from tdbg.errors import (
    ConfigurationError,
    QueryError,
    ShapeUnavailableForStep,
    TensorUnavailableForStep,
)
from tdbg.modes import ModeKeys
from tdbg.shown import Shown
from tdbg.stats import rows
from tdbg.stats.row_fields import EXTREMES, FIELDS, RowFields
from tdbg.trial import shards, told_reductions, values
from tdbg.trial.envelope import Envelope
from tdbg.trial.histograms import HistogramQueries
from tdbg.trial.removed import removed_at
from tdbg.trial.run import RunState
from tdbg.trial.selection import (
    Count,
    StepState,
    count_of,
    global_step_of,
    in_words,
    missing_step,
    saved_near,
    state_of,
    steps_of,
)
from tdbg.trial.shards import (
    OF_SAMPLES,
    extreme_class,
    has_statistics,
    role_of,
    whole_count,
    whole_shape,
)
from tdbg.trial.statistics import Statistics, merge_rows
from tdbg.trial.table_queries import TableQueries
from tdbg.trial.values import Call, ValuesOfSteps, incomplete, value_of

__all__ = ["TensorHandle", "TensorStatistics", "as_row", "extremes_of"]


@dataclass(frozen=True, slots=True)
class TensorStatistics(RowFields[int, float | int, float]):
    """The statistics of one tensor at one step."""

    @classmethod
    def of(cls, row: np.void, number: int) -> TensorStatistics:
        """Make statistics of a core row; *number* is the class of its extremes."""
        values = {name: row[name].item() for name in FIELDS}
        values["min"], values["max"] = extremes_of(row, number)
        return cls(**values)

    @property
    def finite(self) -> int:
        """How many elements are neither NaN nor infinite."""
        return self.count - self.nan - self.positive_infinity - self.negative_infinity

    @property
    def variance(self) -> float:
        """Population variance; NaN if no element is finite, or m2 cannot be true."""
        return self.m2 / self.finite if self.finite and self.m2 >= 0 else math.nan

    @property
    def std(self) -> float:
        """Population standard deviation."""
        return math.sqrt(self.variance)

    @property
    def rms(self) -> float:
        """Root mean square."""
        return self.l2 / math.sqrt(self.finite) if self.finite else math.nan


def extremes_of(row: np.void, number: int) -> tuple[float | int, float | int]:
    """Minimum and maximum of a row whose extremes are of the class *number*.

    A zero has no sign: which of two zeros is the larger depends on who looks.
    """
    if row["abs_min"] == math.inf:
        return math.inf, -math.inf
    dtype = shards.CLASS_DTYPES[number]
    return row["min"].view(dtype).item() + 0, row["max"].view(dtype).item() + 0


def as_row(merged: Statistics) -> np.void:
    """The only entry of *merged*, as the core lays a row out."""
    rows = np.zeros(1, ROW_DTYPE)
    extremes = dict(zip(EXTREMES, merged.extreme_bits, strict=True))
    for name in FIELDS:
        rows[name] = extremes.get(name, getattr(merged, name))[0, 0]
    result: np.void = rows[0]
    return result


class TensorHandle(HistogramQueries, Shown):
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
        """Return its role: weight, bias, gradient, input, output, loss, scalar, ..."""
        definition = self._definition()
        return "other" if definition is None else role_of(definition).name.lower()

    @property
    def is_of_samples(self) -> bool:
        """Whether each worker has a share of the batch: inputs, outputs, losses."""
        definition = self._definition()
        return definition is not None and role_of(definition) in OF_SAMPLES

    @property
    def position(self) -> int:
        """Its place in the order in which tensors first came: that of execution."""
        with self._run.fresh() as run:
            return run.positions([self.name])[0]

    @property
    def dtype(self) -> str:
        """Name of the element type of NumPy or ml_dtypes."""
        definition = self._definition()
        return definition.dtype or "float64" if definition is not None else ""

    @property
    def first_shape(self) -> tuple[int, ...]:
        """Its shape as it first came, in any mode; of a sharded tensor the whole one.

        For what is the same at all steps, as all but the number of samples of a batch
        usually is: ``shape`` reads that of a step.

        Example:
            >>> trial.tensor("CrossEntropyLoss_input_1").first_shape  # doctest: +SKIP
            (64,)
        """
        with self._run.fresh() as run:
            for source in run.sources:
                if self.name in source.writer.ids:
                    first = source.writer.ids[self.name][0]
                    return whole_shape(source.writer.definitions[first])
            return ()

    @property
    def aliases(self) -> tuple[str, ...]:
        """Further names of the same tensor."""
        definition = self._definition()
        return () if definition is None else definition.aliases

    def steps(
        self,
        mode: ModeKeys | str | None = None,
        what: str = "any",
        show_incomplete_steps: bool = False,
        worker: str | None = None,
    ) -> list[int]:
        """Steps at which it was saved, ascending.

        Args:
            mode: In the count of this mode; None: steps of training; GLOBAL: those of
                all modes, as global steps.
            what: "values" for raw values and scalars, "statistics" for rows, "any" for
                both, "tensors" for both without scalars, "histograms".
            show_incomplete_steps: Also those for which more may come.
            worker: Only those at which this worker saved it.

        Raises:
            ConfigurationError: If *what* is none of these.
            InvalidWorker: If there is no such worker.
        """
        with self._run.fresh() as run:
            key = count_of(run, self.name, mode)
            shows = show_incomplete_steps
            found = steps_of(run, self.name, key, what, shows, worker)
            if found or what != "any":
                return found
            return told_reductions.steps(run, self.name, key, worker)

    def global_step(self, step: int, mode: ModeKeys | str | None = None) -> int | None:
        """Return the global number of one of its steps; None if it was not recorded.

        Args:
            step: The step.
            mode: Whose count it is in, as of ``steps``.
        """
        with self._run.fresh() as run:
            return global_step_of(run, step, count_of(run, self.name, mode))

    def prev_steps(
        self,
        step: int,
        n: int | None = None,
        mode: ModeKeys | str | None = None,
    ) -> list[int]:
        """The last *n* (None: all) of its steps up to *step*, itself included."""
        before = [s for s in self.steps(mode) if s <= step]
        return before if n is None else before[max(0, len(before) - max(0, n)) :]

    def workers(self, step: int, mode: ModeKeys | str | None = None) -> list[str]:
        """Names of the workers that saved it at *step*.

        Raises:
            TensorUnavailableForStep: If there is none.
        """
        with self._run.fresh() as run:
            key = count_of(run, self.name, mode)
            at = self._global_step(step, key)
            found = {
                entry.source.worker for entry in values.entries(run, self.name, at)
            }
            rows = values.row_entries(run, self.name, at)
            found |= {entry.source.worker for entry in rows}
            if not found:
                raise self._unavailable(step, key)
            return [worker for worker in run.workers if worker in found]

    def calls(
        self,
        step: int,
        mode: ModeKeys | str | None = None,
        worker: str | None = None,
    ) -> list[Call]:
        """The (micro_batch, call) pairs that were saved at *step*, in order."""
        with self._run.fresh() as run:
            at = self._global_step(step, count_of(run, self.name, mode))
            found = {e.call for e in values.entries(run, self.name, at, worker)}
            for entry in values.row_entries(run, self.name, at, worker):
                found.update(values.calls_of(entry))
            return sorted(found)

    def value(
        self,
        step: int,
        mode: ModeKeys | str | None = None,
        worker: str | None = None,
        *,
        call: int | None = None,
        micro_batch: int | None = None,
    ) -> NDArray[Any]:
        """The raw value, as an array that cannot be written to.

        Where several were saved at the step, it is that of the first micro-batch and
        call.  Without a worker it is of all of them, as ``stats`` is: the batch of
        inputs, outputs, labels and losses, put together by rank, the mean of losses
        that are one number, the whole of a sharded tensor, and the sum of unit
        summaries.  What is the same on all workers, as weights are, is the first's.

        Raises:
            StepUnavailable: If nothing was saved at *step*.
            StepNotYetAvailable: If that step may still come.
            NoMoreData: If the training ended before it.
            TensorUnavailableForStep: If this tensor has no raw value there, or not
                all parts of it.
            InvalidWorker: If there is no such worker.
            StorageError: If the value cannot be read.
        """
        with self._run.fresh() as run:
            key = count_of(run, self.name, mode)
            at = self._global_step(step, key)
            found = values.entries(run, self.name, at, worker)
            found = [e for e in found if values.is_call(e.call, call, micro_batch)]
            if not found:
                raise self._unavailable(step, key, worker, call, micro_batch)
            return value_of(run, self.name, step, found, is_whole=worker is None)

    def values_between(self, start: int, stop: int) -> Mapping[int, NDArray[Any]]:
        """Raw values at global steps in ``start <= step < stop``, read when asked for.

        Cheaper than ``value`` for many steps, and each is what ``value`` gives.
        """
        with self._run.fresh() as run:
            found = values.entries_between(run, self.name, start, stop)
            return ValuesOfSteps(run, self.name, found)

    def values(
        self, mode: ModeKeys | str | None = None, worker: str | None = None
    ) -> dict[int, NDArray[Any]]:
        """Return all raw values by step: those of training, unless a mode is given."""
        with self._run.fresh() as run, run.frozen():
            key = count_of(run, self.name, mode)
            steps = steps_of(run, self.name, key, "values", False, worker)
            return {step: self.value(step, key, worker) for step in steps}

    def stats(
        self,
        step: int,
        mode: ModeKeys | str | None = None,
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
        row, number = self._row(step, mode, worker, call, micro_batch)
        return TensorStatistics.of(row, number)

    def envelope(
        self,
        *,
        mode: ModeKeys | str | None = None,
        start: int | None = None,
        stop: int | None = None,
        columns: int = 1000,
        fields: str | Sequence[str] = ("l2",),
        quick: bool = False,
    ) -> Envelope:
        """``Trial.envelope`` of this tensor alone: arrays of shape (1, columns).

        Example:
            e = trial.tensor("gradient/fc.weight").envelope(columns=800)
            plt.fill_between(e.edges[:-1], e.low["l2"][0], e.high["l2"][0], step="post")
        """
        return TableQueries(self._run).envelope(
            [self.name],
            mode=mode,
            start=start,
            stop=stop,
            columns=columns,
            fields=fields,
            quick=quick,
        )

    def reduction_value(
        self,
        step: int,
        reduction_name: str,
        mode: ModeKeys | str | None = None,
        worker: str | None = None,
        abs: bool = False,  # noqa: A002 - smdebug's name
    ) -> float:
        """What NumPy says, in float64, of all elements: NaN in, NaN out.

        Args:
            step: The step.
            reduction_name: min, max, mean, std, variance, sum, l1, l2 or rms; also what
                smdebug stored of a tensor without its values, such as prod.
            mode: Whose count *step* is in.
            worker: Of this worker alone.
            abs: Of the absolute values.

        Raises:
            ConfigurationError: If there is no such reduction.
            QueryError: As ``value`` does.
        """
        told = self._told(step, mode, worker)
        if (reduction_name, abs) in told:
            return told[reduction_name, abs]
        if reduction_name not in rows.REDUCTIONS:
            valid = ", ".join(rows.REDUCTIONS)
            msg = f"unknown reduction {reduction_name!r}: use one of {valid}"
            raise ConfigurationError(msg)
        row, number = self._row(step, mode, worker, None, None)
        extremes = extremes_of(row, number)
        return rows.reduction_value(row, reduction_name, abs, extremes=extremes)

    def reduction_values(
        self,
        step: int,
        mode: ModeKeys | str | None = None,
        worker: str | None = None,
    ) -> dict[tuple[str, bool], float]:
        """All reductions by (name, of absolute values)."""
        told = self._told(step, mode, worker)
        if told:
            return told
        row, number = self._row(step, mode, worker, None, None)
        return rows.reduction_values(row, extremes=extremes_of(row, number))

    def shape(
        self,
        step: int,
        mode: ModeKeys | str | None = None,
        worker: str | None = None,
    ) -> tuple[int, ...]:
        """Its shape at *step*, on the first worker that saved it.

        Of a sharded tensor that of the whole, unless a worker is asked for.

        Raises:
            ShapeUnavailableForStep: If it was not saved at that step.
            InvalidWorker: If there is no such worker.
        """
        with self._run.fresh() as run:
            key = count_of(run, self.name, mode)
            try:
                at = self._global_step(step, key)
            except QueryError as error:
                raise ShapeUnavailableForStep(str(error)) from error
            for entry in values.row_entries(run, self.name, at, worker):
                calls = values.calls_of(entry)
                first = entry.rows["definition"][calls.index(min(calls))]
                definition = entry.source.writer.definitions[int(first)]
                return _shape_of(definition, worker)
            for raw in values.entries(run, self.name, at, worker):
                return _shape_of(raw.definition, worker)
            told = told_reductions.shape(run, self.name, at, worker)
            if told is not None:
                return told
            msg = f"{self.name!r} has no shape at step {step}{in_words(key)}"
            near = saved_near(run, self.name, step, key, "any")
            msg += "" if near is None else f"; the nearest step that has one is {near}"
            raise ShapeUnavailableForStep(msg)

    # --- Inside -------------------------------------------------------------

    def _definition(self) -> Definition | None:
        with self._run.lock:
            return self._run.definition(self.name)

    def _global_step(self, step: int, mode: Count) -> int:
        """The global step that *step* is; raises where nothing can be there."""
        run = self._run
        found = global_step_of(run, step, mode)
        if found is None or not run.has_data(found):
            raise missing_step(run, step, mode)
        return found

    def _told(
        self, step: int, mode: ModeKeys | str | None, worker: str | None
    ) -> dict[tuple[str, bool], float]:
        """Return the reductions that are told of a tensor without values or rows."""
        with self._run.fresh() as run:
            if run.definition(self.name) is not None:
                return {}
            at = self._global_step(step, count_of(run, self.name, mode))
            return told_reductions.values_at(run, self.name, at, worker)

    def _row(
        self,
        step: int,
        mode: ModeKeys | str | None,
        worker: str | None,
        call: int | None,
        micro_batch: int | None,
    ) -> tuple[np.void, int]:
        """The row at *step*, and the class that its extremes are of."""
        with self._run.fresh() as run:
            key = count_of(run, self.name, mode)
            at = self._global_step(step, key)
            found = values.row_entries(run, self.name, at, worker)
            found = [values.of_call(entry, call, micro_batch) for entry in found]
            found = [entry for entry in found if len(entry.rows)]
            if not found:
                raw = [
                    entry
                    for entry in values.entries(run, self.name, at, worker)
                    if values.is_call(entry.call, call, micro_batch)
                ]
                found = [
                    values.reduce_value(entry, at)
                    for entry in raw
                    if has_statistics(entry.definition)
                ]
                if raw and not found:
                    dtype = raw[0].definition.dtype
                    msg = f"{self.name!r}: {dtype} has no statistics"
                    raise TensorUnavailableForStep(msg)
            if not found:
                raise self._unavailable(step, key, worker, call, micro_batch)
            definitions = found[0].source.writer.definitions
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
        mode: Count,
        worker: str | None = None,
        call: int | None = None,
        micro_batch: int | None = None,
    ) -> QueryError:
        """The error for what is not there at a step that exists."""
        run = self._run
        if state_of(run, step, mode) is StepState.NOT_YET_AVAILABLE:
            return missing_step(run, step, mode)
        msg = f"{self.name!r} has no value at step {step}{in_words(mode)}"
        if worker is not None:
            msg += f" of {worker}{self._of_others(step, mode, worker)}"
        if call is not None or micro_batch is not None:
            msg += f" for call {call}, micro-batch {micro_batch}"
        at = global_step_of(run, step, mode)
        if at is not None and (gone := removed_at(run, at)):
            msg += f"; {gone}"
        if at is not None and told_reductions.values_at(run, self.name, at, worker):
            msg += "; smdebug stored reductions alone: use reduction_value(step, name)"
        elif at is not None and values.row_entries(run, self.name, at, worker):
            msg += (
                "; its statistics are there: use stats(step) or "
                "reduction_value(step, name)"
            )
        else:
            near = saved_near(run, self.name, step, mode, worker=worker)
            msg += "" if near is None else f"; the nearest step that has one is {near}"
        return TensorUnavailableForStep(msg)

    def _of_others(self, step: int, mode: Count, worker: str) -> str:
        """Name the workers that saved it at a step, in brackets, if there are any."""
        at = global_step_of(self._run, step, mode)
        found = [] if at is None else values.entries(self._run, self.name, at)
        others = sorted({entry.source.worker for entry in found} - {worker})
        return f" (it has one of {join_names(others)})" if others else ""


def _shape_of(definition: Definition, worker: str | None) -> tuple[int, ...]:
    return whole_shape(definition) if worker is None else definition.shape
