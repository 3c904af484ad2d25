"""The machines of a run, in the values that every face shows.

Thread safety: as the profile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.run.profile_tables import core_shares, measured
from tdbg.view.time.bins import Floats, Integers
from tdbg.view.time.usage import (
    Forecast,
    UsageMap,
    UsageRow,
    core_name,
    forecast_of,
    growth,
    usage_map,
    usage_row,
)

if TYPE_CHECKING:
    from tdbg.trial import Profile

__all__ = ["Machine", "MemoryUse"]

Rows = NDArray[np.void]
Named = list[tuple[str, Rows]]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryUse:
    """A memory over time.

    Attributes:
        name: Which memory: "host", "control group", "GPU 0".
        times: When each sample was taken, in ns of the monotonic clock.
        used: Bytes in use; NaN: not measured.
        limit: Bytes that there are; NaN: not known, or no limit.
        forecast: When it is full, if it grows for certain.
    """

    name: str
    times: Integers
    used: Floats
    limit: float
    forecast: Forecast | None


class Machine:
    """The machines of a run, as far as its profile has samples of them.

    Args:
        profile: The profile.

    Attributes:
        n_nodes: How many hosts the run has.
        system: Rows of the table ``system``, of each node that has any.
        cores: Likewise, of the table ``core``.
        gpus: Rows of each GPU.
    """

    def __init__(self, profile: Profile) -> None:
        self.n_nodes = len(profile.clock.nodes)
        nodes = range(self.n_nodes)
        self.system = _named([profile.system(node) for node in nodes])
        self.cores = _named([profile.cores(node) for node in nodes])
        self.gpus = _gpus([profile.gpus(node) for node in nodes])
        self._disks, self._networks = profile.disks(), profile.networks()

    @property
    def span(self) -> tuple[int, int] | None:
        """When the first and the last sample were taken, in ns; None: there is none."""
        parts = [*self.system, *self.cores, *self.gpus]
        times = [rows["time"] for _, rows in parts if len(rows)]
        if not times:
            return None
        return min(int(t[0]) for t in times), max(int(t[-1]) for t in times)

    def usage(self, edges: Integers) -> UsageMap:
        """Return how busy cores and GPUs were in columns of time."""
        return usage_map(self.cores, self.gpus, edges)

    def samples(self) -> list[tuple[str, Floats]]:
        """Return how busy each core and each GPU was, by name: a share a sample."""
        found = [
            (core_name(node, i), busy)
            for node, rows in self.cores
            for i, busy in enumerate(core_shares(rows).T)
        ]
        return found + [(name, measured(rows["busy"])) for name, rows in self.gpus]

    @property
    def allowed_cores(self) -> float:
        """How many cores the training may use; NaN: not known."""
        for _, rows in self.system:
            known = rows["allowed_cores"][np.isfinite(rows["allowed_cores"])]
            if len(known):
                return float(known[-1])
        return float("nan")

    def table(self) -> list[UsageRow]:
        """Return what was measured, in percentiles, by node."""
        found = [
            usage_row(name, values, unit, node)
            for node, name, values, unit in self._metrics()
        ]
        return [each for each in found if each is not None]

    def _metrics(self) -> Iterator[tuple[str, str, Floats, str]]:
        for node, rows in self.system:
            yield node, "allowed cores busy", measured(rows["allowed_busy"]), "share"
            for name in ("user", "system", "iowait", "steal"):
                values = measured(rows[f"cpu_{name}"])
                yield node, f"cores: {name}", values, "share"
            total = measured(rows["memory_total"])
            used = total - measured(rows["memory_available"])
            yield node, "memory", used / total, "share"
            yield node, "control group memory", measured(rows["cgroup_memory"]), "bytes"
        for name, rows in self.gpus:
            yield "", f"{name} busy", measured(rows["busy"]), "share"
            total = measured(rows["memory_total"])
            yield "", f"{name} memory", measured(rows["memory_used"]) / total, "share"
            yield "", f"{name} power", measured(rows["power_watt"]), "W"
        for name, columns, rows in (
            ("disks", ("read", "write"), self._disks),
            ("network", ("received", "sent"), self._networks),
        ):
            for column in columns:
                rates = _rates(rows, f"{column}_bytes")
                yield "", f"{name}: {column}", rates, "bytes/s"

    def memories(self) -> list[MemoryUse]:
        """Return the memories that were measured."""
        found = []
        for node, rows in self.system:
            total = measured(rows["memory_total"])
            used = total - measured(rows["memory_available"])
            found.append(_memory(f"{node} host".strip(), rows, used, total))
            group = measured(rows["cgroup_memory"])
            limit = measured(rows["cgroup_limit"])
            found.append(_memory(f"{node} control group".strip(), rows, group, limit))
        for name, rows in self.gpus:
            used, total = measured(rows["memory_used"]), measured(rows["memory_total"])
            found.append(_memory(name, rows, used, total))
        return [each for each in found if np.isfinite(each.used).any()]


def _memory(name: str, rows: Rows, used: Floats, limits: Floats) -> MemoryUse:
    known = limits[np.isfinite(limits)]
    limit = float(known[-1]) if len(known) else float("nan")
    times = rows["time"]
    return MemoryUse(name, times, used, limit, forecast_of(times, used, limit))


def _named(by_node: list[Rows]) -> Named:
    """Return rows of nodes, each with its name; a node that is alone needs none."""
    found = [(f"node {i}", rows) for i, rows in enumerate(by_node) if len(rows)]
    return found if len(found) > 1 else [("", rows) for _, rows in found]


def _gpus(by_node: list[Rows]) -> Named:
    """Return the rows of each GPU, by node and by NVML's number."""
    return [
        (f"{node} GPU {index}".strip(), rows[rows["index"] == index])
        for node, rows in _named(by_node)
        for index in np.unique(rows["index"]).tolist()
    ]


def _rates(rows: Rows, column: str) -> Floats:
    """Return how fast a total grows, a second, over all instances together."""
    found: dict[int, float] = {}
    keys = np.char.add(rows["worker"].astype("U"), rows["instance"])
    for key in np.unique(keys).tolist():
        own = rows[keys == key]
        rates = growth(own["time"], measured(own[column]))
        for time, rate in zip(own["time"][1:].tolist(), rates.tolist(), strict=True):
            found[time] = found.get(time, 0.0) + rate
    return np.array([found[time] for time in sorted(found)])
