"""CpuThrottled: trainings that the limit of their container stops again and again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tdbg.config.quantities import number, percent, plural
from tdbg.rules.builtin.time.machine_use import (
    delta,
    mean,
    processes_of,
    rate,
    system_rows,
)
from tdbg.rules.builtin.time.time_rule import TRAINING, Sign, TimeRule
from tdbg.rules.profile import Bin, ProfileWindow, Rows
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.profile_tables import ProcessKind

__all__ = ["CpuThrottled", "throttled"]

PERIODS, TIME = 10.0, 5.0


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class CpuThrottled(TimeRule):
    """Report trainings that the processor quota of their control group stops.

    Args:
        periods: Share of the scheduling periods that were throttled, in percent.
        time: Time for which tasks were stopped, in percent of the wall time.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING,)
    stage = Stage.CONTENTION
    tables = frozenset({"step", "system", "process"})

    periods: float = PERIODS
    time: float = TIME

    def __post_init__(self) -> None:
        check_number(self, "periods", above=0.0, most=100.0)
        check_number(self, "time", above=0.0)

    @property
    def first_verdict(self) -> str:
        """Return that there must be a limit."""
        return "a container with a processor limit, whose throttling the kernel counts"

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the counters of the control group."""
        each = profile.bins[i]
        rows = system_rows(each)
        if rows is None or math.isnan(delta(rows, "cgroup_periods")):
            return {}
        share, time = throttled(rows)
        is_bad = 100 * share >= self.periods and 100 * time >= self.time

        def describe() -> Description:
            return self._describe(each, rows, share, time)

        severity = Severity.WARNING if is_bad else None
        return {TRAINING: Sign(severity=severity, describe=describe)}

    def _describe(
        self, each: Bin, rows: Rows, share: float, time: float
    ) -> Description:
        quota = mean(rows, "allowed_cores")
        cores = "" if math.isnan(quota) else f" of {_cores(quota)}"
        ranks = [e for e in processes_of(each) if e.kind is ProcessKind.RANK]
        n_workers = sum(e.kind is ProcessKind.LOADER_WORKER for e in processes_of(each))
        fewer = ""
        if ranks and not math.isnan(quota):
            threads = max(1, int(quota / len(ranks)))
            workers = f" and fewer than {plural(n_workers, 'worker')}" * (n_workers > 0)
            fewer = (
                f" Or ask for less: OMP_NUM_THREADS={threads} for each rank{workers}."
            )
        return Description(
            message=(
                f"The processor limit{cores} stops the training: it was throttled in "
                f"{percent(100 * share)} of the scheduling periods, and its tasks "
                f"stood still for {number(time * each.seconds)} s in "
                f"{number(each.seconds)} s, summed over cores."
            ),
            value=100 * share,
            threshold=self.periods,
            advice=(
                "Raise the limit of the container (cpu.max, --cpus, or limits.cpu in "
                f"Kubernetes).{fewer}"
            ),
        )


def throttled(rows: Rows) -> tuple[float, float]:
    """Return the share of periods that were throttled, and of time; 0 if unknown."""
    periods, stopped = delta(rows, "cgroup_periods"), delta(rows, "cgroup_throttled")
    time = rate(rows, "cgroup_throttled_ns") / 1e9
    if math.isnan(periods) or math.isnan(stopped) or periods <= 0:
        return 0.0, 0.0
    return stopped / periods, 0.0 if math.isnan(time) else time


def _cores(quota: float) -> str:
    return f"{number(quota)} core{'' if quota == 1 else 's'}"
