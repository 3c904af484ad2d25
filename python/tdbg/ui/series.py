"""The numbers of charts: envelopes of tensors and scalars, histograms, exact rows.

Whatever the number of columns, no row is left out: docs/reading.md, "Envelopes".

Thread safety: functions; the trial's lock is held inside.

Errors: QueryError and its kin where a name or a step is not there, ConfigurationError
where what is asked for can never be answered.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tdbg.compare import Axis
from tdbg.errors import ConfigurationError, QueryError, TensorUnavailable
from tdbg.modes import GLOBAL, ModeKeys
from tdbg.stats.histogram import Histogram
from tdbg.stats.row_fields import EXTREMES, MOMENTS
from tdbg.trial import Envelope, Trial
from tdbg.ui.packing import pack
from tdbg.view import QUANTILES, Histograms, tensors_in

__all__ = [
    "MAX_COLUMNS",
    "MAX_PLACE",
    "Curve",
    "check_cells",
    "curve",
    "curve_names",
    "envelope",
    "exact_number",
    "histograms",
    "marks_of",
    "ranks",
    "rows",
]

MAX_COLUMNS = 4096
MAX_CELLS = 1 << 23
# Beyond it there is no step and no millisecond, and sums of two still fit.
MAX_PLACE = 1 << 61
MAX_NAMES = 64
MAX_ROWS = 500
# A browser tells all integers apart up to here.
MOST_EXACT = (1 << 53) - 1
# Rows that are looked at around a step.
ROWS_AROUND = 15
# Histograms without a number that are looked through for one that has some.
MOST_EMPTY = 20
# What a row without a finite element has no value of.
OF_FINITE = (*EXTREMES, *MOMENTS, "std", "rms")
# Formats of which a page says what they would lose of a tensor.
FORMATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
# Scalars that are settings rather than results stand last.
SETTINGS = "scalar/optimizer/"


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A loss or scalar over columns of steps.

    Attributes:
        edges: float64 (columns + 1,): column j covers the places
            ``edges[j] <= place < edges[j + 1]`` of the axis.
        low: float32 (columns,): the least finite value; NaN where there is none.
        high: The greatest.
        mean: The mean.
        rows: uint32 (columns,): how many values there are.
        bad: uint32 (columns,): how many of them are NaN or infinite.
    """

    edges: NDArray[np.float64]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    mean: NDArray[np.float32]
    rows: NDArray[np.uint32]
    bad: NDArray[np.uint32]

    def to_json(self) -> dict[str, Any]:
        """Lists for JSON; what is not finite is None."""
        return {
            "edges": self.edges.tolist(),
            "bad": self.bad.tolist(),
            **{
                name: [x if math.isfinite(x) else None for x in values.tolist()]
                for name, values in (
                    ("low", self.low),
                    ("high", self.high),
                    ("mean", self.mean),
                )
            },
        }

    def packed(self) -> bytes:
        """The arrays as a page reads them."""
        return pack({}, {name: getattr(self, name) for name in self.__slots__})


def curve_names(trial: Trial) -> list[str]:
    """Losses, *the* loss first, then scalars, those that are settings last."""
    tensors = tensors_in(trial)
    scalars = sorted(
        tensors.scalars, key=lambda name: (name.startswith(SETTINGS), name)
    )
    return [*tensors.losses, *scalars]


def curve(
    trial: Trial,
    name: str,
    *,
    mode: ModeKeys | None = None,
    start: int | None = None,
    stop: int | None = None,
    axis: Axis = Axis.STEP,
    columns: int,
    worker: str | None = None,
    check: Callable[[], None] | None = None,
) -> Curve:
    """A loss (of a tensor: the mean of its elements) or a scalar over steps.

    Args:
        trial: The run.
        name: One of ``curve_names``.
        mode: Only steps of this mode.
        start: First place on the axis; None: that of the first recorded step.
        stop: Place before which to end; None: behind the last recorded step.
        axis: What a place is; the edges of the curve are places.
        columns: At most so many columns.
        worker: A loss of this worker alone; a scalar is that of the first one.
        check: As of ``Trial.envelope``.

    Raises:
        TensorUnavailable: If there is nothing of that name.
    """
    names = [] if _is_scalar(trial, name) else [name]
    marks, found = _on_axis(
        trial, names, "mean", mode, (start, stop), axis, columns, worker, check
    )
    if found.names:
        return Curve(
            marks,
            found.low["mean"][0],
            found.high["mean"][0],
            found.mean["mean"][0],
            found.rows[0],
            found.bad[0],
        )
    edges = axis.edges(trial.step_table(), marks.astype(np.int64))
    return _scalar_curve(trial, name, mode, marks, edges)


def _is_scalar(trial: Trial, name: str) -> bool:
    return name in tensors_in(trial).scalars


def _scalar_curve(
    trial: Trial,
    name: str,
    mode: ModeKeys | None,
    marks: NDArray[np.float64],
    edges: NDArray[np.int64],
) -> Curve:
    first, end = int(edges[0]), int(edges[-1])
    series = trial.scalars(start=first, end=end).get(name)
    columns = len(edges) - 1
    low, high = np.full(columns, np.inf), np.full(columns, -np.inf)
    total, n_rows, n_bad = np.zeros(columns), np.zeros(columns), np.zeros(columns)
    if series is not None and columns:
        steps, values = series.steps, series.values
        if mode is not None:
            table = trial.step_table(first)
            of_mode = table["step"][table["mode"] == mode.value]
            keep = np.isin(steps, of_mode)
            steps, values = steps[keep], values[keep]
        at = np.searchsorted(edges, steps, side="right") - 1
        is_finite = np.isfinite(values)
        np.add.at(n_rows, at, 1)
        np.add.at(n_bad, at[~is_finite], 1)
        at, values = at[is_finite], values[is_finite]
        np.minimum.at(low, at, values)
        np.maximum.at(high, at, values)
        np.add.at(total, at, values)
    n_finite = n_rows - n_bad
    is_empty = n_finite == 0
    mean = np.where(is_empty, np.nan, total / np.maximum(n_finite, 1))
    return Curve(
        marks,
        np.where(is_empty, np.nan, low).astype(np.float32),
        np.where(is_empty, np.nan, high).astype(np.float32),
        mean.astype(np.float32),
        n_rows.astype(np.uint32),
        n_bad.astype(np.uint32),
    )


def envelope(
    trial: Trial,
    names: Sequence[str],
    field: str,
    *,
    mode: ModeKeys | None = None,
    start: int | None = None,
    stop: int | None = None,
    axis: Axis = Axis.STEP,
    columns: int,
    worker: str | None = None,
    check: Callable[[], None] | None = None,
) -> bytes:
    """Envelopes of one statistic of tensors: low, high, mean, rows, bad, first_bad.

    Args:
        trial: The run.
        names: Tensors.
        field: A field of ``Trial.envelope``.
        mode: Only steps of this mode.
        start: As of ``curve``, like those below.
        stop: Place before which to end.
        axis: What a place is.
        columns: At most so many columns.
        worker: Only rows of this worker.
        check: As of ``Trial.envelope``.

    Raises:
        ConfigurationError: If these are too many cells, or there is no such field.
        TensorUnavailable: If a name is unknown.
    """
    check_cells(len(names), columns)
    marks, found = _on_axis(
        trial, names, field, mode, (start, stop), axis, columns, worker, check
    )
    return _packed(found, field, marks)


def ranks(
    trial: Trial,
    name: str | None,
    field: str,
    *,
    mode: ModeKeys | None = None,
    start: int | None = None,
    stop: int | None = None,
    axis: Axis = Axis.STEP,
    columns: int,
    check: Callable[[], None] | None = None,
) -> bytes:
    """The same of one tensor for each worker by itself; the names are the workers.

    Without a name it is how long steps took: the field ``seconds``.

    Raises:
        ConfigurationError: If these are too many cells, or there is no such field, or
            the columns are not of steps.
        TensorUnavailable: If the name is unknown.
    """
    check_cells(len(trial.workers()), columns)
    if axis.is_time:
        msg = f"workers are shown by step, not by {axis}"
        raise ConfigurationError(msg)
    marks = marks_of(axis, trial.step_table(), start, stop, columns)
    span: dict[str, Any] = {
        "mode": mode,
        "start": int(marks[0]),
        "stop": int(marks[-1]),
        "columns": columns,
        "by": _BY[axis],
        "check": check,
    }
    if name is None:
        found = trial.worker_durations(**span)
    else:
        found = trial.worker_envelope(name, fields=(field,), **span)
    return _packed(found, field, found.edges.astype(np.float64))


def _packed(found: Envelope, field: str, marks: NDArray[np.float64]) -> bytes:
    return pack(
        {"names": found.names, "field": field, "workers": found.n_workers},
        {
            "edges": marks,
            "low": found.low[field],
            "high": found.high[field],
            "mean": found.mean[field],
            "rows": found.rows,
            "bad": found.bad,
            "first_bad": found.first_bad.astype(np.float64),
        },
    )


def check_cells(n_names: int, columns: int) -> None:
    """See that a picture is not too large.

    Raises:
        ConfigurationError: If it is.
    """
    if n_names * columns > MAX_CELLS:
        msg = f"{n_names} tensors x {columns} columns are more than {MAX_CELLS}"
        raise ConfigurationError(msg)


# What steps are on an axis of steps.
_BY: dict[Axis, Literal["training", "global"]] = {
    Axis.STEP: "training",
    Axis.GLOBAL: "global",
}


def _on_axis(
    trial: Trial,
    names: Sequence[str],
    field: str,
    mode: ModeKeys | None,
    place: tuple[int | None, int | None],
    axis: Axis,
    columns: int,
    worker: str | None,
    check: Callable[[], None] | None,
) -> tuple[NDArray[np.float64], Envelope]:
    """The envelope of columns of an axis, and where on it these begin and end."""
    table = trial.step_table()
    marks = marks_of(axis, table, *place, columns)
    if not axis.is_time:
        # Bounds that suit what was recorded: whole cells are read in milliseconds.
        first, end = int(marks[0]), int(marks[-1])
        found = trial.envelope(
            list(names),
            mode=mode,
            start=first,
            stop=end,
            columns=columns,
            fields=field,
            worker=worker,
            by=_BY[axis],
            check=check,
        )
        return found.edges.astype(np.float64), found
    edges = axis.edges(table, marks)
    found = trial.envelope(
        list(names), mode=mode, edges=edges, fields=field, worker=worker, check=check
    )
    return marks.astype(np.float64), found


def marks_of(
    axis: Axis,
    table: NDArray[np.void],
    start: int | None,
    stop: int | None,
    columns: int,
) -> NDArray[np.int64]:
    """Bounds of at most *columns* columns that are equally wide, on an axis.

    Args:
        axis: What a place is.
        table: The recorded steps.
        start: First place; None: that of the first recorded step.
        stop: Place before which to end; None: behind the last recorded step.
        columns: How many columns at most.
    """
    places = axis.places(table)
    if start is None:
        start = int(places[0]) if len(places) else 0
    if stop is None:
        stop = int(places[-1]) + 1 if len(places) else start
    start = min(start, MAX_PLACE)
    stop = min(max(start, stop), MAX_PLACE)
    width = max(1, -(-(stop - start) // columns))
    n = -(-(stop - start) // width)
    marks = start + width * np.arange(n + 1, dtype=np.int64)
    marks[-1] = stop
    return marks


def rows(
    trial: Trial,
    name: str,
    start: int,
    stop: int,
    worker: str | None = None,
    around: int | None = None,
) -> dict[str, Any]:
    """Exact rows of a tensor at the training steps in ``start <= step < stop``.

    Evaluation stands where it ran.  Of several workers rows are merged, unless one is
    asked for.

    Args:
        trial: The run.
        name: The tensor.
        start: The first training step.
        stop: The training step after the last one.
        worker: Of this one alone.
        around: Only the recorded steps next to this one, on both sides of it, however
            far away they are.

    Raises:
        TensorUnavailable: If the name is unknown.
        InvalidWorker: If there is no such worker.
    """
    tensor = trial.tensor(name)
    saved = tensor.steps(GLOBAL, "any", worker=worker)
    placed = trial.training_steps_at(saved)
    steps = [s for s, at in zip(saved, placed, strict=True) if start <= at < stop]
    first, most = 0, MAX_ROWS
    if around is not None:
        place = bisect_right([at for at in placed if start <= at < stop], around)
        # As many as there are, where one side has fewer.
        first = max(0, min(place - 1 - ROWS_AROUND // 2, len(steps) - ROWS_AROUND))
        most = ROWS_AROUND
    found = []
    for step in steps[first : first + most]:
        try:
            stats = tensor.stats(step, GLOBAL, worker)
        except QueryError:
            continue  # No row and no value that has one: a part is missing.
        row = {**asdict(stats), "std": stats.std, "rms": stats.rms}
        if not stats.finite:
            row |= dict.fromkeys(OF_FINITE)
        found.append(
            {
                **trial.step_numbers(step),
                **{key: exact_number(value) for key, value in row.items()},
            }
        )
    return {"name": name, "rows": found, "n_steps": len(steps)}


def exact_number(value: Any) -> float | str | None:
    """A number that a browser reads exactly: as text where JSON's are others there.

    Those are integers beyond 2^53, and what is not finite.
    """
    if isinstance(value, int):
        return value if abs(value) <= MOST_EXACT else str(value)
    if value is None:
        return None
    return float(value) if np.isfinite(value) else str(float(value))


def histograms(
    trial: Trial,
    name: str,
    start: int,
    stop: int,
    columns: int,
    bins: int,
    at: int | None = None,
    worker: str | None = None,
    check: Callable[[], None] = lambda: None,
) -> bytes:
    """Histograms of a tensor over columns of steps, all in the same bins.

    Returns:
        Arrays ``steps`` (the first step of each column), ``counts`` float32
        (columns, bins), ``bad``, ``edges`` (bins + 1,), ``quantiles`` (columns, 7), and
        under ``lost`` what number formats would lose of the newest of them that has
        numbers, up to the step *at* if it is given: ``lost_step``.

    Raises:
        TensorUnavailable: If the name is unknown.
        InvalidWorker: If there is no such worker.
    """
    saved = Histograms(trial, name, worker)
    found = saved.over(start, stop, columns, bins, check)
    last = stop - 1 if at is None else min(at, stop - 1)
    newest = saved.newest(last, MOST_EMPTY)
    if newest is not None and newest[0] < start:
        newest = None
    return pack(
        {
            "name": name,
            "n_steps": found.n_steps,
            "quantiles": list(QUANTILES),
            "lost": [] if newest is None else _lost(newest[1]),
            "lost_step": None if newest is None else newest[0],
        },
        {
            "steps": found.steps.astype(np.float64),
            "counts": found.counts,
            "bad": found.bad,
            "edges": found.edges,
            "quantile_values": found.quantiles,
        },
    )


def _lost(histogram: Histogram) -> list[dict[str, Any]]:
    """Return the shares of finite elements that narrow number formats would lose."""
    return [{"dtype": dtype, **asdict(histogram.lost_in(dtype))} for dtype in FORMATS]


def names_asked(trial: Trial, names: Sequence[str], role: str | None) -> list[str]:
    """The names that a request gives, or those of the role that it gives.

    Raises:
        ConfigurationError: If these are too many, or none is given.
        TensorUnavailable: If there is no tensor of a name.
    """
    if role is not None:
        return trial.names_of_role(role)
    if not names or len(names) > MAX_NAMES:
        msg = f"name from 1 to {MAX_NAMES} tensors, not {len(names)}"
        raise ConfigurationError(msg)
    for name in names:
        if not trial.has_tensor(name):
            msg = "there is no tensor of that name"
            raise TensorUnavailable(msg)
    return list(names)
