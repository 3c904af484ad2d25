"""Ranks beside each other: who comes late to the operations that all of them share.

Thread safety: pure functions over values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tdbg.run.profile_tables import PHASE_COLUMNS, Phase
from tdbg.view.time.bins import BinColumns, Floats, Integers, binned

__all__ = ["Lateness", "RankLateness", "lateness_in", "lateness_of"]


@dataclass(frozen=True, slots=True)
class RankLateness:
    """A rank.

    Attributes:
        worker: Its name.
        median_ns: How late it usually was.
        last_share: In which share of the cases it was the last, 0 to 1.
        own_ns: How long its own work in a step took: the median, without waiting for
            data and for others.
    """

    worker: str
    median_ns: float
    last_share: float
    own_ns: float


@dataclass(frozen=True, slots=True, eq=False)
class Lateness:
    """How late each rank was, case by case.

    Attributes:
        ranks: One for each rank, in their order.
        source: "collectives": how much later than the first rank it called a
            collective; "own work": how much longer than the fastest it worked in a
            step.
        places: The training step of each case.  Shape (cases,).
        late_ns: How late each rank was.  Shape (cases, ranks).
    """

    ranks: tuple[RankLateness, ...]
    source: Literal["collectives", "own work"]
    places: Integers
    late_ns: Floats

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold, without the cases."""
        return {
            "source": self.source,
            "ranks": [
                {
                    "worker": each.worker,
                    "median_ns": each.median_ns,
                    "last_share": each.last_share,
                    "own_ns": each.own_ns if math.isfinite(each.own_ns) else None,
                }
                for each in self.ranks
            ],
        }


def lateness_of(
    workers: list[str],
    collectives: NDArray[np.void],
    steps: NDArray[np.void],
    places: Integers,
    steps_at: NDArray[np.int64],
) -> Lateness | None:
    """Return how late ranks were; None for one rank, or if nothing tells.

    All ranks leave a collective at the same time, so the one that spends least time in
    it came last.  That needs no clock that ranks share.

    Args:
        workers: Names of the ranks.
        collectives: Rows of the table ``collective``, with the column ``worker``.
        steps: Rows of the table ``step`` of training, likewise.
        places: The training step of each of *steps*.
        steps_at: The training step of each of *collectives*.
    """
    n = len(workers)
    if n < 2 or len(np.unique(steps["worker"])) < 2:
        return None
    own = own_work(steps)
    found = _table(
        collectives["group"].astype(np.int64) << 44 | collectives["sequence"],
        collectives["worker"],
        collectives["duration_ns"],
        steps_at,
        n,
    )
    source: Literal["collectives", "own work"] = "collectives"
    if found is None:
        source = "own work"
        found = _table(places, steps["worker"], -own, places, n)
    if found is None:
        return None
    at, present, spent = found
    late = spent.max(axis=1, keepdims=True) - spent
    last = np.where(late.max(axis=1) > 0, late.argmax(axis=1), -1)
    ranks = []
    for i, worker in enumerate(present.tolist()):
        of_rank = own[steps["worker"] == worker]
        ranks.append(
            RankLateness(
                workers[worker],
                float(np.median(late[:, i])),
                float(np.mean(last == i)),
                float(np.median(of_rank)) if len(of_rank) else math.nan,
            )
        )
    return Lateness(tuple(ranks), source, at, late)


def own_work(steps: NDArray[np.void]) -> NDArray[np.int64]:
    """Return what each step worked: without waiting for data and for other ranks."""
    waits = (Phase.DATA_WAIT, Phase.COMMUNICATION)
    work = steps["duration_ns"].copy()
    for phase in waits:
        work -= steps[PHASE_COLUMNS[phase]]
    return np.asarray(work)


def lateness_in(lateness: Lateness, edges: Integers) -> BinColumns:
    """Return how late each rank was in columns of training steps."""
    return binned(lateness.places, lateness.late_ns, edges)


def _table(
    keys: Integers,
    workers: NDArray[Any],
    values: NDArray[Any],
    places: Integers,
    n: int,
) -> tuple[Integers, Integers, Floats] | None:
    """Places of the keys that all workers have, these workers, and their values."""
    known, at = np.unique(keys, return_inverse=True)
    table = np.full((len(known), n), np.nan)
    table[at, workers] = values
    place = np.zeros(len(known), np.int64)
    place[at] = places
    there = np.isfinite(table)
    present = np.flatnonzero(there.any(axis=0))
    whole = there[:, present].all(axis=1)
    if len(present) < 2 or not whole.any():
        return None
    return place[whole], present, table[whole][:, present]
