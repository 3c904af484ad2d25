"""HostBound: devices that wait for the host to launch their work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import percent
from tdbg.rules.builtin.time.breakdown import breakdown_of
from tdbg.rules.builtin.time.device import in_usual_steps, of_training
from tdbg.rules.builtin.time.time_rule import TRAINING, Sign, TimeRule, shorter
from tdbg.rules.profile import Bin, ProfileWindow
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.profile_tables import Phase

__all__ = ["HostBound"]

# The phases in which the host gives the device its work.
LAUNCHING = (
    Phase.COPY,
    Phase.FORWARD,
    Phase.BACKWARD,
    Phase.OPTIMIZER,
    Phase.COMPUTE,
)
# Fewer samples than this say nothing.
ENOUGH_SAMPLES = 8


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class HostBound(TimeRule):
    """Report devices without work while the host is in the model.

    If a device has no work for 60 % of the time, and the host is outside of the model
    for 10 % of it, then the device lacks work for at least 50 % while the host computes
    the model: forward, backward, optimizer.  Then the host is what it waits for.

    Args:
        threshold: Share of the time in which the device lacks work, with the host in
            the model, in percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO,)
    stage = Stage.HOST
    tables = frozenset({"step", "gpu"})
    phases = frozenset({Phase.OTHER})

    threshold: float = 20.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)

    @property
    def first_verdict(self) -> str:
        """Return that GPUs of the training must have been sampled."""
        return "10 s of samples of the training's GPUs"

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the busiest GPU of the training."""
        each = profile.bins[i]
        breakdown, busy = breakdown_of(each), _busiest(each)
        if breakdown is None or busy is None:
            return {}
        model = breakdown.share(*LAUNCHING)
        gain = max(0.0, (1.0 - busy) - (1.0 - model))

        def describe() -> Description:
            return Description(
                message=(
                    f"The GPU has no work for {percent(100 * (1 - busy))} of the time, "
                    f"and the host is in the model for {percent(100 * model)} of it: "
                    f"for at least {percent(100 * gain)} the device waits for the host "
                    "to launch work."
                ),
                value=100 * gain,
                threshold=self.threshold,
                gain=gain,
                advice=lambda words: (
                    f"Launch more at once: {words.compiling}, a larger batch, or fused "
                    f"operations and optimizers. That gives up to {shorter(gain)}."
                ),
            )

        is_bad = 100 * gain >= self.threshold
        severity = Severity.INFO if is_bad else None
        return {TRAINING: Sign(severity=severity, describe=describe)}


def _busiest(each: Bin) -> float | None:
    """Return how busy the busiest GPU of the training is; None: not sampled enough."""
    rows = of_training(each.tables["gpu"])
    rows = rows[in_usual_steps(each, rows)]
    means = [
        float(np.mean(own["busy"]))
        for name in np.unique(rows["instance"])
        if len(own := rows[rows["instance"] == name]) >= ENOUGH_SAMPLES
    ]
    return max(means, default=None)
