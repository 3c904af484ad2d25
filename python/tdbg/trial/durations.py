"""How long steps took on each worker: which rank the others wait for.

Thread safety: ``duration_envelope`` may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.trial.envelope import Envelope
from tdbg.trial.writers import Source

__all__ = ["DURATION_FIELD", "duration_envelope"]

#: The field of an envelope of durations.
DURATION_FIELD = "seconds"


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
