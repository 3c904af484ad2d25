"""Who comes last to the collective operations of a bin, and how long others wait.

All ranks leave such an operation together, so whoever waits least in it came last.
That needs no clock that ranks share.

Thread safety: immutable values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tdbg.rules.profile import Bin, Rows
from tdbg.rules.table import Floats

__all__ = ["Arrivals", "arrivals_of"]

# Operations that no rank leaves before all have come.
_OF_ALL = frozenset(
    {
        *("all_reduce", "ddp_all_reduce", "all_gather", "reduce_scatter"),
        *("all_to_all", "barrier"),
    }
)
# Fewer steps than this say nothing of ranks.
ENOUGH_STEPS = 5


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The usual steps of a bin in which all ranks met.

    Attributes:
        workers: Numbers of the ranks.
        waited_ns: Ranks x steps: how long each waited for others, in all operations of
            the step.
    """

    workers: tuple[int, ...]
    waited_ns: Floats

    def last_share(self, rank: int) -> float:
        """Return in which share of the steps a rank waits least: the others wait."""
        is_last = self.waited_ns.argmin(axis=0) == rank
        differ = self.waited_ns.max(axis=0) > self.waited_ns.min(axis=0)
        return float((is_last & differ).mean())

    def late_ns(self, rank: int) -> float:
        """Return how long the others wait for a rank in a step: the median."""
        others = np.delete(self.waited_ns, rank, axis=0)
        return float(np.median(np.median(others, axis=0) - self.waited_ns[rank]))


def arrivals_of(each: Bin) -> Arrivals | None:
    """Return what a bin shows of its ranks' arrivals; None: too little."""
    return each.derived("arrivals", lambda: _arrivals(each))


def _arrivals(each: Bin) -> Arrivals | None:
    workers = np.unique(each.usual_steps["worker"])
    rows = _usable(each)
    if len(workers) < max(2, each.n_workers) or not len(rows):
        return None
    keys = np.stack([rows["group"].astype(np.int64), rows["sequence"]], axis=1)
    known, at = np.unique(keys, axis=0, return_inverse=True)
    of_worker = np.searchsorted(workers, rows["worker"])
    shape = len(known), len(workers)
    waited, steps, kinds = (np.full(shape, -1, np.int64) for _ in range(3))
    place = at.ravel(), of_worker
    waited[place], steps[place] = rows["exposed_ns"], rows["global_step"]
    kinds[place] = rows["kind"]
    # Ranks that counted otherwise do not mean the same operation.
    is_same = (waited >= 0).all(axis=1)
    is_same &= (steps == steps[:, :1]).all(axis=1) & (kinds == kinds[:, :1]).all(axis=1)
    numbers, of_step = np.unique(steps[is_same, 0], return_inverse=True)
    if len(numbers) < ENOUGH_STEPS:
        return None
    found = np.zeros((len(workers), len(numbers)))
    for rank in range(len(workers)):
        np.add.at(found[rank], of_step, waited[is_same, rank])
    return Arrivals(tuple(workers.tolist()), found)


def _usable(each: Bin) -> Rows:
    """Return the operations of usual steps whose waits the hosts saw."""
    rows, usual = each.tables["collective"], each.usual_steps
    of_all = [i for i, kind in enumerate(each.collective_kinds) if kind in _OF_ALL]
    keep = (rows["exposed_ns"] >= 0) & np.isin(rows["kind"], of_all)
    keep &= np.isin(rows["global_step"], usual["global_step"])
    found: Rows = rows[keep & np.isin(rows["worker"], usual["worker"])]
    return found
