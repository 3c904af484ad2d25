"""Envelopes: the least, greatest and mean row of each stretch of steps.

A picture has fewer columns than a run has steps.  Whoever draws one row of each column
loses spikes and NaN; an envelope covers all rows, whatever the number of columns.

Thread safety: ``Envelope`` is a value; ``collect_envelope`` runs with the trial's lock
held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.errors import ConfigurationError
from tdbg.trial import shards
from tdbg.trial.shards import extreme_class
from tdbg.trial.writers import Source

__all__ = ["ENVELOPE_FIELDS", "Envelope", "collect_envelope", "envelope_fields"]

ENVELOPE_FIELDS = ("l2", "rms", "mean", "std", "abs_max", "zero_share")

# The largest float32: what is beyond stays finite, so that an axis does.
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """Least, greatest and mean of statistics over stretches of steps.

    Nothing is sampled: each row that was recorded within a column is in it.  A row is
    what a worker saved of a tensor at a step, of one call in one micro-batch; rows of
    several calls, micro-batches and workers (those of replicas and of parts, too) are
    not merged into one, as ``Trial.statistics`` does: their extremes are taken.

    Attributes:
        names: Name of each row of the arrays.
        edges: int64 (columns + 1,): column ``j`` covers the global steps
            ``edges[j] <= step < edges[j + 1]``.
        low: By field, float32 (names, columns): the least value of the rows; NaN where
            there are none with a finite element.  What is beyond float32 is its
            largest number.
        high: The greatest value, likewise.
        mean: The mean over rows, likewise.
        rows: uint32 (names, columns): how many rows there are.
        bad: uint32 (names, columns): how many of these have a NaN or infinite element;
            what is finite in them is in ``low``, ``high`` and ``mean``.
        first_bad: int64 (names,): the first step of such a row; -1 for none.
        n_workers: How many workers the rows are of.
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


def column_edges(start: int, stop: int, columns: int) -> NDArray[np.int64]:
    """Bounds of at most *columns* columns, all but the outer ones as wide.

    The inner bounds are multiples of the width, so that they stay when a run grows.
    """
    if stop <= start:
        return np.array([start], np.int64)
    width = max(1, -(-(stop - start) // columns))
    while (stop - 1) // width - start // width + 1 > columns:
        width += 1
    inner = np.arange((start // width + 1) * width, stop, width, dtype=np.int64)
    return np.concatenate(([start], inner, [stop])).astype(np.int64)


def collect_envelope(
    sources: Sequence[Source],
    names: Sequence[str],
    recorded: NDArray[np.int64],
    edges: NDArray[np.int64],
    fields: Sequence[str],
) -> Envelope:
    """The envelope of *names* between *edges*.

    Args:
        sources: What counts of each writer.
        names: Tensors, each once.
        recorded: Steps that may appear, ascending.
        edges: Bounds of the columns, ascending.
        fields: Some of ``ENVELOPE_FIELDS``.
    """
    result = _Cells(len(names), edges, fields)
    numbers = {name: i for i, name in enumerate(names)}
    start, stop = int(edges[0]), int(edges[-1])
    ranks = set()
    for source in sources:
        writer = source.writer
        ids = [number for name in names for number in writer.ids.get(name, ())]
        requested = np.unique(np.array(ids, np.uint32))
        segments = writer.segments.between(
            max(start, source.start), min(stop, source.stop)
        )
        segments = segments[writer.segments.counts(segments, requested) > 0]
        segments = segments[np.isin(segments["step"], recorded)]
        index = np.array(
            [numbers[writer.definitions[i].name] for i in requested.tolist()]
        )
        classes = np.array(
            [extreme_class(writer.definitions[i].dtype) for i in requested.tolist()]
        )
        for rows in writer.segments.read(segments, requested):
            ranks.add(writer.rank)
            at = np.searchsorted(requested, rows["definition"])
            result.add(rows, index[at], classes[at])
    return result.envelope(list(names), len(ranks))


class _Cells:
    """What is known of each tensor in each column so far."""

    def __init__(
        self, n_names: int, edges: NDArray[np.int64], fields: Sequence[str]
    ) -> None:
        self._edges, self._fields = edges, tuple(fields)
        self._shape = n_names, len(edges) - 1
        size = n_names * (len(edges) - 1)
        self._rows = np.zeros(size, np.uint32)
        self._bad = np.zeros(size, np.uint32)
        self._valued = np.zeros(size, np.uint32)
        self._first_bad = np.full(n_names, np.iinfo(np.int64).max)
        self._low = {f: np.full(size, np.inf) for f in fields}
        self._high = {f: np.full(size, -np.inf) for f in fields}
        self._sum = {f: np.zeros(size) for f in fields}

    def add(
        self,
        rows: NDArray[np.void],
        names: NDArray[np.int64],
        classes: NDArray[np.int64],
    ) -> None:
        """Take in rows of these names, whose extremes are of these classes."""
        column = np.searchsorted(self._edges, rows["step"], side="right") - 1
        at = names * self._shape[1] + column
        fields = {name: np.array(rows[name]) for name in shards.FIELDS}
        finite = shards.finite_count(fields)
        is_bad = finite != fields["count"]
        np.add.at(self._rows, at, 1)
        np.add.at(self._bad, at[is_bad], 1)
        np.minimum.at(self._first_bad, names[is_bad], rows["step"][is_bad])
        values = _values(fields, finite, classes.astype(np.uint8))
        has_value = finite > 0
        np.add.at(self._valued, at[has_value], 1)
        for name in self._fields:
            found, cells = values[name][has_value], at[has_value]
            np.minimum.at(self._low[name], cells, found)
            np.maximum.at(self._high[name], cells, found)
            np.add.at(self._sum[name], cells, found)

    def envelope(self, names: list[str], n_workers: int) -> Envelope:
        """What was taken in."""
        empty = self._valued == 0
        weight = np.maximum(self._valued, 1)

        def of(values: NDArray[np.float64]) -> NDArray[np.float32]:
            held = np.where(empty, np.nan, values).astype(np.float32)
            return held.reshape(self._shape)

        none = self._first_bad == np.iinfo(np.int64).max
        return Envelope(
            names=names,
            edges=self._edges,
            low={f: of(self._low[f]) for f in self._fields},
            high={f: of(self._high[f]) for f in self._fields},
            mean={f: of(self._sum[f] / weight) for f in self._fields},
            rows=self._rows.reshape(self._shape),
            bad=self._bad.reshape(self._shape),
            first_bad=np.where(none, -1, self._first_bad),
            n_workers=n_workers,
        )


def _values(
    rows: dict[str, NDArray[Any]],
    finite: NDArray[np.uint64],
    classes: NDArray[np.uint8],
) -> dict[str, NDArray[np.float64]]:
    """The fields of an envelope of each row, within float32."""
    low, high = (
        shards.to_float(rows[each], classes, finite > 0) for each in ("min", "max")
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        found = {
            "l2": rows["l2"],
            "rms": rows["l2"] / np.sqrt(finite.astype(np.float64)),
            "mean": rows["mean"],
            "std": np.sqrt(rows["m2"] / finite),
            "abs_max": np.maximum(np.abs(low), np.abs(high)),
            "zero_share": rows["zero"] / rows["count"],
        }
    return {name: np.clip(value, -LARGEST, LARGEST) for name, value in found.items()}
