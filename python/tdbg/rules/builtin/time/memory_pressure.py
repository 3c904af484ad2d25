"""MemoryPressure: a host that has too little memory for what runs on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tdbg.config.quantities import number, percent
from tdbg.rules.builtin.time.machine_use import delta, rate, system_rows
from tdbg.rules.builtin.time.time_rule import TRAINING, Sign, TimeRule
from tdbg.rules.profile import ProfileWindow
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage

__all__ = ["MemoryPressure"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPressure(TimeRule):
    """Report hosts and containers that have too little memory for what runs there.

    Args:
        stalled: Share of the time in which all tasks wait for memory (PSI full), in
            percent.
        major_faults: Pages a second that are read back from a disk.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING, Severity.ERROR)
    stage = Stage.CONTENTION
    tables = frozenset({"step", "system"})

    stalled: float = 5.0
    major_faults: float = 100.0

    def __post_init__(self) -> None:
        check_number(self, "stalled", above=0.0, most=100.0)
        check_number(self, "major_faults", above=0.0)

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge stalls, swapping, page faults and killed processes."""
        rows = system_rows(profile.bins[i])
        if rows is None:
            return {}
        stalled = rate(rows, "memory_full_ns") / 1e9
        faults, swapped = rate(rows, "major_faults"), rate(rows, "swap_in_bytes")
        kills = delta(rows, "cgroup_oom_kills")
        if math.isnan(stalled) and math.isnan(faults):
            return {}
        # Pages of a program that starts are read, too: swapping must come with it.
        swaps = faults >= self.major_faults and swapped > 0
        is_bad = 100 * stalled >= self.stalled or swaps
        severity = Severity.WARNING if is_bad else None
        if kills > 0:
            severity = Severity.ERROR

        def describe() -> Description:
            parts = []
            if kills > 0:
                parts.append(f"the kernel killed {kills:.0f} of its processes")
            if 100 * stalled >= self.stalled:
                parts.append(
                    f"all tasks wait for memory for {percent(100 * stalled)} of the "
                    "time"
                )
            if swaps:
                parts.append(f"{number(swapped / 1e6)} MB/s come back from the swap")
            return Description(
                message=f"There is too little memory: {' and '.join(parts)}.",
                value=100 * stalled,
                threshold=self.stalled,
                advice=(
                    "Use fewer workers or a smaller prefetch_factor (each worker holds "
                    "batches and its copy of the data set), load less at once, or "
                    "allow more memory."
                ),
            )

        return {TRAINING: Sign(severity=severity, describe=describe)}
