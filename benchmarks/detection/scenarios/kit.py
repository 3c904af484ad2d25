"""What scenarios of the profiler are written with.  Nothing here knows tdbg.

    @fault("DataLoaderBound", mends=True)
    def loader_sleeps(play: Play) -> None:
        '''What is wrong.  Twin: what is not.'''
        ...
        play.shows(play.share("wait") > 0.3)

A scenario is a function that runs in a process of its own, ``play.sick`` or not.  It
measures by itself, with clocks and ``/proc``, whether its fault is there.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

__all__ = [
    "TWIN",
    "WARM_SECONDS",
    "Device",
    "Play",
    "Scenario",
    "fault",
    "healthy",
    "network",
    "scenarios",
]

T = TypeVar("T")
Program = Callable[["Play"], None]
TWIN = ".twin"
# What is measured begins so long after the first step.
WARM_SECONDS = 10.0
# How often the main thread is asked how long it has waited for a core.
QUEUED_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A training with a fault of time and its twin, or a healthy one.

    Attributes:
        name: Of the function.
        program: Runs it.
        named_by: The rules that may name the fault; none: it is healthy.
        asks: Rules with other parameters than the default ones.
        ranks: How many processes train; 0: one, without torchrun.
        seconds: How long it trains.
        quota: Cores that its control group allows; None: no limit.
        mends: Whether it can do as the advice says (``Play.mended``).
        alone: Whether it needs cores or the disk, so that nothing may run beside it.
    """

    name: str
    program: Program
    named_by: tuple[str, ...] = ()
    asks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ranks: int = 0
    seconds: float = 48.0
    quota: float | None = None
    mends: bool = False
    alone: bool = False

    @property
    def is_long(self) -> bool:
        """Whether it lasts for minutes."""
        return self.seconds > 100

    @property
    def text(self) -> str:
        """What it does, in a paragraph."""
        return " ".join((self.program.__doc__ or "").split())


_REGISTER: dict[str, Scenario] = {}


def fault(named_by: str, **given: Any) -> Callable[[Program], Program]:
    """Register a scenario with a fault; without ``play.sick`` it is healthy."""

    def register(program: Program) -> Program:
        name = program.__name__
        rules = tuple(named_by.split())
        _REGISTER[name] = Scenario(name=name, program=program, named_by=rules, **given)
        return program

    return register


def healthy(**given: Any) -> Callable[[Program], Program]:
    """Register a training without a fault."""

    def register(program: Program) -> Program:
        name = program.__name__
        _REGISTER[name] = Scenario(name=name, program=program, **given)
        return program

    return register


def scenarios() -> dict[str, Scenario]:
    """All scenarios by name."""
    package = importlib.import_module("benchmarks.detection.scenarios.cases")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(_REGISTER)


class Play:
    """One performance: its switches, its clocks, and what they showed.

    Attributes:
        sick: Whether the fault is there.
        mended: Whether the fault's advice has been followed; *sick* is set, too.
        workers: How many workers the advice names, or None.
        seconds: How long it trains.
        figures: What was measured, by name.
    """

    def __init__(
        self,
        *,
        sick: bool,
        seconds: float,
        mended: bool = False,
        workers: int | None = None,
        warm_up: float = WARM_SECONDS,
    ) -> None:
        self.sick = sick
        self.mended = mended
        self.workers = workers
        self.figures: dict[str, float] = {}
        self.seconds = seconds
        self._warm_up = warm_up
        self._spent: dict[str, float] = defaultdict(float)
        self._step_times: list[float] = []
        # When, and for how long the main thread had waited for a core by then.
        self._queued: list[tuple[float, int]] = []
        self._gc_began = 0.0
        self._shows: bool | None = None
        gc.callbacks.append(self._collects)

    @property
    def ill(self) -> bool:
        """Whether the fault is there and nobody has mended it."""
        return self.sick and not self.mended

    # --- What a program loops over ---------------------------------------------

    def steps(self) -> Iterator[int]:
        """Count steps until the time is over."""
        step = 0
        while not self._step_times or self.elapsed < self.seconds:
            self._begin_step()
            yield step
            step += 1
        self._begin_step()

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield batches, epoch after epoch, until the time is over; clock the waits."""
        while True:
            batches = iter(loader)
            while True:
                self._begin_step()
                if self.elapsed >= self.seconds:
                    return
                with self.clock("wait"):
                    batch = next(batches, None)
                if batch is None:
                    break
                yield batch

    @contextlib.contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Add the time of the block to that name, after the warm-up."""
        began = time.perf_counter()
        yield
        if self.is_warm:
            self._spent[name] += time.perf_counter() - began

    # --- What was measured -----------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds since the first step."""
        return time.perf_counter() - self._step_times[0] if self._step_times else 0.0

    @property
    def is_warm(self) -> bool:
        """Whether what happens now is measured."""
        return self.elapsed >= self._warm_up

    @property
    def step_seconds(self) -> float:
        """The mean time of a step after the warm-up."""
        times = self._warm_times()
        return (times[-1] - times[0]) / max(1, len(times) - 1)

    def share(self, name: str) -> float:
        """The share of the time after the warm-up that went to a name."""
        times = self._warm_times()
        return self._spent[name] / max(1e-9, times[-1] - times[0])

    def shows(self, is_there: bool) -> None:
        """Say whether the fault is there, by what was measured."""
        self._shows = bool(is_there)

    def durations(self) -> list[float]:
        """The durations of all steps so far, in seconds."""
        times = self._step_times
        return [after - before for before, after in pairwise(times)]

    def outcome(self) -> dict[str, Any]:
        """What to keep of it."""
        gc.callbacks.remove(self._collects)
        queued = [
            (b - a) / 1e9 / (then - now)
            for (now, a), (then, b) in pairwise(self._queued)
        ]
        shares = {name: self.share(name) for name in sorted(self._spent)}
        return {
            "shows": self._shows,
            "steps": len(self._step_times) - 1,
            "step_ms": 1e3 * self.step_seconds,
            "queued": max(queued, default=0.0),
            "shares": shares,
            "figures": self.figures,
        }

    def write(self, path: Path) -> None:
        """Keep the outcome, of the first rank only."""
        if os.environ.get("RANK", "0") == "0":
            path.write_text(json.dumps(self.outcome()))

    # --- Details ----------------------------------------------------------------

    def _begin_step(self) -> None:
        self._step_times.append(time.perf_counter())
        if self.elapsed >= QUEUED_SECONDS * len(self._queued):
            self._queued.append((self.elapsed, _queued_ns()))

    def _warm_times(self) -> list[float]:
        times = self._step_times or [0.0]
        warm = [each for each in times if each - times[0] >= self._warm_up]
        return warm or times[-1:]

    def _collects(self, phase: str, _: Mapping[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._gc_began = now
        elif self.is_warm:
            self._spent["gc"] += now - self._gc_began


def _queued_ns() -> int:
    """How long the main thread could run and had no core, since it began."""
    return int(Path("/proc/self/schedstat").read_text().split()[1])


class Device(nn.Module):
    """A device that computes for a while: it sleeps, so that no core is needed."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what came in, later."""
        time.sleep(self.seconds)
        return x


def network(seconds: float, width: int = 32) -> nn.Sequential:
    """A small network on a device that takes *seconds* for a batch."""
    return nn.Sequential(
        nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 10), Device(seconds)
    )
