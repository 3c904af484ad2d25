"""Windows in which the profiler timed a device's kernels beside the host's operators.

Thread safety: immutable values.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tdbg.rules.builtin.time.device import in_usual_steps, of_training
from tdbg.rules.builtin.time.time_rule import Sign, TimeRule
from tdbg.rules.profile import Bin, ProfileWindow
from tdbg.run.json_values import is_integer, list_of, mapping_of

__all__ = ["Calls", "DeviceWindow", "DeviceWindowRule", "device_windows", "idle_in"]

#: What rules about them need for a verdict.
A_WINDOW = (
    "a window of 3 steps or more with kernels of a CUDA device: tdbg profile RUN "
    "--steps 5"
)
# With fewer, what happens once looks as if it happened in each step.
LEAST_STEPS = 3
# How the operators of PyTorch are called, whose names rules know.
_PYTORCH = "aten::"


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of an operator, or of a kernel, in a window.

    Attributes:
        n: How many.
        self_ns: Their own time.
        total_ns: Their time with what they called.
        line: The line of the program that called it for longest; "" if the window did
            not ask for lines.
    """

    n: int = 0
    self_ns: int = 0
    total_ns: int = 0
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWindow:
    """A window of a rank.

    Attributes:
        rank: The number of the rank.
        steps: How many steps it has.
        duration_ns: How long they took.
        host: Operators and calls of the device's library, by name.
        kernels: What ran on the device, by name; not empty.
    """

    rank: int
    steps: int
    duration_ns: int
    host: Mapping[str, Calls]
    kernels: Mapping[str, Calls]

    @property
    def busy(self) -> float:
        """The share of the time in which the device worked, at most: 0 to 1."""
        spent = sum(each.self_ns for each in self.kernels.values())
        return min(1.0, spent / self.duration_ns)


class DeviceWindowRule(TimeRule):
    """Base class of rules that judge each window by itself."""

    __slots__ = ()

    tables: ClassVar[frozenset[str]] = frozenset({"step", "gpu"})
    bad_bins: ClassVar[int] = 1

    @property
    def first_verdict(self) -> str:
        """Return that a window must have timed kernels."""
        return A_WINDOW

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge each window of the bin."""
        bins = profile.bins[max(0, i - self.reach) : i + 1]
        return {
            f"worker {window.rank}": self.sign(bins, window)
            for window in device_windows(bins[-1])
        }

    @abstractmethod
    def sign(self, bins: Sequence[Bin], window: DeviceWindow) -> Sign:
        """Return what a window shows; it became known in the last of some bins."""


def device_windows(each: Bin) -> tuple[DeviceWindow, ...]:
    """Return the windows of PyTorch with kernels that became known in a bin."""
    return each.derived("device windows", lambda: tuple(_windows(each)))


def idle_in(each: Bin, window: DeviceWindow) -> float:
    """Return in which share of the time a device had nothing to do, at the least.

    A window slows the host down: so what NVML sampled in the bin's usual steps counts,
    too, where it saw the device busier.
    """
    rows = of_training(each.tables["gpu"])
    rows = rows[in_usual_steps(each, rows)]
    sampled = float(np.mean(rows["busy"])) if len(rows) else 0.0
    return 1.0 - max(window.busy, sampled)


def _windows(each: Bin) -> Iterator[DeviceWindow]:
    for event in each.events.get("window", ()):
        first, last = event.get("first_step"), event.get("last_step")
        start, end = event.get("start_ns"), event.get("end_ns")
        if not (is_integer(first) and is_integer(last)):
            continue
        if not (is_integer(start) and is_integer(end)):
            continue
        devices = {
            str(found.get("device")): _calls(found)
            for found in map(mapping_of, list_of(event.get("operators")))
        }
        host, kernels = (devices.get(name, {}) for name in ("cpu", "cuda"))
        is_known = kernels and any(name.startswith(_PYTORCH) for name in host)
        if is_known and end > start and last - first + 1 >= LEAST_STEPS:
            yield DeviceWindow(
                rank=int(event.get("rank", 0)),
                steps=last - first + 1,
                duration_ns=end - start,
                host=host,
                kernels=kernels,
            )


def _calls(found: Mapping[str, Any]) -> dict[str, Calls]:
    """Return the operators of a device by name: those of all shapes and lines."""
    calls: dict[str, Calls] = {}
    longest: dict[str, int] = {}
    for row in map(mapping_of, list_of(found.get("operators"))):
        name = str(row.get("name"))
        n, own, total = (_count(row, key) for key in ("calls", "self_ns", "total_ns"))
        known = calls.get(name, Calls())
        line = known.line
        if row.get("line") and total > longest.get(name, -1):
            longest[name], line = total, str(row["line"])
        calls[name] = Calls(
            known.n + n, known.self_ns + own, known.total_ns + total, line
        )
    return calls


def _count(row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    return value if is_integer(value) and value > 0 else 0
