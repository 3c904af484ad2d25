"""What a bin shows of a data loader, and what another number of workers would give.

The model is that of ``tdbg.stats.loader_queue``.

Thread safety: immutable values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tdbg.rules.builtin.time.breakdown import breakdown_of
from tdbg.rules.profile import Bin, Rows
from tdbg.rules.table import Floats
from tdbg.run.profile_tables import Phase
from tdbg.stats.loader_queue import best_workers, most_workers, predicted_step_ns

__all__ = ["Loading", "allowed_cores", "loading_of", "wait_share"]

# Below this share of the batches that may be ready, workers never pause.
STARVED = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """The loader of a bin that made its consumers wait longest.

    Times are of one step: of all batches that a step takes.

    Attributes:
        workers: How many workers it has, in each rank; 0: the training's own process.
        wait_ns: How long a step waits.
        rest_ns: The rest of a step.
        fetch_ns: How long the fetches of a step take one worker; None: not measured.
        scatter: The 95th percentile of fetches, in medians; None: not measured.
        cpu_share: How much of a fetch computes, 0 to 1; None: not measured.
        filled: Batches that were ready when one was asked for, as a share of those
            that may be; None: not measured, or there are no workers.
        settings: What the event ``loader`` says of it.
    """

    workers: int
    wait_ns: float
    rest_ns: float
    fetch_ns: float | None
    scatter: float | None
    cpu_share: float | None
    filled: float | None
    settings: Mapping[str, Any]

    @property
    def step_ns(self) -> float:
        """How long a step takes."""
        return self.wait_ns + self.rest_ns

    @property
    def best_workers(self) -> int | None:
        """How many workers end the wait but for 3% of a step; None: not known."""
        if self.fetch_ns is None or self.rest_ns <= 0:
            return None
        return best_workers(self.fetch_ns, self.rest_ns)

    def most_workers(self, cores: float) -> int:
        """Return how many workers can run at once on these cores.

        One core is left to the training itself.
        """
        return most_workers(cores, self.cpu_share)

    def wait_share(self, workers: int) -> float:
        """Return the predicted share of a step that waits, with so many workers."""
        step = self.predicted_step_ns(workers)
        return (step - self.rest_ns) / step

    def predicted_step_ns(self, workers: int) -> float:
        """Return how long a step would take with so many workers."""
        return predicted_step_ns(self.fetch_ns or 0.0, self.rest_ns, workers)


def wait_share(each: Bin) -> float | None:
    """Return the share of usual steps' time that waits for data; None: unknown.

    Where no loader is known and no wait was seen, nobody looked.
    """
    breakdown = breakdown_of(each)
    if breakdown is None:
        return None
    share = breakdown.share(Phase.DATA_WAIT)
    return share if share > 0 or len(each.tables["loader"]) else None


def loading_of(each: Bin) -> Loading | None:
    """Return what a bin shows of its loader; None if it says nothing of one."""
    return each.derived("loading", lambda: _loading(each))


def allowed_cores(each: Bin) -> float | None:
    """Return on how many cores each rank may run; None: not known."""
    rows = each.tables.get("system")
    found: float | None = None
    if rows is not None and len(rows):
        known = rows["allowed_cores"][np.isfinite(rows["allowed_cores"])]
        found = float(np.median(known)) if len(known) else None
    told = each.machine.get("allowed_cores")
    if found is None and isinstance(told, int | float):
        found = float(told)
    return None if found is None else found / max(1, each.n_workers)


def _loading(each: Bin) -> Loading | None:
    breakdown = breakdown_of(each)
    rows = _batches_of_usual_steps(each)
    if breakdown is None or not len(rows):
        return None
    number = _slowest(rows)
    rows = rows[rows["loader"] == number]
    step = breakdown.total_ns / breakdown.n_steps
    wait = breakdown.share(Phase.DATA_WAIT) * step
    per_step = len(rows) / breakdown.n_steps
    workers = int(np.median(rows["workers"]))
    fetch = rows["fetch_ns"][rows["fetch_ns"] >= 0].astype(np.float64)
    cpu = rows["fetch_cpu_ns"][rows["fetch_cpu_ns"] >= 0].astype(np.float64)
    is_measured = len(fetch) >= len(rows) / 2
    is_filled = (rows["depth"] >= 0) & (rows["capacity"] > 0)
    ready = rows["depth"][is_filled] / rows["capacity"][is_filled]
    known = [at for at in each.loaders if at[1] == number]
    fetch_ns: float | None = None
    if is_measured:
        fetch_ns = float(fetch.mean()) * per_step
    elif not workers:
        fetch_ns = wait
    elif len(ready) and ready.mean() < STARVED:
        # A queue that is always empty: the workers fetch all the time.
        fetch_ns = workers * step
    return Loading(
        workers=workers,
        wait_ns=wait,
        rest_ns=step - wait,
        fetch_ns=fetch_ns,
        scatter=_scatter(fetch) if is_measured else None,
        cpu_share=_ratio(cpu, fetch) if is_measured and len(cpu) else None,
        filled=float(ready.mean()) if len(ready) and workers else None,
        settings=each.loaders[min(known)] if known else {},
    )


def _scatter(fetch: Floats) -> float:
    return float(np.quantile(fetch, 0.95) / max(float(np.median(fetch)), 1.0))


def _ratio(part: Floats, whole: Floats) -> float:
    return min(1.0, float(part.sum() / max(float(whole.sum()), 1.0)))


def _batches_of_usual_steps(each: Bin) -> Rows:
    """Return the batches that were got during usual steps."""
    rows = each.tables["loader"]
    keep = np.zeros(len(rows), bool)
    for worker in np.unique(each.steps["worker"]):
        own = each.steps["worker"] == worker
        ends, usual = each.steps["time"][own], each.is_judged[own]
        at = np.searchsorted(ends, rows["time"])
        inside = (rows["worker"] == worker) & (at < len(ends))
        keep[inside] = usual[at[inside]]
    return rows[keep]


def _slowest(rows: Rows) -> int:
    numbers = np.unique(rows["loader"])
    waits = [rows["wait_ns"][rows["loader"] == each].sum() for each in numbers]
    return int(numbers[int(np.argmax(waits))])
