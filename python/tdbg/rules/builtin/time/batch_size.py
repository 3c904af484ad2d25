"""BatchSize: GPUs that a larger batch would use better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import percent
from tdbg.rules.builtin.time.breakdown import breakdown_of
from tdbg.rules.builtin.time.device import in_usual_steps, of_training
from tdbg.rules.builtin.time.time_rule import TRAINING, Sign, TimeRule
from tdbg.rules.profile import Bin, ProfileWindow, Rows
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.profile_tables import NOT_MEASURED, Phase

__all__ = ["BatchSize"]

# Fewer samples than this say nothing.
ENOUGH_SAMPLES = 8
# Shares of a step that wait for data, or for other ranks: what a GPU then waits for.
MOST_WAIT, MOST_COMMUNICATION = 0.1, 0.2


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize(TimeRule):
    """Report GPUs that are neither busy nor full, and wait for nothing else.

    The formula is SageMaker Debugger's, without its condition on the processor, and
    with a guard that it lacks: a training that waits for data or for other ranks does
    not use a larger batch.

    Args:
        gpu_threshold_p95: 95th percentile of the time in which each GPU is busy, in
            percent.
        gpu_memory_threshold_p95: 95th percentile of the memory used on each GPU, by
            whomever, in percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO,)
    stage = Stage.USE
    phases = frozenset({Phase.DATA_WAIT, Phase.COMMUNICATION})
    tables = frozenset({"step", "gpu"})

    gpu_threshold_p95: float = 70.0
    gpu_memory_threshold_p95: float = 70.0

    def __post_init__(self) -> None:
        for name in ("gpu_threshold_p95", "gpu_memory_threshold_p95"):
            check_number(self, name, above=0.0, most=100.0)

    @property
    def first_verdict(self) -> str:
        """Return that GPUs of the training must have been sampled."""
        return "10 s of samples of the training's GPUs"

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the GPUs of the training together."""
        each = profile.bins[i]
        breakdown, used = breakdown_of(each), list(_uses(each))
        if breakdown is None or not used:
            return {}
        busy, memory = (max(values) for values in zip(*used, strict=True))
        waits = (
            breakdown.share(Phase.DATA_WAIT) >= MOST_WAIT
            or breakdown.share(Phase.COMMUNICATION) >= MOST_COMMUNICATION
        )
        is_small = busy < self.gpu_threshold_p95
        is_small &= memory < self.gpu_memory_threshold_p95

        def describe() -> Description:
            return Description(
                message=(
                    f"No GPU is busy for more than {percent(busy)} of the time (95th "
                    f"percentile) or has more than {percent(memory)} of its memory in "
                    "use, and the training waits neither for data nor for other ranks."
                ),
                value=busy,
                threshold=self.gpu_threshold_p95,
                advice=(
                    "Try a larger batch: double it while the memory suffices, and "
                    "adjust the learning rate. If the batch has to stay, a smaller "
                    "device does the same."
                ),
            )

        severity = Severity.INFO if is_small and not waits else None
        return {TRAINING: Sign(severity=severity, describe=describe)}


def _uses(each: Bin) -> Iterator[tuple[float, float]]:
    """Yield of each GPU how busy it is and what of its memory is used, in percent."""
    rows: Rows = of_training(each.tables["gpu"])
    rows = rows[in_usual_steps(each, rows)]
    known = (rows["memory_used"] != NOT_MEASURED) & (rows["memory_total"] > 0)
    rows = rows[known & (rows["memory_total"] != NOT_MEASURED)]
    for name in np.unique(rows["instance"]):
        own = rows[rows["instance"] == name]
        if len(own) >= ENOUGH_SAMPLES:
            memory = own["memory_used"].astype(np.float64) / own["memory_total"]
            yield (
                100 * float(np.quantile(own["busy"].astype(np.float64), 0.95)),
                100 * float(np.quantile(memory, 0.95)),
            )
