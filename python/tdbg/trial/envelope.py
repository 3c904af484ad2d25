"""Envelopes: the least, greatest and mean row of each stretch of steps.

A picture has fewer columns than a run has steps.  Whoever draws one row of each column
loses spikes and NaN; an envelope covers all rows, whatever the number of columns.
That of the duration of steps on each worker shows which rank the others wait for.

Thread safety: ``Envelope`` is a value; ``fill`` and ``duration_envelope`` may be called
from any thread, the other functions with the trial's lock held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tdbg._core import EnvelopeGrid, RunReader
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.trial.layout import Layout
from tdbg.trial.series import Series
from tdbg.trial.writers import Source

__all__ = [
    "DURATION_FIELD",
    "ENVELOPE_FIELDS",
    "Envelope",
    "ask",
    "checked_edges",
    "column_edges",
    "duration_envelope",
    "envelope_fields",
    "fill",
]

#: In the order in which the core numbers them (``CellField``).
ENVELOPE_FIELDS = ("l2", "rms", "mean", "std", "abs_max", "zero_share")
#: The field of an envelope of durations.
DURATION_FIELD = "seconds"


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """Least, greatest and mean of statistics over stretches of steps.

    Nothing is sampled: each row that was recorded within a column is in it.  A row is
    what a worker saved of a tensor at a step, of one call in one micro-batch; rows of
    several calls, micro-batches and workers (those of replicas and of parts, too) are
    not merged into one, as ``Trial.statistics`` does: their extremes are taken.

    Attributes:
        names: Name of each row of the arrays.
        edges: int64 (columns + 1,): column ``j`` covers the steps
            ``edges[j] <= step < edges[j + 1]``; global ones, or training steps where
            these were asked for.
        low: By field, float32 (names, columns): the least value of the rows; NaN where
            there are none with a finite element.  What is beyond float32 is its
            largest number.
        high: The greatest value, likewise.
        mean: The mean over rows, likewise.
        rows: uint32 (names, columns): how many rows there are.
        bad: uint32 (names, columns): how many of these have a NaN or infinite element;
            what is finite in them is in ``low``, ``high`` and ``mean``.
        first_bad: int64 (names,): the first step of such a row within the range that
            was asked for; -1 for none.
        n_workers: How many workers the rows are of; of several, see above.
    """

    names: list[str]
    edges: NDArray[np.int64]
    low: Mapping[str, NDArray[np.float32]]
    high: Mapping[str, NDArray[np.float32]]
    mean: Mapping[str, NDArray[np.float32]]
    rows: NDArray[np.uint32]
    bad: NDArray[np.uint32]
    first_bad: NDArray[np.int64]
    n_workers: int

    def series(self, i: int, field: str, label: str) -> Series:
        """One row to be drawn, without the columns in which nothing was recorded."""
        there = np.flatnonzero(self.rows[i])
        low, high, mean = (
            part[field][i][there].astype(np.float64)
            for part in (self.low, self.high, self.mean)
        )
        bad = self.bad[i][there].astype(np.int64)
        first, last = self.edges[:-1][there], self.edges[1:][there] - 1
        return Series(label, first, last, low, high, mean, bad)


def envelope_fields(fields: str | Sequence[str]) -> tuple[str, ...]:
    """The fields asked for, each once.

    Raises:
        ConfigurationError: If one is no field of an envelope.
    """
    listed = (fields,) if isinstance(fields, str) else tuple(dict.fromkeys(fields))
    for name in listed:
        if name not in ENVELOPE_FIELDS:
            valid = ", ".join(ENVELOPE_FIELDS)
            msg = f"an envelope has no field {name!r}: use one of {valid}"
            raise ConfigurationError(msg)
    return listed


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A question to one writer."""

    rank: int
    reader: RunReader  # Of now: a mended writer has another one.
    definitions: NDArray[np.uint32]
    names: NDArray[np.uint32]  # One for each definition.
    start: int
    stop: int


def ask(
    layout: Layout, start: int, stop: int, workers: Sequence[str] | None = None
) -> list[Question]:
    """What to ask of the writers for ``start <= step < stop``.

    Args:
        layout: Where the rows of the names are.
        start: First global step.
        stop: Global step before which to end.
        workers: If given, each of these is a row of the envelope, in place of each of
            the names.
    """
    return [
        Question(
            rank=each.source.writer.rank,
            reader=each.source.writer.reader,
            definitions=each.ids,
            names=(
                each.names.astype(np.uint32)
                if workers is None
                else np.full(
                    len(each.ids), workers.index(each.source.worker), np.uint32
                )
            ),
            start=max(start, each.source.start),
            stop=min(stop, each.source.stop),
        )
        for each in layout.of_sources
        if len(each.ids) and max(start, each.source.start) < min(stop, each.source.stop)
    ]


def column_edges(
    sources: Sequence[Source], start: int, stop: int, columns: int, *, quick: bool
) -> NDArray[np.int64]:
    """Bounds of at most *columns* columns, all but the outer ones as wide.

    The inner bounds are multiples of the width, so that they stay when a run grows.  A
    column that is as wide as the buckets of a shard is made of whole ones.

    Args:
        sources: What counts of each writer.
        start: First global step.
        stop: Global step before which to end.
        columns: How many columns at most.
        quick: Whether columns are at least as wide as the buckets of most rows.
    """
    if stop <= start:
        return np.array([start], np.int64)
    buckets = sorted(
        pair
        for source in sources
        for pair in source.writer.reader.cell_buckets(
            max(start, source.start), min(stop, source.stop)
        )
    )
    width = max(1, -(-(stop - start) // columns))
    if quick and buckets:
        steps, rows = np.array(buckets, np.int64).T
        most = np.searchsorted(np.cumsum(rows), 0.9 * rows.sum())
        width = max(width, int(steps[most]))
    while True:
        # Those of buckets are powers of two: of the largest all are.
        unit = max([1, *(steps for steps, _ in buckets if steps <= width)])
        width = -(-width // unit) * unit
        if (stop - 1) // width - start // width < columns:
            break
        width += 1
    inner = np.arange((start // width + 1) * width, stop, width, dtype=np.int64)
    return np.concatenate(([start], inner, [stop])).astype(np.int64)


def checked_edges(edges: ArrayLike) -> NDArray[np.int64]:
    """Bounds of columns that a caller gives.

    Raises:
        ConfigurationError: If there is none, or they descend, or are no whole numbers.
    """
    given = np.asarray(edges)
    if given.ndim != 1 or not len(given) or given.dtype.kind not in "iu":
        msg = "edges must be whole numbers in one dimension, and at least one of them"
        raise ConfigurationError(msg)
    bounds = given.astype(np.int64)
    if (np.diff(bounds) < 0).any():
        at = int(np.flatnonzero(np.diff(bounds) < 0)[0])
        msg = f"edges must not descend: {bounds[at]} comes before {bounds[at + 1]}"
        raise ConfigurationError(msg)
    return bounds


def fill(
    questions: Sequence[Question],
    names: Sequence[str],
    edges: NDArray[np.int64],
    fields: Sequence[str],
    mode: ModeKeys,
    check: Callable[[], None] | None = None,
) -> Envelope:
    """The envelope of *names* between *edges*; holds no reader longer than some ms.

    Args:
        questions: What to ask of the writers.
        names: Tensors, each once.
        edges: Bounds of the columns, ascending.
        fields: Some of ``ENVELOPE_FIELDS``.
        mode: Of which the steps are; GLOBAL: of any.
        check: Called between parts of some ten milliseconds; what it raises ends this.
    """
    numbers = [ENVELOPE_FIELDS.index(name) for name in fields]
    grid = EnvelopeGrid(len(names), edges, numbers)
    of_mode = None if mode is ModeKeys.GLOBAL else mode.value
    ranks = set()
    for one in questions:
        before = grid.n_rows
        left: int | None = None
        while left != 0:
            if check is not None:
                check()
            left = one.reader.add_to_envelope(
                grid,
                one.definitions,
                one.names,
                one.start,
                one.stop,
                of_mode,
                left,
            )
        if grid.n_rows > before:
            ranks.add(one.rank)
    return Envelope(
        names=list(names),
        edges=edges,
        low={name: grid.low(i) for i, name in enumerate(fields)},
        high={name: grid.high(i) for i, name in enumerate(fields)},
        mean={name: grid.mean(i) for i, name in enumerate(fields)},
        rows=grid.rows(),
        bad=grid.bad(),
        first_bad=grid.first_bad(),
        n_workers=len(ranks),
    )


def duration_envelope(
    sources: Sequence[Source],
    workers: Sequence[str],
    edges: NDArray[np.int64],
    mode: ModeKeys,
    check: Callable[[], None] | None = None,
) -> Envelope:
    """The envelope of the duration of steps, a row for each worker.

    Args:
        sources: What counts of each writer.
        workers: Names of the rows.
        edges: Bounds of the columns, ascending.
        mode: Of which the steps are; GLOBAL: of any.
        check: Called for each writer; what it raises ends this.
    """
    shape = len(workers), max(0, len(edges) - 1)
    low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
    total, n_rows = np.zeros(shape), np.zeros(shape, np.uint32)
    for source in sources:
        if check is not None:
            check()
        first, end = max(int(edges[0]), source.start), min(int(edges[-1]), source.stop)
        if first >= end:
            continue
        records = source.writer.reader.find_steps(first, end)
        # A step that nobody timed has none.
        counts = records["duration_ns"] > 0
        if mode is not ModeKeys.GLOBAL:
            counts &= records["mode"] == mode.value
        column = np.searchsorted(edges, records["step"][counts], side="right") - 1
        seconds = records["duration_ns"][counts] / 1e9
        row = workers.index(source.worker)
        np.minimum.at(low[row], column, seconds)
        np.maximum.at(high[row], column, seconds)
        np.add.at(total[row], column, seconds)
        np.add.at(n_rows[row], column, 1)
    mean = total / np.maximum(n_rows, 1)

    def field(values: NDArray[np.float64]) -> dict[str, NDArray[np.float32]]:
        known = np.where(n_rows == 0, np.nan, values)
        return {DURATION_FIELD: known.astype(np.float32)}

    return Envelope(
        names=list(workers),
        edges=edges,
        low=field(low),
        high=field(high),
        mean=field(mean),
        rows=n_rows,
        bad=np.zeros(shape, np.uint32),
        first_bad=np.full(len(workers), -1),
        n_workers=int(np.count_nonzero(n_rows.any(axis=1))),
    )
