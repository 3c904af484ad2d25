"""Data loaders: how long they take, how long the training waits, and what would help.

Thread safety: pure functions over values.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import plural
from tdbg.stats.loader_queue import (
    best_workers,
    busy_cores,
    most_workers,
    predicted_step_ns,
)
from tdbg.view.time.phases import duration_text, percent_text

__all__ = ["LoaderUse", "WhatIf", "loading_of", "what_if"]

# Up to so many workers are looked at.
MOST_WORKERS = 64
LEAST_WORKERS = 8
# A step that would be this much of the one now is not worth a change.
LEAST_TELLING = 0.97


@dataclass(frozen=True, slots=True)
class WhatIf:
    """How long steps would be with other numbers of workers.

    Attributes:
        workers: The numbers of workers, from 0 on.
        wait_shares: The share of a step that would be waiting for data, of each.
        step_ns: How long a step would take, of each.
        needed: The least number of workers with which there is nothing left to wait
            for.
        best: The same, or the most that the cores can feed.
    """

    workers: tuple[int, ...]
    wait_shares: tuple[float, ...]
    step_ns: tuple[float, ...]
    needed: int
    best: int

    @property
    def is_capped(self) -> bool:
        """Whether cores, and not the loader, set the best number of workers."""
        return self.best < self.needed

    def text(self, now: int) -> str:
        """Return what the best number of workers would give, in words.

        Args:
            now: How many workers there are.

        Example:
            >>> what_if(80e6, 20e6).text(1)
            'With 4 workers instead of 1, a step would take about 20.3 ms instead of \
80 ms: 75 % less'
        """
        before, best = self._now_and_best(now)
        if not self.saves(now):
            return "Another number of workers would not make steps shorter"
        text = (
            f"With {plural(self.best, 'worker')} instead of {now}, a step would take "
            f"about {duration_text(best)} instead of {duration_text(before)}: "
            f"{percent_text(1 - best / before)} less"
        )
        return f"{text}. More workers would find no core" if self.is_capped else text

    def saves(self, now: int) -> bool:
        """Return whether the best number of workers makes steps shorter by 3 %.

        Args:
            now: How many workers there are.
        """
        before, best = self._now_and_best(now)
        return best < LEAST_TELLING * before

    def _now_and_best(self, now: int) -> tuple[float, float]:
        return self.step_ns[min(now, len(self.step_ns) - 1)], self.step_ns[self.best]

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {**asdict(self), "is_capped": self.is_capped}


def what_if(
    fetch_ns: float, rest_ns: float, *, most_useful: int | None = None, now: int = 0
) -> WhatIf:
    """Return what other numbers of workers would give.

    Args:
        fetch_ns: How long a worker takes for the batches of a step.
        rest_ns: How long a step takes apart from waiting for data.
        most_useful: More workers than that find no core; None: nobody knows.
        now: How many workers there are.

    Example:
        >>> curve = what_if(80e6, 20e6)
        >>> curve.best, [round(share, 2) for share in curve.wait_shares[:5]]
        (4, [0.8, 0.75, 0.5, 0.25, 0.02])
    """
    rest_ns = max(rest_ns, 1.0)
    needed = best_workers(fetch_ns, rest_ns)
    best = needed if most_useful is None else min(needed, most_useful)
    last = min(MOST_WORKERS, max(LEAST_WORKERS, best + best // 2, now + 1))
    workers = tuple(range(last + 1))
    useful = last if most_useful is None else most_useful
    steps = [predicted_step_ns(fetch_ns, rest_ns, min(w, useful)) for w in workers]
    shares = [1.0 - rest_ns / step for step in steps]
    return WhatIf(workers, tuple(shares), tuple(steps), needed, best)


@dataclass(frozen=True, slots=True)
class LoaderUse:
    """A data loader.

    Attributes:
        loader: Its number in its process.
        n_batches: How many batches it gave, to all ranks.
        workers: How many worker processes it has; 0: the training fetches itself.
        capacity: How many batches may be ready.
        depth: How many were ready, on average, when the training asked; NaN: unknown.
        wait_ns: How long the training waited for a batch: median and 95 %.
        fetch_ns: How long a worker took for one: median and 95 %; NaN: unknown.
        fetch_cpu_share: How much of that a core computed, 0 to 1; NaN: unknown.
        bytes_per_s: Bytes of batches a second; NaN: unknown.
        what_if: Other numbers of workers; None: the fetch time is unknown.
    """

    loader: int
    n_batches: int
    workers: int
    capacity: int
    depth: float
    wait_ns: tuple[float, float]
    fetch_ns: tuple[float, float]
    fetch_cpu_share: float
    bytes_per_s: float
    what_if: WhatIf | None

    @property
    def useful_cores(self) -> float | None:
        """Cores that a rank and the workers it needs would fill; None: not known."""
        if self.what_if is None or not math.isfinite(self.fetch_cpu_share):
            return None
        return busy_cores(self.what_if.needed, self.fetch_cpu_share)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold; what is unknown is None."""
        document = asdict(self)
        for name in ("depth", "fetch_cpu_share", "bytes_per_s"):
            document[name] = _known(document[name])
        for name in ("wait_ns", "fetch_ns"):
            document[name] = [_known(each) for each in document[name]]
        if self.what_if is not None:
            document["what_if"] = self.what_if.to_json()
        return document


def loading_of(
    batches: NDArray[np.void],
    steps: NDArray[np.void],
    allowed_cores: float = math.nan,
    is_usual: NDArray[np.bool_] | None = None,
) -> list[LoaderUse]:
    """Return the data loaders of a training, the one that was waited for most first.

    Args:
        batches: Rows of the table ``loader``, as ``trial.profile.workers`` returns
            them.
        steps: Rows of the table ``step`` of all modes, by time.
        allowed_cores: How many cores the training may use; NaN: unknown.
        is_usual: Which of *steps* count; None: all.  A loader that none of these used,
            such as one for evaluation, has no prediction.
    """
    at = _steps_of(batches, steps)
    counts = at >= 0
    if is_usual is not None and len(steps):
        counts &= is_usual[at]
    found = []
    for loader in np.unique(batches["loader"]).tolist():
        own = batches["loader"] == loader
        used = np.unique(at[own & counts])
        rows = batches[own & counts] if len(used) else batches[own]
        found.append(_loading(rows, steps[used], allowed_cores))
    # The first one is drawn: one whose fetches were measured, if there is any.
    return sorted(
        found, key=lambda each: (not each.what_if, -each.n_batches * each.wait_ns[0])
    )


def _steps_of(batches: NDArray[np.void], steps: NDArray[np.void]) -> NDArray[np.int64]:
    """Return the row of *steps* in which each batch came; -1: after all of them."""
    found = np.full(len(batches), -1, np.int64)
    for worker in np.unique(steps["worker"]).tolist():
        rows = np.flatnonzero(steps["worker"] == worker)
        mine = np.flatnonzero(batches["worker"] == worker)
        at = np.searchsorted(steps["time"][rows], batches["time"][mine])
        is_known = at < len(rows)
        found[mine[is_known]] = rows[at[is_known]]
    return found


def _loading(
    rows: NDArray[np.void], steps: NDArray[np.void], allowed_cores: float
) -> LoaderUse:
    newest = rows[-1]
    workers = int(newest["workers"])
    known = rows["fetch_ns"] >= 0
    fetch, cpu = rows["fetch_ns"][known], rows["fetch_cpu_ns"][known]
    cpu_share = math.nan
    if len(fetch) and (cpu >= 0).all() and fetch.sum() > 0:
        cpu_share = min(1.0, float(cpu.sum()) / float(fetch.sum()))
    depth = rows["depth"][rows["depth"] >= 0]
    seconds = float(rows["time"].max() - rows["time"].min()) / 1e9
    n_bytes = rows["bytes"][rows["bytes"] >= 0]
    rate = float(n_bytes.sum()) / seconds if len(n_bytes) and seconds > 0 else math.nan
    curve = None
    if len(fetch) and len(steps):
        # Gradient accumulation takes several batches a step.
        n_ranks = len(np.unique(rows["worker"]))
        batches = max(1.0, len(rows) / len(steps))
        wait = float(rows["wait_ns"].mean()) * batches
        rest = float(steps["duration_ns"].mean()) - wait
        useful = None
        if math.isfinite(allowed_cores):
            known_share = None if math.isnan(cpu_share) else cpu_share
            useful = most_workers(allowed_cores / n_ranks, known_share)
        curve = what_if(
            float(fetch.mean()) * batches, rest, most_useful=useful, now=workers
        )
    return LoaderUse(
        loader=int(newest["loader"]),
        n_batches=len(rows),
        workers=workers,
        capacity=int(newest["capacity"]),
        depth=float(depth.mean()) if len(depth) else math.nan,
        wait_ns=_median_and_p95(rows["wait_ns"]),
        fetch_ns=_median_and_p95(fetch),
        fetch_cpu_share=cpu_share,
        bytes_per_s=rate,
        what_if=curve,
    )


def _median_and_p95(values: NDArray[np.int64]) -> tuple[float, float]:
    if not len(values):
        return math.nan, math.nan
    median, p95 = np.percentile(values, [50, 95])
    return float(median), float(p95)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
