"""What a profile says in sums: the analyses of smdebug's ``PandasFrameAnalysis``.

All come from the rows of a profile alone.  A sample counts for the time since the one
before it.

Thread safety: functions over values.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.run.profile_tables import PHASE_COLUMNS, core_shares, measured
from tdbg.trial.profile.clock import RunClock

__all__ = [
    "DURATION_DTYPE",
    "INTERVAL_DTYPE",
    "USAGE_DTYPE",
    "UTILIZATION_DTYPE",
    "DeviceUse",
    "Ranges",
    "device_usage",
    "device_uses",
    "job_statistics",
    "phase_intervals",
    "step_statistics",
    "utilization",
]

Rows = NDArray[np.void]
Floats = NDArray[np.float64]
#: In per cent.
Ranges = Sequence[tuple[float, float]]

_QUANTILES = (0.0, 0.5, 0.95, 0.99, 1.0)
_SPREAD = [("min", "<f8"), ("p50", "<f8"), ("p95", "<f8"), ("p99", "<f8")]

#: Durations in seconds of what ``key`` names; ``share`` of all that is listed.
DURATION_DTYPE = np.dtype(
    [
        ("key", "O"),
        ("count", "<i8"),
        ("total", "<f8"),
        ("share", "<f8"),
        ("mean", "<f8"),
        ("std", "<f8"),
        *_SPREAD,
        ("max", "<f8"),
    ]
)

#: How much a device was used: shares, or bytes a second, as ``unit`` says.
UTILIZATION_DTYPE = np.dtype(
    [
        ("resource", "O"),
        ("node", "<i4"),
        ("device", "O"),
        ("phase", "O"),
        ("unit", "O"),
        ("count", "<i8"),
        ("mean", "<f8"),
        *_SPREAD,
        ("max", "<f8"),
    ]
)

#: For how many seconds a device was used between ``low`` and ``high`` per cent.
USAGE_DTYPE = np.dtype(
    [
        ("device", "O"),
        ("node", "<i4"),
        ("low", "<f8"),
        ("high", "<f8"),
        ("seconds", "<f8"),
        ("share", "<f8"),
    ]
)

#: Begin and end on the run's clock, in ns, and in seconds since the run began.
INTERVAL_DTYPE = np.dtype(
    [("start", "<i8"), ("end", "<i8"), ("start_s", "<f8"), ("end_s", "<f8")]
)

RESOURCES = ("cpu", "gpu", "memory", "gpu_memory", "i/o", "network")
MODES = tuple(mode.name for mode in ModeKeys)
JOB_PHASES = ("initialization", "training_loop", "finalization")
_RANGES: Ranges = ((90.0, 100.0), (10.0, 90.0), (0.0, 10.0))
_OF_STEPS = ("training_phase", "framework_metric", "process")
# A pause between two steps that ends an interval of their mode.
_PAUSE_NS = 1_000_000
_TRAINING = (ModeKeys.TRAIN.value, ModeKeys.GLOBAL.value)


class Tables(Protocol):
    """The tables that are analysed: a ``Profile``."""

    @property
    def clock(self) -> RunClock:
        """The clocks of the run."""

    def seconds(self, time: NDArray[np.int64] | int) -> Floats:
        """Seconds since the run began."""

    def table(self, name: str, *, node: int | None = None) -> Rows:
        """The rows of a table."""


class DeviceUse(NamedTuple):
    """How much a device was used: a value for each sample.

    Attributes:
        resource: cpu, gpu, memory, gpu_memory, i/o or network.
        node: Number of the host.
        device: Its name; empty: the host as a whole.
        unit: "share" (0 to 1) or "bytes/s".
        time: When each sample was taken, on the run's clock in ns.  Shape (n,).
        seconds: How long each counts: since the one before.  Shape (n,).
        values: How much; NaN: not measured.  Shape (n,).
    """

    resource: str
    node: int
    device: str
    unit: str
    time: NDArray[np.int64]
    seconds: Floats
    values: Floats


def _check(name: str, given: object, known: Sequence[str]) -> None:
    if given not in known:
        msg = f"{name} must be one of {', '.join(known)}, not {given!r}"
        raise ConfigurationError(msg)


# --- The job and its phases ---------------------------------------------------


def _edges(profile: Tables) -> tuple[int, int, int, int]:
    """Begin of the run, of its loop, end of the loop and of the run; run's clock."""
    begin = profile.clock.of_wall(profile.clock.start_ns)
    steps = profile.table("step")
    ends = [
        int(rows["time"].max())
        for name in ("step", "system", "process", "loader")
        if len(rows := profile.table(name))
    ]
    end = max([begin, *ends])
    if not len(steps):
        return begin, end, end, end
    first = max(begin, int((steps["time"] - steps["duration_ns"]).min()))
    return min(begin, first), first, int(steps["time"].max()), end


def job_statistics(profile: Tables) -> dict[str, Any]:
    """Return how a job spent its time: ``Profile.get_job_statistics``."""
    begin, first, last, end = _edges(profile)
    clock = profile.clock
    found: dict[str, Any] = {
        "start_time": _utc(clock.wall_ns(begin)),
        "end_time": _utc(clock.wall_ns(end)),
        "job_duration": (end - begin) / 1e9,
    }
    parts = (first - begin, last - first, end - last)
    for name, part in zip(JOB_PHASES, parts, strict=True):
        found[name] = part / 1e9
        found[f"{name}_share"] = part / (end - begin) if end > begin else 0.0
    return found


def _utc(wall_ns: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(wall_ns / 1e9, dt.UTC)


def phase_intervals(profile: Tables, phase: str) -> Rows:
    """Return when a phase went on: ``Profile.get_training_phase_intervals``."""
    name = str(phase).removeprefix("Step:").removeprefix("ModeKeys.")
    _check("phase", name, (*MODES, *JOB_PHASES))
    if name in JOB_PHASES:
        edges, at = _edges(profile), JOB_PHASES.index(name)
        begin, end = edges[at], edges[at + 1]
        pairs = [(begin, end)] if begin < end else []
    else:
        rows = profile.table("step")
        rows = rows[rows["mode"] == ModeKeys[name].value]
        pairs = _union(rows["time"] - rows["duration_ns"], rows["time"])
    found = np.zeros(len(pairs), INTERVAL_DTYPE)
    for column, at in (("start", 0), ("end", 1)):
        found[column] = [pair[at] for pair in pairs]
        found[f"{column}_s"] = profile.seconds(found[column])
    return found


def _union(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The time that intervals cover, as intervals that do not touch."""
    if not len(starts):
        return []
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    new = np.flatnonzero(starts[1:] > reach[:-1] + _PAUSE_NS) + 1
    firsts = np.append(0, new)
    lasts = np.append(new, len(starts)) - 1
    pairs = zip(starts[firsts].tolist(), reach[lasts].tolist(), strict=True)
    return list(pairs)


# --- Steps --------------------------------------------------------------------


def step_statistics(profile: Tables, by: str) -> Rows:
    """Return durations of steps: ``Profile.get_step_statistics``."""
    _check("by", by, _OF_STEPS)
    rows = profile.table("step")
    training = rows[np.isin(rows["mode"], _TRAINING)]
    groups: dict[str, NDArray[np.int64]] = {}
    if by == "training_phase":
        for mode in ModeKeys:
            groups[mode.name] = rows["duration_ns"][rows["mode"] == mode.value]
    elif by == "process":
        for worker in np.unique(training["worker"]).tolist():
            own = training["worker"] == worker
            groups[f"worker {worker}"] = training["duration_ns"][own]
    else:
        for phase, column in PHASE_COLUMNS.items():
            if training[column].any():
                groups[phase.name.lower()] = training[column]
    return _durations(groups)


def _durations(groups: dict[str, NDArray[np.int64]]) -> Rows:
    known = {key: values / 1e9 for key, values in groups.items() if len(values)}
    whole = sum(float(values.sum()) for values in known.values())
    found = [
        (
            key,
            len(values),
            values.sum(),
            values.sum() / whole if whole else 0.0,
            values.mean(),
            values.std(),
            *np.quantile(values, _QUANTILES).tolist(),
        )
        for key, values in known.items()
    ]
    return np.array(found, DURATION_DTYPE)


# --- Devices ------------------------------------------------------------------


def utilization(
    profile: Tables, resource: str | None, by: str | None, phase: str | None
) -> Rows:
    """Return how much devices were used: ``Profile.get_utilization_stats``."""
    if resource is not None:
        _check("resource", resource, RESOURCES)
    if by is not None:
        _check("by", by, ("training_phase",))
    if phase is not None:
        phases = [phase]
    else:
        phases = [*JOB_PHASES[::2], *MODES] if by else [""]
    found = []
    for use in device_uses(profile):
        if resource not in (None, use.resource):
            continue
        for name in phases:
            chosen = np.isfinite(use.values)
            if name:
                chosen &= _within(use, phase_intervals(profile, name))
            values = use.values[chosen]
            if not len(values):
                continue
            spread = np.quantile(values, _QUANTILES).tolist()
            mean = np.average(values, weights=np.maximum(use.seconds[chosen], 1e-9))
            head = (use.resource, use.node, use.device, name, use.unit)
            found.append((*head, len(values), mean, *spread))
    return np.array(found, UTILIZATION_DTYPE)


def _within(use: DeviceUse, intervals: Rows) -> NDArray[np.bool_]:
    """Which samples lie in the intervals, with the middle of their time."""
    middles = use.time - (use.seconds * 5e8).astype(np.int64)
    if not len(intervals):
        return np.zeros(len(middles), np.bool_)
    at = np.searchsorted(intervals["start"], middles, side="right") - 1
    inside: NDArray[np.bool_] = (at >= 0) & (middles < intervals["end"][at])
    return inside


def device_usage(profile: Tables, device: str | None, ranges: Ranges | None) -> Rows:
    """Return for how long devices were used: ``Profile.get_device_usage_stats``."""
    if device is not None:
        _check("device", device, ("cpu", "gpu"))
    chosen = _RANGES if ranges is None else tuple(ranges)
    for low, high in chosen:
        if not 0 <= low < high <= 100:
            msg = f"a range is (low, high) from 0 to 100 per cent, not {(low, high)}"
            raise ConfigurationError(msg)
    top = max((high for _, high in chosen), default=0)
    found = []
    for use in (*_cores(profile), *_gpus(profile)):
        if device not in (None, use.resource) or use.unit != "share":
            continue
        known = np.isfinite(use.values)
        per_cent, seconds = 100 * use.values[known], use.seconds[known]
        whole = float(seconds.sum())
        for low, high in chosen:
            is_in = (per_cent >= low) & (per_cent < high)
            if high == top:
                is_in |= per_cent == high
            spent = float(seconds[is_in].sum())
            share = spent / whole if whole else 0.0
            found.append((use.device, use.node, low, high, spent, share))
    return np.array(found, USAGE_DTYPE)


def device_uses(profile: Tables) -> Iterator[DeviceUse]:
    """Yield how much each device was used: ``Profile.device_uses``."""
    for node, rows in _by_node(profile, "system"):
        seconds = _seconds(rows)
        busy = rows["cpu_user"] + rows["cpu_system"] + rows["cpu_steal"]
        busy = np.where(np.isnan(rows["allowed_busy"]), busy, rows["allowed_busy"])
        of_host = node, "", "share", rows["time"], seconds
        yield DeviceUse("cpu", *of_host, busy.astype(np.float64))
        free, total = measured(rows["memory_available"]), measured(rows["memory_total"])
        yield DeviceUse("memory", *of_host, 1 - _share(free, total))
        yield DeviceUse("i/o", *of_host, rows["cpu_iowait"].astype(np.float64))
        used, limit = measured(rows["cgroup_memory"]), measured(rows["cgroup_limit"])
        of_group = node, "cgroup", "share", rows["time"], seconds
        yield DeviceUse("memory", *of_group, _share(used, limit))
    yield from _gpus(profile)
    yield from _gpu_memory(profile)
    yield from _rates(profile, "disk", "i/o", ("busy_ns",), 1e-9, "share")
    names = ("received_bytes", "sent_bytes")
    yield from _rates(profile, "network", "network", names, 1.0, "bytes/s")


def _cores(profile: Tables) -> Iterator[DeviceUse]:
    for node, rows in _by_node(profile, "core"):
        seconds = _seconds(rows)
        for core, busy in enumerate(core_shares(rows).T):
            yield DeviceUse(
                "cpu", node, f"cpu{core}", "share", rows["time"], seconds, busy
            )


def _gpus(profile: Tables) -> Iterator[DeviceUse]:
    for node, device, rows in _by_device(profile, "gpu"):
        busy = rows["busy"].astype(np.float64)
        yield DeviceUse(
            "gpu", node, device, "share", rows["time"], _seconds(rows), busy
        )


def _gpu_memory(profile: Tables) -> Iterator[DeviceUse]:
    for node, device, rows in _by_device(profile, "gpu"):
        share = _share(measured(rows["memory_used"]), measured(rows["memory_total"]))
        yield DeviceUse(
            "gpu_memory", node, device, "share", rows["time"], _seconds(rows), share
        )


def _rates(
    profile: Tables,
    table: str,
    resource: str,
    columns: tuple[str, ...],
    scale: float,
    unit: str,
) -> Iterator[DeviceUse]:
    """Yield how fast totals grow, a second."""
    for node, device, rows in _by_device(profile, table):
        total = np.sum([measured(rows[column]) for column in columns], axis=0)
        seconds = _seconds(rows)[1:]
        grown = np.where(np.diff(total) < 0, np.nan, np.diff(total))  # Booted anew.
        values = _share(grown * scale, seconds)
        yield DeviceUse(resource, node, device, unit, rows["time"][1:], seconds, values)


def _by_node(profile: Tables, table: str) -> Iterator[tuple[int, Rows]]:
    for node in range(len(profile.clock.nodes)):
        rows = profile.table(table, node=node)
        if len(rows):
            yield node, rows


def _by_device(profile: Tables, table: str) -> Iterator[tuple[int, str, Rows]]:
    for node, rows in _by_node(profile, table):
        for instance in np.unique(rows["instance"]).tolist():
            own = rows[rows["instance"] == instance]
            device = f"gpu{own['index'][0]}" if table == "gpu" else str(instance)
            yield node, device, own


def _share(part: Floats, whole: Floats) -> Floats:
    """A part of a whole; NaN of nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / whole, np.nan)


def _seconds(rows: Rows) -> Floats:
    """How long each sample counts: since the one before; the first, for no time."""
    found: Floats = np.diff(rows["time"], prepend=rows["time"][:1]) / 1e9
    return found
