"""IOBottleneck: data whose reading takes too long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import number, percent
from tdbg.rules.builtin.time.loading import loading_of, wait_share
from tdbg.rules.builtin.time.machine_use import (
    ProcessUse,
    processes_of,
    rate,
    system_rows,
)
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
from tdbg.run.profile_tables import ProcessKind

__all__ = ["IOBottleneck"]

# A disk that is busy for less of the time can read more at once.
IDLE_DISK = 0.8


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class IOBottleneck(TimeRule):
    """Report trainings that wait for data because reading it takes too long.

    Args:
        wait_threshold: Share of a step's time that waits for data, in percent.
        blocked_threshold: Share of the time in which those who read are blocked in the
            kernel (state D), in percent.
        pressure_threshold: Share of the time in which some task of the host waits for
            I/O (PSI), in percent; counts if the training reads from a device.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.STORAGE
    tables = frozenset({"step", "system", "process", "loader", "disk"})

    wait_threshold: float = 15.0
    blocked_threshold: float = 30.0
    pressure_threshold: float = 20.0

    def __post_init__(self) -> None:
        check_number(self, "wait_threshold", above=0.0, most=100.0)
        check_number(self, "blocked_threshold", above=0.0, most=100.0)
        check_number(self, "pressure_threshold", above=0.0, most=100.0)

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the wait, the states of those who read, and the pressure on I/O."""
        each = profile.bins[i]
        wait = wait_share(each)
        if wait is None:
            return {}
        if 100 * wait < self.wait_threshold:
            return {TRAINING: Sign(severity=None, describe=_nothing)}
        readers = _readers(each)
        if not readers:
            return {}
        blocked = float(np.mean([each.states.get("D", 0.0) for each in readers]))
        reads = float(np.nansum([each.read_rate for each in readers]))
        rows = system_rows(each)
        pressure = math.nan if rows is None else rate(rows, "io_some_ns") / 1e9
        is_bad = 100 * blocked >= self.blocked_threshold or (
            100 * pressure >= self.pressure_threshold and reads > 0
        )

        def describe() -> Description:
            return self._describe(each, wait, blocked, pressure)

        severity = gain_severity(wait) if is_bad else None
        return {TRAINING: Sign(severity=severity, describe=describe)}

    def _describe(
        self, each: Bin, wait: float, blocked: float, pressure: float
    ) -> Description:
        by_state = 100 * blocked >= self.blocked_threshold
        if by_state:
            how = f"those who read are blocked for {percent(100 * blocked)} of the time"
        else:
            how = (
                f"for {percent(100 * pressure)} of the time some task waits for I/O "
                "(PSI)"
            )
        return Description(
            message=(
                f"Reading data takes too long: steps wait for {percent(100 * wait)} of "
                f"their time, and {how}.{_rates(_readers(each))}"
            ),
            value=100 * (blocked if by_state else pressure),
            threshold=self.blocked_threshold if by_state else self.pressure_threshold,
            gain=wait,
            advice=f"{_advice(each)} Without the wait you have {shorter(wait)}.",
        )


def _nothing() -> Description:
    raise AssertionError


def _readers(each: Bin) -> list[ProcessUse]:
    """Return the workers of loaders, or the ranks where there are none."""
    known = processes_of(each)
    workers = [each for each in known if each.kind is ProcessKind.LOADER_WORKER]
    return workers or [each for each in known if each.kind is ProcessKind.RANK]


def _rates(readers: list[ProcessUse]) -> str:
    """Return in words how much is read, and how much of it from memory."""
    device = float(np.sum([each.read_rate for each in readers]))
    every = float(np.sum([each.all_read_rate for each in readers]))
    if math.isnan(device):
        return ""
    text = f" They read {number(device / 1e6)} MB/s from devices"
    if every > 0 and not math.isnan(every):
        cached = max(0.0, 1.0 - device / every)
        text += f"; {percent(100 * cached)} of all that they read was cached"
    return text + "."


def _advice(each: Bin) -> str:
    busy = _busiest_disk(each)
    loading = loading_of(each)
    if busy is not None and busy < IDLE_DISK and loading is not None:
        return (
            f"The busiest disk has work for {percent(100 * busy)} of the time only: "
            f"let more than {loading.workers or 'no'} workers read at once, or raise "
            "prefetch_factor."
        )
    return (
        "Keep the data in memory or on a local disk, or store many samples in one file "
        "that is read in order (shards)."
    )


def _busiest_disk(each: Bin) -> float | None:
    rows = each.tables["disk"]
    shares = [
        rate(own, "busy_ns") / 1e9
        for name in np.unique(rows["instance"])
        if len(own := rows[rows["instance"] == name]) > 1
    ]
    known = [share for share in shares if not math.isnan(share)]
    return max(known) if known else None
