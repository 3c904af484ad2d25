"""WorkerImbalance: one worker of a data loader that is slower than the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import number
from tdbg.rules.builtin.time.breakdown import breakdown_of
from tdbg.rules.builtin.time.time_rule import Sign, TimeRule, gain_severity, shorter
from tdbg.rules.profile import ProfileWindow, Rows
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Stage
from tdbg.run.profile_tables import Phase

__all__ = ["WorkerImbalance"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerImbalance(TimeRule):
    """Report a worker of a data loader that is slower than the others.

    Batches come in order, so that the others wait for it.

    Args:
        factor: How many times as long as that of the others its median fetch takes.
        batches: How many batches of each worker must have been fetched in a minute.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.LOADING
    tables = frozenset({"step", "loader"})
    # A minute: a worker makes few batches in 10 s.
    reach = 5

    factor: float = 2.0
    batches: int = 20

    def __post_init__(self) -> None:
        check_number(self, "factor", above=1.0)
        check_number(self, "batches", least=1, whole=True)

    @property
    def first_verdict(self) -> str:
        """Return what must have been fetched."""
        return f"{self.batches} batches of each of several workers in a minute"

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge each worker by its fetches of the last minute."""
        breakdown = breakdown_of(profile.bins[i])
        if breakdown is None:
            return {}
        wait = breakdown.share(Phase.DATA_WAIT)
        bins = profile.bins[max(0, i - self.reach) : i + 1]
        rows = np.concatenate([each.tables["loader"] for each in bins])
        rows = rows[(rows["fetch_ns"] >= 0) & (rows["loader_worker"] >= 0)]
        found: dict[str, Sign] = {}
        for key in np.unique(rows[["worker", "loader"]]):
            own = rows["worker"] == key["worker"]
            own &= rows["loader"] == key["loader"]
            of_workers = self._fetches(rows[own])
            if len(of_workers) < 2:
                continue
            slow = max(of_workers, key=lambda each: of_workers[each])
            others = [ns for each, ns in of_workers.items() if each != slow]
            name = f"loader {key['loader']} of worker {key['worker']}"
            found[name] = self._sign(
                slow, of_workers[slow], float(np.median(others)), wait
            )
        return found

    def _fetches(self, rows: Rows) -> dict[int, float]:
        """Return the median fetch of each worker that fetched often enough."""
        found = {}
        for worker in np.unique(rows["loader_worker"]).tolist():
            fetch = rows["fetch_ns"][rows["loader_worker"] == worker]
            if len(fetch) >= self.batches:
                found[worker] = float(np.median(fetch))
        return found

    def _sign(self, slow: int, fetch: float, others: float, wait: float) -> Sign:
        is_slow = fetch > self.factor * max(others, 1.0)

        def describe() -> Description:
            return Description(
                message=(
                    f"Worker {slow} of the data loader is slow: its fetches take "
                    f"{number(fetch / 1e6)} ms, those of the other workers "
                    f"{number(others / 1e6)} ms."
                ),
                value=fetch / max(others, 1.0),
                threshold=self.factor,
                gain=wait,
                advice=(
                    "Look at what it reads: a shard with larger files, a slower disk, "
                    "a range of indices. Batches come in order, so that the others "
                    f"wait for it. Equal work gives up to {shorter(wait)}."
                ),
            )

        severity = gain_severity(wait) if is_slow else None
        return Sign(severity=severity, describe=describe)
