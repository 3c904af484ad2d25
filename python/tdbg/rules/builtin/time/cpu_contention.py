"""CpuContention: trainings that wait for a core that somebody else has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import number, percent
from tdbg.rules.builtin.time.cpu_throttled import PERIODS, throttled
from tdbg.rules.builtin.time.machine_use import (
    ProcessUse,
    mean,
    processes_of,
    system_rows,
)
from tdbg.rules.builtin.time.time_rule import (
    TRAINING,
    Sign,
    TimeRule,
    gain_severity,
    shorter,
)
from tdbg.rules.profile import ProfileWindow, Rows
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Stage
from tdbg.run.profile_tables import ProcessKind

__all__ = ["CpuContention"]

# So many threads for each allowed core get in each other's way.
CROWD = 1.5


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class CpuContention(TimeRule):
    """Report trainings whose main threads wait for a core.

    A thread that could run and does not is *queued*; the kernel counts its time.  A
    quota has that effect, too, and has a rule of its own: ``CpuThrottled``.

    Args:
        queued: Share of the time in which the main threads of ranks are queued, in
            percent.
        steal: Share of the time that the hypervisor gives to other machines, in
            percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.CONTENTION
    tables = frozenset({"step", "system", "process"})

    queued: float = 10.0
    steal: float = 5.0

    def __post_init__(self) -> None:
        check_number(self, "queued", above=0.0, most=100.0)
        check_number(self, "steal", above=0.0, most=100.0)

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge how long main threads are queued, and what is stolen."""
        each = profile.bins[i]
        rows, known = system_rows(each), processes_of(each)
        ranks = [e for e in known if e.kind is ProcessKind.RANK]
        queued = float(np.mean([e.queued for e in ranks])) if ranks else math.nan
        if rows is None or math.isnan(queued):
            return {}
        stolen = mean(rows, "cpu_steal")
        is_throttled = 100 * throttled(rows)[0] >= PERIODS
        is_bad = not is_throttled and (
            100 * queued >= self.queued or 100 * stolen >= self.steal
        )

        def describe() -> Description:
            return self._describe(rows, known, queued, stolen)

        gain = max(queued, 0.0 if math.isnan(stolen) else stolen)
        severity = gain_severity(gain) if is_bad else None
        return {TRAINING: Sign(severity=severity, describe=describe)}

    def _describe(
        self, rows: Rows, known: Sequence[ProcessUse], queued: float, stolen: float
    ) -> Description:
        if 100 * queued < self.queued:
            return Description(
                message=(
                    "The hypervisor gives the processor to other machines for "
                    f"{percent(100 * stolen)} of the time."
                ),
                value=100 * stolen,
                threshold=self.steal,
                gain=stolen,
                advice=(
                    "Use a machine whose cores are not shared: up to "
                    f"{shorter(stolen)}."
                ),
            )
        return Description(
            message=(
                "The training waits for a core: its main thread could run and had "
                f"none for {percent(100 * queued)} of the time."
            ),
            value=100 * queued,
            threshold=self.queued,
            gain=queued,
            advice=f"{_advice(rows, known)} That gives up to {shorter(queued)}.",
        )


def _advice(rows: Rows, known: Sequence[ProcessUse]) -> str:
    allowed = mean(rows, "allowed_cores")
    ranks = [each for each in known if each.kind is ProcessKind.RANK]
    workers = [each for each in known if each.kind is ProcessKind.LOADER_WORKER]
    busy_workers = sum(each.busy for each in workers if not math.isnan(each.busy))
    if not math.isnan(allowed) and len(ranks) + busy_workers > CROWD * allowed:
        threads = max(1, int(allowed / max(1, len(ranks))))
        return (
            f"{len(ranks)} rank(s) and {len(workers)} workers share {number(allowed)} "
            "cores, which they fill by themselves. Use fewer workers, set "
            f"OMP_NUM_THREADS={threads} for each rank, or allow more cores."
        )
    return (
        "Other programs use the cores, or threads of the training itself. Find them "
        "with top; stop them, pin the training to cores of its own (taskset), or lower "
        "OMP_NUM_THREADS and the number of workers."
    )
