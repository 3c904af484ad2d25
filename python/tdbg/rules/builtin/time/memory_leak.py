"""MemoryLeak and GPUMemoryIncrease: memory that grows until there is none left."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import number, percent
from tdbg.rules.builtin.time.time_rule import Sign, TimeRule, check_optional
from tdbg.rules.profile import Bin, ProfileWindow, Rows
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.table import Floats
from tdbg.rules.window import Description
from tdbg.run.findings import Severity
from tdbg.run.profile_tables import NOT_MEASURED
from tdbg.stats.estimates import block_medians, lasting_growth

__all__ = ["GPUMemoryIncrease", "MemoryLeak"]

# Blocks of 5 s whose medians are compared, in bins of 10 s.
BLOCKS, BLOCK_NS = 60, 5 * 10**9
BINS = 30
# What memory must have risen by, as a share of its limit.
LEAST_RISE = 0.01
# No control group is limited to more; a larger value says that there is no limit.
UNLIMITED = 2**60
# With a smaller part of the growth in its own processes, the training does not leak.
OWN_SHARE = 0.5
OF_TRAINING = (
    "Look for what keeps more at each step: a list of losses with their graphs (append "
    "loss.item()), outputs kept for a metric, a cache without a limit, or data that "
    "workers load and keep."
)
OF_OTHERS = (
    "Find what else takes memory: another program (top shows it), or files in memory "
    "(/dev/shm, tmpfs). When the memory is full, the kernel may end the training."
)
# smdebug's: in points of a per cent, and over how many samples.
SAMPLES = 10


@dataclass(frozen=True, slots=True)
class _Use:
    """The use of one memory over time.

    Attributes:
        name: Names the memory in findings.
        time: In ns.
        used: In bytes.
        limit: In bytes.
        own: By how many bytes a second the training's processes grow; None: unknown.
    """

    name: str
    time: Floats
    used: Floats
    limit: float
    own: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growth(TimeRule):
    """Base class: judges how long it takes until a memory is full.

    Args:
        minutes: Time until the memory is full that is a warning.
        error_minutes: Time that is an error.
    """

    severities = (Severity.WARNING, Severity.ERROR)
    reach = BINS - 1

    minutes: float = 30.0
    error_minutes: float = 10.0

    def __post_init__(self) -> None:
        check_number(self, "minutes", above=0.0)
        check_number(self, "error_minutes", above=0.0, most=self.minutes)

    @property
    def first_verdict(self) -> str:
        """Return that five minutes must have been sampled."""
        return "5 minutes of training after the first 20 steps and 10 s"

    @abstractmethod
    def uses(self, bins: Sequence[Bin]) -> Iterator[_Use]:
        """Yield the memories that the rule judges."""

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the memories over five minutes without the beginning."""
        bins = profile.bins[max(0, i - BINS + 1) : i + 1]
        if len(bins) < BINS or not bins[0].has_begun.any():
            return {}
        start = float(bins[0].start_ns)
        return {use.name: self._sign(use, start) for use in self.uses(bins)}

    def _sign(self, use: _Use, start: float) -> Sign:
        slope = growth(use.time, use.used, start, use.limit)
        now = float(use.used[-1])
        seconds = (use.limit - now) / slope if slope > 0 else np.inf
        severity = None
        if seconds < 60 * self.minutes:
            severity = Severity.WARNING
        is_of_others = use.own is not None and use.own < OWN_SHARE * slope
        if seconds < 60 * self.error_minutes and not is_of_others:
            severity = Severity.ERROR

        def describe() -> Description:
            message = (
                f"The {use.name} grows by {number(slope / 1e6)} MB/s. At "
                f"{number(now / 1e9)} GB of {number(use.limit / 1e9)} GB, it is "
                f"full in {number(seconds / 60, 2)} minutes."
            )
            if is_of_others:
                message += (
                    " The training's own processes grow by "
                    f"{number(max(0.0, use.own or 0.0) / 1e6)} MB/s of that."
                )
            return Description(
                message=message,
                value=seconds / 60,
                threshold=self.minutes,
                advice=OF_OTHERS if is_of_others else OF_TRAINING,
            )

        return Sign(severity=severity, describe=describe)


def growth(time: Floats, used: Floats, start: float, limit: float) -> float:
    """Return by how many bytes a second a memory grows surely; 0 if it does not."""
    x, y = block_medians(time, used, start, float(BLOCK_NS), BLOCKS)
    if len(x) < BLOCKS * 0.8:
        return 0.0
    return lasting_growth(x / 1e9, y, LEAST_RISE * limit)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLeak(_Growth):
    """Report memory of the host that grows, and when it will be full.

    Judges the memory of the control group (of the host, without a limit) and of
    ``/dev/shm``.  Growth outside of the training's processes is never an error.

    Args:
        minutes: Time until the memory is full that is a warning.
        error_minutes: Time that is an error.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    tables = frozenset({"step", "system", "process"})

    def uses(self, bins: Sequence[Bin]) -> Iterator[_Use]:
        """Yield the memory of the control group or the host, and shared memory."""
        rows = np.concatenate([each.tables["system"] for each in bins])
        if not len(rows):
            return
        # The first sample of a bin is the last of the bin before.
        _, at = np.unique(rows["time"], return_index=True)
        rows = rows[at]
        writer = rows["worker"].min()
        rows = rows[rows["worker"] == writer]
        own = _growth_of_processes(bins, writer)
        limited = _measured(rows, "cgroup_memory", "cgroup_limit")
        if limited is not None and limited[2] < UNLIMITED:
            yield _Use("memory of the container", *limited, own)
        else:
            host = _measured(rows, "memory_available", "memory_total")
            if host is not None:
                time, available, total = host
                yield _Use("memory of the host", time, total - available, total, own)
        shared = _measured(rows, "shm_used", "shm_total")
        if shared is not None:
            yield _Use("shared memory (/dev/shm)", *shared)


def _growth_of_processes(bins: Sequence[Bin], writer: int) -> float | None:
    """Return by how many bytes a second the processes of one host grow; None: unknown.

    Processes that began or ended meanwhile count from their first sample to their last.
    """
    rows = np.concatenate([each.tables["process"] for each in bins])
    is_known = rows["resident_bytes"] != NOT_MEASURED
    rows = rows[is_known & (rows["worker"] == writer)]
    seconds = (bins[-1].end_ns - bins[0].start_ns) / 1e9
    if not len(rows):
        return None
    risen = 0.0
    for pid in np.unique(rows["pid"]):
        own = rows[rows["pid"] == pid]["resident_bytes"]
        risen += float(own[-1]) - float(own[0])
    return risen / seconds


def _measured(rows: Rows, used: str, limit: str) -> tuple[Floats, Floats, float] | None:
    known = rows[(rows[used] != NOT_MEASURED) & (rows[limit] != NOT_MEASURED)]
    if not len(known) or known[limit][-1] <= 0:
        return None
    values = known[used].astype(np.float64)
    return known["time"].astype(np.float64), values, float(known[limit][-1])


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class GPUMemoryIncrease(_Growth):
    """Report memory of GPUs that grows, and when it will be full.

    If you give *increase*, SageMaker Debugger's formula holds instead: the mean of the
    last ten samples exceeds that of the ten before by so many points.

    Args:
        increase: SageMaker Debugger's: points of a per cent of the device; 5 there.
        minutes: Time until the memory is full that is a warning.
        error_minutes: Time that is an error.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    tables = frozenset({"step", "gpu"})

    increase: float | None = None

    def __post_init__(self) -> None:
        _Growth.__post_init__(self)
        check_optional(self, "increase", above=0.0)

    def uses(self, bins: Sequence[Bin]) -> Iterator[_Use]:
        """Yield the memory of each GPU that the training uses."""
        rows = np.concatenate([each.tables["gpu"] for each in bins])
        for name in np.unique(rows["instance"]):
            own = rows[rows["instance"] == name]
            _, at = np.unique(own["time"], return_index=True)
            found = _measured(own[at], "memory_used", "memory_total")
            if found is not None:
                yield _Use(f"memory of GPU {int(own['index'][-1])}", *found)

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge by time until a device is full, or by smdebug's formula."""
        if self.increase is None:
            return _Growth.signs(self, profile, i)
        bins = profile.bins[max(0, i - 1) : i + 1]
        return {
            use.name: self._by_means(use, self.increase)
            for use in self.uses(bins)
            if len(use.used) >= 2 * SAMPLES
        }

    def _by_means(self, use: _Use, increase: float) -> Sign:
        share = 100 * use.used / use.limit
        now = float(share[-SAMPLES:].mean())
        before = float(share[-2 * SAMPLES : -SAMPLES].mean())

        def describe() -> Description:
            return Description(
                message=(
                    f"The {use.name} has grown from {percent(before)} to "
                    f"{percent(now)} within ten samples."
                ),
                value=now - before,
                threshold=increase,
                advice="Look for what keeps more memory at each step.",
            )

        severity = Severity.WARNING if now - before > increase else None
        return Sign(severity=severity, describe=describe)
