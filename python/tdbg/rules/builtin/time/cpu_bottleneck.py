"""CPUBottleneck: data whose preparation keeps all cores busy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tdbg.config.quantities import number, percent
from tdbg.rules.builtin.time.lines import in_words, top_line
from tdbg.rules.builtin.time.loading import loading_of, wait_share
from tdbg.rules.builtin.time.machine_use import mean, processes_of, system_rows
from tdbg.rules.builtin.time.time_rule import (
    TRAINING,
    Sign,
    TimeRule,
    gain_severity,
    shorter,
)
from tdbg.rules.profile import Bin, ProfileWindow
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Stage
from tdbg.run.profile_tables import Phase, ProcessKind

__all__ = ["CPUBottleneck"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class CPUBottleneck(TimeRule):
    """Report trainings that wait for data because their cores have no time left.

    Three things must hold: steps wait for data, whoever prepares it computes or waits
    for a core all the time, and the cores that the training may use are busy.

    Args:
        wait_threshold: Share of a step's time that waits for data, in percent.
        worker_threshold: Share of the time in which workers run or wait for a core, in
            percent.
        busy_threshold: How busy the allowed cores are on average, in percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.PREPARATION
    tables = frozenset({"step", "system", "process", "loader"})

    wait_threshold: float = 15.0
    worker_threshold: float = 70.0
    busy_threshold: float = 90.0

    def __post_init__(self) -> None:
        check_number(self, "wait_threshold", above=0.0, most=100.0)
        check_number(self, "worker_threshold", above=0.0, most=100.0)
        check_number(self, "busy_threshold", above=0.0, most=100.0)

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the wait, the workers and the cores."""
        each = profile.bins[i]
        wait, system = wait_share(each), system_rows(each)
        if wait is None or system is None:
            return {}
        cores, computing = mean(system, "allowed_busy"), _computing(each)
        if 100 * wait < self.wait_threshold:
            # Cores may be as busy as they like.
            is_bad = False
        elif math.isnan(cores) or computing is None:
            return {}
        else:
            is_bad = (
                100 * computing >= self.worker_threshold
                and 100 * cores >= self.busy_threshold
            )

        def describe() -> Description:
            return self._describe(each, wait, cores, computing or 0.0)

        return {
            TRAINING: Sign(
                severity=gain_severity(wait) if is_bad else None, describe=describe
            )
        }

    def _describe(
        self, each: Bin, wait: float, cores: float, computing: float
    ) -> Description:
        line = top_line([each], {Phase.DATA_WAIT})
        rows = system_rows(each)
        allowed = math.nan if rows is None else mean(rows, "allowed_cores")
        count = "" if math.isnan(allowed) else f"{number(allowed)} "
        return Description(
            message=(
                f"Preparing data takes all cores: steps wait for {percent(100 * wait)} "
                f"of their time, the {count}allowed cores are "
                f"{percent(100 * cores)} busy, and whoever prepares the data computes "
                f"for {percent(100 * computing)} of the time."
            ),
            value=100 * cores,
            threshold=self.busy_threshold,
            gain=wait,
            advice=(
                "More workers would not help. Do less for each sample: fewer or "
                "cheaper transforms, smaller files, data prepared once and stored; or "
                f"allow more cores. Without the wait you have {shorter(wait)}."
                f"{in_words(line)}"
            ),
        )


def _computing(each: Bin) -> float | None:
    """Return for which share of the time those who prepare data compute.

    None: not known.  Without workers, the share of the fetches of the training itself.
    """
    workers = [
        process
        for process in processes_of(each)
        if process.kind is ProcessKind.LOADER_WORKER
    ]
    if workers:
        return sum(process.busy for process in workers) / len(workers)
    loading = loading_of(each)
    return None if loading is None or loading.workers else loading.cpu_share
