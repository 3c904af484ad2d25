"""The phases of a step, as users say them, and durations in words.

Thread safety: constants and pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from tdbg.config.quantities import number
from tdbg.run.profile_tables import Phase
from tdbg.run.told_phases import tells_model

__all__ = [
    "COMPUTING",
    "NAMES",
    "ORDER",
    "duration_text",
    "names_of",
    "percent_text",
    "span_text",
]

#: What users call each phase.
NAMES: dict[Phase, str] = {
    Phase.OTHER: "other code",
    Phase.DATA_WAIT: "data wait",
    Phase.COPY: "copy to device",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.COMMUNICATION: "communication",
    Phase.OPTIMIZER: "optimizer",
    Phase.GC: "garbage collection",
    Phase.COMPILE: "compilation",
    Phase.CHECKPOINT: "checkpoint",
    Phase.EVALUATION: "evaluation",
    Phase.CAPTURE: "tdbg",
    Phase.COMPUTE: "training step",
}
#: The order in which charts stack them: as a step goes through them.
ORDER = (
    Phase.DATA_WAIT,
    Phase.COPY,
    Phase.FORWARD,
    Phase.BACKWARD,
    Phase.COMPUTE,
    Phase.COMMUNICATION,
    Phase.OPTIMIZER,
    Phase.EVALUATION,
    Phase.CHECKPOINT,
    Phase.COMPILE,
    Phase.GC,
    Phase.CAPTURE,
    Phase.OTHER,
)
#: The phases in which the model computes.
COMPUTING = (
    Phase.COPY,
    Phase.FORWARD,
    Phase.BACKWARD,
    Phase.COMPUTE,
    Phase.OPTIMIZER,
)

# What ``OTHER`` is where the model's own time is in it.
_UNTOLD = "the model and other code"

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def names_of(phases: Collection[Phase]) -> Mapping[Phase, str]:
    """Return what users call phases, where these take any time.

    Example:
        >>> names_of({Phase.OTHER, Phase.BACKWARD})[Phase.OTHER]
        'other code'
        >>> names_of({Phase.OTHER, Phase.OPTIMIZER})[Phase.OTHER]
        'the model and other code'
    """
    if tells_model(phases):
        return NAMES
    return {**NAMES, Phase.OTHER: _UNTOLD}


def duration_text(ns: float) -> str:
    """Return a duration below a few minutes, with three digits.

    Example:
        >>> duration_text(33_400_000), duration_text(2.5e9), duration_text(float("nan"))
        ('33.4 ms', '2.5 s', 'unknown')
    """
    if not math.isfinite(ns):
        return "unknown"
    seconds = ns / 1e9
    for size, unit in _UNITS:
        if seconds >= 0.9995 * size:
            return f"{number(seconds / size)} {unit}"
    return f"{number(seconds * 1e6)} µs"


def span_text(ns: float) -> str:
    """Return a duration of any length in its two largest units.

    Example:
        >>> span_text(3725e9), span_text(1.5e9)
        ('1 h 2 min', '1.5 s')
    """
    if not math.isfinite(ns) or ns < 60e9:
        return duration_text(ns)
    minutes, seconds = divmod(round(ns / 1e9), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def percent_text(share: float) -> str:
    """Return a share as people say it.

    Example:
        >>> percent_text(0.6231), percent_text(0.004), percent_text(0.0)
        ('62 %', '0.4 %', '0 %')
    """
    value = 100 * share
    if not math.isfinite(value):
        return "unknown"
    return f"{value:.0f} %" if value >= 1 or value == 0 else f"{number(value, 1)} %"
