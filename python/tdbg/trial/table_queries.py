"""The questions about many tensors at once that a ``Trial`` answers.

Thread safety: may be used from any thread; the trial's lock is held inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.trial import envelope, overview, statistics
from tdbg.trial.envelope import (
    Envelope,
    checked_edges,
    column_edges,
    duration_envelope,
    envelope_fields,
)
from tdbg.trial.layout import Layout, LayoutCache
from tdbg.trial.overview import TensorOverview
from tdbg.trial.run import RunState
from tdbg.trial.selection import mode_key
from tdbg.trial.statistics import ColumnReader, Columns, Statistics
from tdbg.trial.tensor_table import TensorDescription
from tdbg.trial.training_steps import edges_of
from tdbg.trial.writers import NO_END

__all__ = ["TableQueries"]

# Tensors x steps that ``statistics_in_parts`` holds at a time (200 bytes each), and
# steps, however many the tensors.
PART_ENTRIES = 1 << 17
LEAST_STEPS = 64


By = Literal["global", "training"]


class Grid(NamedTuple):
    """The columns of an envelope: global steps, and the places that they stand for."""

    edges: NDArray[np.int64]
    marks: NDArray[np.int64]

    @property
    def ends(self) -> tuple[int, int]:
        """The first global step, and that before which to end."""
        return int(self.edges[0]), int(self.edges[-1])


class TableQueries:
    """Statistics, columns and envelopes, of the run that it is made for."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._columns = ColumnReader()
        self._layouts = LayoutCache()

    def statistics(
        self,
        names: Sequence[str] | None = None,
        *,
        start: int | None = None,
        end: int | None = None,
        mode: ModeKeys | str | None = None,
    ) -> Statistics:
        """Statistics of many tensors over many steps, in one pass over the rows.

        Args:
            names: Tensors; None: all that have statistics.
            start: First global step.
            end: Global step before which to end.
            mode: Only steps of this mode.

        Raises:
            TensorUnavailable: If one of *names* is unknown so far.
        """
        with self._run.fresh() as run:
            first = -NO_END if start is None else start
            stop = NO_END if end is None else end
            layout = self._layout(run, names, first, stop)
            recorded = self._recorded(run, mode_key(mode))
            return statistics.collect(layout, recorded, first, stop)

    def envelope(
        self,
        names: Sequence[str] | None = None,
        *,
        mode: ModeKeys | str | None = None,
        start: int | None = None,
        stop: int | None = None,
        columns: int = 1000,
        edges: ArrayLike | None = None,
        fields: str | Sequence[str] = ("l2",),
        quick: bool = False,
        worker: str | None = None,
        by: By = "global",
        check: Callable[[], None] | None = None,
    ) -> Envelope:
        """Least, greatest and mean of statistics over stretches of steps: to be drawn.

        Nothing is sampled: a spike or a NaN of one row is there however few columns
        are asked for.  Steps that were not ended are left out.

        Finished parts of a run hold *cells*: the envelopes of buckets of 64 recorded
        steps.  Columns as wide as that are made of whole buckets, and take
        milliseconds; for narrower ones the rows themselves are read, some 20 million a
        second.  A run without cells has them made by the first question, of its rows.
        While it is read a name and column takes 12 bytes, and 16 for each field.

        Args:
            names: Tensors; None: all that have statistics in the range, by name.
            mode: Only steps of this mode; the columns are as without one.
            start: First step, as *by* counts; None: the first that was recorded.
            stop: Step before which to end; None: behind the last one.
            columns: How many columns at most.  All but the outer ones are equally
                wide, and the inner bounds are multiples of the width, so that they stay
                where they are while a run grows.
            edges: The bounds of the columns themselves, in global steps that never
                descend, instead of *start*, *stop*, *columns* and *quick*: for columns
                that are no stretches of as many steps, such as seconds.
            fields: Of l2, rms (l2 / sqrt of the number of elements), mean, std,
                abs_max (the largest absolute value), zero_share (zeros / elements); of
                the finite elements, as docs/statistics.md defines them.
            quick: Whether columns are at least as wide as buckets, so that no rows are
                read where there are cells: for a first picture of many tensors.
            worker: Only rows of this worker.
            by: What *start*, *stop* and the columns are: "global" steps, or "training"
                steps, at which evaluation stands as ``training_steps_at`` says.
            check: Called between parts of some ten milliseconds; what it raises ends
                the question.

        Returns:
            Arrays of shape (names, columns); without a recorded step in the range
            there are no columns.

        Raises:
            TensorUnavailable: If one of *names* is unknown so far.
            ConfigurationError: If *columns* is below 1, *edges* descend, or one of
                *fields* is unknown.
            InvalidWorker: If there is no such worker.

        Example:
            e = trial.envelope(["gradient/fc.weight"], columns=800)
            plt.fill_between(e.edges[:-1], e.low["l2"][0], e.high["l2"][0], step="post")
        """
        chosen, key = envelope_fields(fields), mode_key(mode)
        bounds = None if edges is None else checked_edges(edges)
        _check_columns(columns)
        with self._run.fresh() as run:
            if bounds is None:
                span = start, stop
                grid = self._grid(run, key, span, columns, by=by, quick=quick)
            else:
                grid = Grid(bounds, bounds)
            first, end = grid.ends
            layout = self._layout(run, names, first, end)
            questions = envelope.ask(layout, first, end)
            if worker is not None:
                ranks = {each.writer.rank for each in run.sources_of(worker)}
                questions = [each for each in questions if each.rank in ranks]
        found = envelope.fill(questions, layout.names, grid.edges, chosen, key, check)
        return self._placed(found, grid)

    def worker_envelope(
        self,
        name: str,
        *,
        mode: ModeKeys | str | None = None,
        start: int | None = None,
        stop: int | None = None,
        columns: int = 1000,
        fields: str | Sequence[str] = ("l2",),
        by: By = "global",
        check: Callable[[], None] | None = None,
    ) -> Envelope:
        """The envelope of one tensor for each worker by itself: which one differs.

        Args:
            name: The tensor.
            mode: As of ``envelope``, like all that follow.
            start: First step.
            stop: Step before which to end.
            columns: How many columns at most.
            fields: The statistics.
            by: What steps are.
            check: What ends the question.

        Returns:
            Arrays of shape (workers, columns); ``names`` are the workers, as
            ``Trial.workers`` gives them, those without a row of it, too.

        Raises:
            TensorUnavailable: If the name is unknown so far.
            ConfigurationError: As of ``envelope``.

        Example:
            e = trial.worker_envelope("loss_output_0", fields="mean", columns=100)
            spread = e.mean["mean"].max(axis=0) - e.mean["mean"].min(axis=0)
        """
        chosen, key = envelope_fields(fields), mode_key(mode)
        _check_columns(columns)
        with self._run.fresh() as run:
            grid = self._grid(run, key, (start, stop), columns, by=by)
            layout = self._layout(run, [name], *grid.ends)
            workers = run.workers
            questions = envelope.ask(layout, *grid.ends, workers)
        found = envelope.fill(questions, workers, grid.edges, chosen, key, check)
        return self._placed(found, grid)

    def worker_durations(
        self,
        *,
        mode: ModeKeys | str | None = None,
        start: int | None = None,
        stop: int | None = None,
        columns: int = 1000,
        by: By = "global",
        check: Callable[[], None] | None = None,
    ) -> Envelope:
        """How long steps took on each worker: which rank the others wait for.

        Args:
            mode: As of ``envelope``, like all that follow.
            start: First step.
            stop: Step before which to end.
            columns: How many columns at most.
            by: What steps are.
            check: What ends the question.

        Returns:
            Arrays of shape (workers, columns) of the field ``seconds``; capture is
            part of a step.  A step that was not timed has no row.

        Raises:
            ConfigurationError: If *columns* is below 1.

        Example:
            e = trial.worker_durations(columns=100)
            slowest = e.names[np.nanmean(e.mean["seconds"], axis=1).argmax()]
        """
        key = mode_key(mode)
        _check_columns(columns)
        with self._run.fresh() as run:
            grid = self._grid(run, key, (start, stop), columns, by=by)
            sources, workers = run.sources_of(None), run.workers
        found = duration_envelope(sources, workers, grid.edges, key, check)
        return self._placed(found, grid)

    def statistics_in_parts(
        self,
        names: Sequence[str] | None = None,
        *,
        mode: ModeKeys | str | None = None,
    ) -> Iterator[Statistics]:
        """Yield what ``statistics`` gives some steps at a time, in bounded memory.

        Args:
            names: Tensors; None: all that have statistics.
            mode: Only steps of this mode.

        Yields:
            Statistics of the same names, at least one, and of steps that ascend.

        Raises:
            TensorUnavailable: If one of *names* is unknown so far.
        """
        with self._run.fresh() as run:
            requested = self._layout(run, names, -NO_END, NO_END).names
            recorded = self._recorded(run, mode_key(mode))
        n = max(LEAST_STEPS, PART_ENTRIES // max(1, len(requested)))
        for at in range(0, max(1, len(recorded)), n):
            steps = recorded[at : at + n]
            first, stop = (int(steps[0]), int(steps[-1]) + 1) if len(steps) else (0, 0)
            with self._run.lock:
                layout = self._layouts.find(self._run, requested)
                part = statistics.collect(layout, steps, first, stop)
            yield part

    def _layout(
        self, run: RunState, names: Sequence[str] | None, first: int, stop: int
    ) -> Layout:
        """Where the rows of the names are that are asked for."""
        if names is None:
            names = statistics.with_rows(
                run.sources_of(None), sorted(run.names()), first, stop
            )
        return self._layouts.find(run, names)

    def _grid(
        self,
        run: RunState,
        mode: ModeKeys,
        span: tuple[int | None, int | None],
        columns: int,
        *,
        by: By,
        quick: bool = False,
    ) -> Grid:
        """Return the columns of an envelope, as ``envelope`` has its arguments."""
        if by not in get_args(By):
            msg = f"by must be one of {', '.join(get_args(By))}, not {by!r}"
            raise ConfigurationError(msg)
        recorded, sources = self._recorded(run, mode), run.sources_of(None)
        table = run.table
        if by == "training":
            at = np.searchsorted(table.steps, recorded)
            places = np.maximum.accumulate(table.training_steps[at])
            if not np.array_equal(places, recorded):
                first, end = _range(places, *span)
                marks = column_edges((), first, end, columns, quick=False)
                return Grid(edges_of(recorded, places, marks), marks)
        first, end = _range(recorded, *span)
        edges = column_edges(sources, first, end, columns, quick=quick)
        return Grid(edges, edges)

    def _placed(self, found: Envelope, grid: Grid) -> Envelope:
        """Return an envelope with the places of its columns for their edges."""
        if grid.marks is grid.edges:
            return found
        with self._run.lock:
            bad = self._run.training_steps_at(found.first_bad.tolist())
        return replace(found, edges=grid.marks, first_bad=np.array(bad, np.int64))

    def _recorded(self, run: RunState, mode: ModeKeys) -> NDArray[np.int64]:
        """The recorded steps of a mode, ascending."""
        if mode is ModeKeys.GLOBAL:
            return run.table.steps.copy()
        return np.sort(run.table.steps[run.table.of_mode(mode)[1]])

    def overview(
        self, names: Sequence[str], mode: ModeKeys | str | None = None
    ) -> list[TensorOverview]:
        """What tensors are, and at how many steps they were saved: all in one pass.

        Args:
            names: Tensors, as ``tensor_names`` gives them; each once.
            mode: Only steps of this mode, in its count.
        """
        with self._run.fresh() as run:
            return overview.overview(run, names, mode_key(mode))

    def describe(self, names: Sequence[str]) -> list[TensorDescription]:
        """Return roles, element types and shapes of tensors, in the order given."""
        with self._run.fresh() as run:
            return overview.describe(run, names)

    def recorded_of_roles(
        self, mode: ModeKeys | str | None = None
    ) -> dict[str, tuple[int, int]]:
        """Return how much was recorded of the tensors of each role.

        Args:
            mode: Only steps of this mode.

        Returns:
            By role the steps at which the tensor that was recorded most often was, and
            how many tensors there are.

        Example:
            >>> trial.recorded_of_roles()
            {'weight': (43, 12), 'loss': (150, 1)}
        """
        with self._run.fresh() as run:
            return overview.recorded_of_roles(run, mode_key(mode))

    def names_of_role(self, role: str) -> list[str]:
        """Return the names of a role's tensors, sorted; none for an unknown one."""
        with self._run.fresh() as run:
            table = run.tensors
            chosen = np.flatnonzero(table.of_role(role) & run.saved(table))
            return sorted(table.names[i] for i in chosen.tolist())

    def count_tensors(self) -> int:
        """Return how many tensors and scalars ``tensor_names`` would list."""
        with self._run.fresh() as run:
            return int(np.count_nonzero(run.saved(run.tensors)))

    def count_names(self) -> int:
        """Return a number that grows whenever a tensor or scalar of a new name comes.

        It takes no look at the tensors, of which there may be 100,000.
        """
        with self._run.fresh() as run:
            return run.count_names()

    def count_elements(self, step: int) -> int:
        """Return how many elements the rows of a global step are of; reads no row."""
        with self._run.fresh() as run:
            return overview.n_elements(run, step)

    def columns(self, names: Sequence[str], steps: NDArray[np.int64]) -> Columns:
        """What ``statistics`` gives, as float64, at given steps.

        Quick for who asks again and again for the same names, as the engine of the
        rules does.

        Args:
            names: Tensors, each once; what is unknown so far has no row.
            steps: Global steps, ascending.
        """
        with self._run.fresh() as run:
            return self._columns.read(run.sources_of(None), names, steps)


def _check_columns(columns: int) -> None:
    if columns < 1:
        msg = f"an envelope needs at least one column, got columns={columns!r}"
        raise ConfigurationError(msg)


def _range(
    recorded: NDArray[np.int64], start: int | None, stop: int | None
) -> tuple[int, int]:
    """Return the range of steps asked for; by default, all recorded ones."""
    first, last = (recorded[0], recorded[-1]) if len(recorded) else (0, -1)
    begin = int(first) if start is None else start
    return begin, int(last) + 1 if stop is None else stop
