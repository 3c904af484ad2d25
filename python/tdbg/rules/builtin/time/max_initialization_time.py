"""MaxInitializationTime: trainings whose first step comes late."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import conjoin, number
from tdbg.modes import ModeKeys
from tdbg.rules.builtin.time.time_rule import TRAINING, Sign, TimeRule
from tdbg.rules.profile import BIN_NS, Bin, ProfileWindow
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import OK, Description, Evaluation, Idle
from tdbg.run.findings import Severity
from tdbg.run.json_values import is_integer
from tdbg.run.profile_tables import PHASE_COLUMNS, Phase

__all__ = ["MaxInitializationTime"]

MINUTE = 60e9
# Parts below this share of the whole are not told.
LEAST_PART = 0.05

_BEFORE = "before the run was opened"
_COMPILER = "in the compiler"
_DATA = "until the first batch"
_SETUP = "in other code"
_STEP = "in the step itself"
# What to do about the largest part.
_ADVICE: Mapping[str, str] = {
    _BEFORE: (
        "Look at what your program does before it makes the hook or calls the model: "
        "imports from a network file system (python -X importtime shows them), data "
        "that is prepared at each start, a large model that every rank loads."
    ),
    _COMPILER: "Keep what was compiled from one start to the next (a cache on disk).",
    _DATA: (
        "Look at what the data loader does before its first batch: workers that "
        "start, a sampler that sorts, a data set that opens all of its files."
    ),
    _SETUP: (
        "Look at what happens before the first step (tdbg stacks shows it while it "
        "lasts): data that is prepared at each start, a large model that every rank "
        "loads, workers that start."
    ),
}


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxInitializationTime(TimeRule):
    """Report trainings whose first step comes late.

    The time counts from the start of the program, or from that of the run, if the
    program did not begin for this training: in a notebook, or in its second run.

    Args:
        threshold: Minutes until the end of the first step.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING,)
    bad_bins = 1

    threshold: float = 20.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0)

    @property
    def first_verdict(self) -> str:
        """Return that a step must have ended."""
        return "a step of training"

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the bin in which the first step ends."""
        each = profile.bins[i]
        began_ns = each.start_ns - each.number * BIN_NS
        is_first = each.steps["time"] - each.steps["duration_ns"] <= began_ns
        first = each.steps[is_first & (each.steps["worker"] == 0)]
        if not len(first):
            return {}
        parts = _parts(each, first[0], began_ns)
        minutes = sum(parts.values())
        is_bad = minutes - parts[_COMPILER] > self.threshold
        severity = Severity.WARNING if is_bad else None
        return {
            TRAINING: Sign(
                severity=severity, describe=lambda: self._describe(minutes, parts)
            )
        }

    def on_idle(self, idle: Idle) -> Iterator[Evaluation]:
        """Judge a training that has had no step yet."""
        if idle.ended or idle.last_step >= 0:
            return
        minutes = idle.seconds / 60
        level = int(Severity.WARNING) if minutes > self.threshold else OK
        yield Evaluation.of_one(
            TRAINING,
            np.zeros(1, np.int64),
            ModeKeys.TRAIN,
            np.array([level]),
            lambda _: self._describe(minutes, {_SETUP: minutes}),
        )

    def _describe(self, minutes: float, parts: Mapping[str, float]) -> Description:
        order = sorted(parts, key=lambda part: -parts[part])
        told = [
            f"{number(parts[part])} minutes {part}"
            for part in order
            if parts[part] >= LEAST_PART * minutes
        ]
        more = (
            f": {conjoin(told)}" if len(told) > 1 else f", nearly all of it {order[0]}"
        )
        # A step that takes long itself is no matter of the start.
        mended = next(part for part in order if part in _ADVICE)
        return Description(
            message=f"The first step took {number(minutes)} minutes to come{more}.",
            value=minutes,
            threshold=self.threshold,
            advice=_ADVICE[mended],
        )


def _parts(each: Bin, first: np.void, began_ns: int) -> dict[str, float]:
    """Return the minutes until the end of the first step, by where they went.

    Args:
        each: The bin in which it ends.
        first: Its row.
        began_ns: When that begins.
    """
    spent = {
        phase: float(first[column]) / MINUTE for phase, column in PHASE_COLUMNS.items()
    }
    parts = {
        _BEFORE: 0.0,
        _COMPILER: spent.pop(Phase.COMPILE),
        _DATA: spent.pop(Phase.DATA_WAIT),
        _SETUP: spent.pop(Phase.OTHER),
        _STEP: sum(spent.values()),
    }
    program_ns = each.configuration.get("program_start_ns")
    if is_integer(program_ns) and 0 <= program_ns <= began_ns:
        parts[_BEFORE] = (began_ns - program_ns) / MINUTE
    else:
        since_start = each.start_seconds - (each.start_ns - began_ns) / 1e9
        parts[_SETUP] += since_start / 60
    return parts
