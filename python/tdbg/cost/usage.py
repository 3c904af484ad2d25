"""What a training used, as values; and the arithmetic of its cost.

Money has no unit: it is that of the prices.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "COMMUNICATION",
    "DEVICE",
    "LOADER",
    "PRODUCTIVE",
    "STARTUP",
    "Usage",
    "cost_of",
    "saving_of",
]

HOUR = 3600.0
#: Parts of a run's time, by the names of the phases of a step; and one before them.
STARTUP = "startup"
LOADER = frozenset({"data_wait"})
COMMUNICATION = frozenset({"communication"})
DEVICE = frozenset(
    {"copy", "forward", "backward", "optimizer", "compute", "evaluation"}
)
#: What a training is there for; the rest of the time is overhead.
PRODUCTIVE = frozenset({"copy", "forward", "backward", "optimizer", "compute"})


def cost_of(price_per_hour: float, seconds: float, nodes: int = 1) -> float:
    """Return what some nodes cost for a time.

    Example:
        >>> round(cost_of(14.688, 503, nodes=3), 3)
        6.157
    """
    return nodes * price_per_hour * seconds / HOUR


def saving_of(before: float, after: float) -> float:
    """Return the share of a cost that another saves; below 0 if it costs more.

    Example:
        >>> round(saving_of(6.157, 1.067), 4)
        0.8267
    """
    return 1 - after / before if before else 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of time and machines by a training, all its ranks together.

    None: it was not measured.

    Attributes:
        seconds: From the beginning of the run to its last step.
        shares: Of ``seconds``, by part: a phase of a step, or ``startup``. Sum up to 1.
        steps: Training steps.
        samples: Samples of all of them.
        nodes: Hosts.
        ranks: Processes that train.
        gpus: GPUs on which they ran.
        visible_gpus: GPUs of the hosts.
        gpu_busy: 95th percentile of the share of time in which these ran a kernel.
        gpu_peak_bytes: Largest memory in use on one of them.
        memory_peak_bytes: Largest memory in use on one host.
        cores: Cores that the training may use, on all hosts.
        cores_used: 95th percentile of the cores that were busy, on all hosts.
        useful_cores: Cores beyond which the loaders and ranks find no work.
    """

    seconds: float
    shares: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0
    samples: int | None = None
    nodes: int = 1
    ranks: int = 1
    gpus: int = 0
    visible_gpus: int = 0
    gpu_busy: float | None = None
    gpu_peak_bytes: float | None = None
    memory_peak_bytes: float | None = None
    cores: float | None = None
    cores_used: float | None = None
    useful_cores: float | None = None

    def share(self, parts: frozenset[str]) -> float:
        """Return the share of the time that some parts have together."""
        return sum(self.shares.get(part, 0.0) for part in parts)

    @property
    def productive(self) -> float:
        """The share of the time in which the model was trained."""
        return self.share(PRODUCTIVE)
