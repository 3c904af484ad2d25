"""Dataloader: more workers of data loaders than help, or by smdebug's formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tdbg.config.quantities import number, percent, plural
from tdbg.rules.builtin.time.breakdown import breakdown_of
from tdbg.rules.builtin.time.loading import allowed_cores, loading_of
from tdbg.rules.builtin.time.time_rule import (
    TRAINING,
    Sign,
    TimeRule,
    check_optional,
)
from tdbg.rules.profile import Bin, ProfileWindow
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.profile_tables import Phase

if TYPE_CHECKING:
    from tdbg.rules.vocabulary import Vocabulary

__all__ = ["Dataloader"]

# smdebug's thresholds, where only one of the two is given.
MIN, MAX = 70.0, 200.0


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Dataloader(TimeRule):
    """Report data loaders with more workers than help.

    Too few workers are what ``DataLoaderBound`` finds, by the wait.  If you give one of
    SageMaker Debugger's thresholds, its formula holds instead: the processes that load
    data, in percent of the cores.

    Args:
        workers_per_core: Workers for each core that a rank may use, above which they
            are too many; only without a wait.
        min_threshold: SageMaker Debugger's: processes in percent of the cores, below
            which they are too few; 70 there.
        max_threshold: SageMaker Debugger's: above which they are too many; 200 there.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.LOADING
    tables = frozenset({"step", "loader", "system"})

    workers_per_core: float = 2.0
    min_threshold: float | None = None
    max_threshold: float | None = None

    def __post_init__(self) -> None:
        check_number(self, "workers_per_core", above=0.0)
        check_optional(self, "min_threshold", least=0.0)
        check_optional(self, "max_threshold", above=0.0)

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge how many workers there are."""
        each = profile.bins[i]
        cores = allowed_cores(each)
        if cores is None or not len(each.tables["loader"]):
            return {}
        is_default = self.min_threshold is None and self.max_threshold is None
        sign = (
            self._by_wait(each, cores) if is_default else self._by_number(each, cores)
        )
        return {} if sign is None else {TRAINING: sign}

    def _by_wait(self, each: Bin, cores: float) -> Sign | None:
        breakdown, loading = breakdown_of(each), loading_of(each)
        if breakdown is None or loading is None:
            return None
        limit = max(1.0, self.workers_per_core * cores)
        is_bad = loading.workers > limit and breakdown.share(Phase.DATA_WAIT) < 0.01

        def describe() -> Description:
            best = loading.best_workers
            fewer = loading.workers if best is None else min(best + 1, loading.workers)
            enough = min(fewer, max(1, int(limit)))

            def advice(words: Vocabulary) -> str:
                return (
                    f"Set {words.loader_workers.format(enough)}: steps do not wait for "
                    "data, and each worker takes memory and time to start."
                )

            return Description(
                message=(
                    f"The data loader has {plural(loading.workers, 'worker')} for "
                    f"{number(cores)} cores, and no step waits for data."
                ),
                value=float(loading.workers),
                threshold=limit,
                advice=advice,
            )

        return Sign(severity=Severity.INFO if is_bad else None, describe=describe)

    def _by_number(self, each: Bin, cores: float) -> Sign:
        rows = each.tables["loader"]
        n_processes = len(np.unique(rows["pid"])) / max(1, each.n_workers)
        value = 100.0 * n_processes / cores
        least = MIN if self.min_threshold is None else self.min_threshold
        most = MAX if self.max_threshold is None else self.max_threshold
        is_few, is_many = value < least, value > most

        def describe() -> Description:
            word = "few" if is_few else "many"
            return Description(
                message=(
                    f"Too {word} processes load data: {percent(value)} of the cores."
                ),
                value=value,
                threshold=least if is_few else most,
                advice=(
                    "Set the number of workers to between "
                    f"{number(least * cores / 100)} and {number(most * cores / 100)}."
                ),
            )

        severity = Severity.WARNING if is_few or is_many else None
        return Sign(severity=severity, describe=describe)
