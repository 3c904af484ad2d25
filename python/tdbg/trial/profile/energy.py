"""The energy that a training used, by the counters of its machines.

Thread safety: pure functions.

Errors: none; what no counter measured is None, and nothing is estimated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.run.profile_tables import NOT_MEASURED

if TYPE_CHECKING:
    from tdbg.trial.profile.profile import Profile

__all__ = ["LEAST_COVERED", "EnergyUse", "energy_of"]

MILLIJOULES, MICROJOULES = 3.6e6, 3.6e9  # Of a watt-hour.
#: Share of a time that samples must cover for its energy to be known.
LEAST_COVERED = 0.9


class EnergyUse(NamedTuple):
    """Energy in watt-hours; None: unknown.

    All that ran on the machines meanwhile is in it, other jobs included.

    Attributes:
        gpu_wh: Of all GPUs of the machines; unknown if one of them has no counter.
        processor_wh: Of all processor packages; unknown if one machine has no counter.
        seconds: How long it took.
        n_steps: Training steps in that time.
        n_samples: Samples in their batches, of all ranks; None: unknown.
    """

    gpu_wh: float | None
    processor_wh: float | None
    seconds: float
    n_steps: int
    n_samples: int | None

    @property
    def total_wh(self) -> float | None:
        """The known energy of GPUs and processors, together."""
        known = [each for each in (self.gpu_wh, self.processor_wh) if each is not None]
        return sum(known) if known else None

    @property
    def per_step_wh(self) -> float | None:
        """The total for each training step."""
        return _share(self.total_wh, self.n_steps)

    @property
    def per_sample_wh(self) -> float | None:
        """The total for each sample of the training batches."""
        return _share(self.total_wh, self.n_samples)

    @property
    def statement(self) -> str:
        """A sentence that says how much, and of what.

        Example:
            >>> EnergyUse(12.5, None, 3600.0, 1000, 32_000).statement
            '12.5 Wh, of the GPUs alone: 12.5 mWh a step, 0.391 mWh a sample'
        """
        total = self.total_wh
        if total is None:
            return (
                "unknown, because neither the GPUs nor the processors have a counter "
                "that tdbg may read"
            )
        text = f"{total:.3g} Wh"
        if self.processor_wh is None:
            text += ", of the GPUs alone"
        elif self.gpu_wh is None:
            text += ", of the processors alone"
        parts = [
            f"{1000 * each:.3g} mWh a {name}"
            for name, each in (
                ("step", self.per_step_wh),
                ("sample", self.per_sample_wh),
            )
            if each is not None
        ]
        return f"{text}: {', '.join(parts)}" if parts else text


def energy_of(
    profile: Profile, steps: tuple[int | None, int | None] | None = None
) -> EnergyUse:
    """Return the energy that a run used, or some of its steps.

    Args:
        profile: ``trial.profile`` of the run.
        steps: First and last global step, both included; None: all, and what came
            before, between and after them.

    Example:
        energy = energy_of(trial.profile)
        print(energy.per_sample_wh)
    """
    rows = profile.steps(mode=ModeKeys.TRAIN, steps=steps)
    between = _time_of(profile, rows if steps is not None else None)
    samples = rows["samples"]
    is_counted = len(rows) > 0 and bool((samples >= 0).all())
    return EnergyUse(
        gpu_wh=_of_gpus(profile, between),
        processor_wh=_of_processors(profile, between),
        seconds=(between[1] - between[0]) / 1e9,
        n_steps=len(np.unique(rows["global_step"])),
        n_samples=int(samples.sum()) if is_counted else None,
    )


def _time_of(profile: Profile, steps: NDArray[np.void] | None) -> tuple[int, int]:
    """Beginning and end, of steps or of all samples of the machines."""
    if steps is None:
        times = profile.system()["time"]
        starts = times
    else:
        times = steps["time"]
        starts = times - steps["duration_ns"]
    return (int(starts.min()), int(times.max())) if len(times) else (0, 0)


def _of_gpus(profile: Profile, between: tuple[int, int]) -> float | None:
    rows = profile.gpus()
    used = [
        _used(rows[rows["instance"] == each], "energy_mj", between)
        for each in np.unique(rows["instance"])
    ]
    return _sum(used, MILLIJOULES)


def _of_processors(profile: Profile, between: tuple[int, int]) -> float | None:
    used = [
        _used(profile.system(node=node), "energy_uj", between)
        for node in range(len(profile.clock.nodes))
    ]
    return _sum(used, MICROJOULES)


def _used(
    rows: NDArray[np.void], column: str, between: tuple[int, int]
) -> float | None:
    """How much a counter rose; None if its samples do not cover the time."""
    rows = rows[rows[column] != NOT_MEASURED]
    start, end = between
    if len(rows) < 2 or end <= start:
        return None
    times = rows["time"]
    covered = min(end, int(times[-1])) - max(start, int(times[0]))
    if covered < LEAST_COVERED * (end - start):
        return None
    totals = rows[column]
    # A counter that falls has started over: nobody knows how much it rose.
    is_rise = totals[1:] >= totals[:-1]
    rises = np.where(is_rise, totals[1:] - totals[:-1], 0).astype(np.float64)
    risen = np.concatenate([[0.0], np.cumsum(rises)])
    first, last = np.interp([start, end], times, risen)
    return float(last - first)


def _sum(parts: list[float | None], unit: float) -> float | None:
    known = [each for each in parts if each is not None]
    return sum(known) / unit if known and len(known) == len(parts) else None


def _share(total: float | None, n: int | None) -> float | None:
    return total / n if total is not None and n else None
