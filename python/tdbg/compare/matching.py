"""The steps that two runs share: which step of one is compared with which of the other.

Thread safety: values, and functions that hold a trial's lock inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tdbg.compare.axis import Axis
from tdbg.config.quantities import plural
from tdbg.errors import ConfigurationError, QueryError
from tdbg.modes import EVALUATION, TRAINING, ModeKeys
from tdbg.trial import Trial, mode_key

__all__ = ["BY", "MatchedSteps", "match", "mode_pairs", "no_match"]

#: What steps may be matched by: their place in the training, their global step, or
#: their number in their mode.
BY = ("step", "global", "mode")

# How many forwards of evaluation a place may have: 2 to this power.
ORDINAL_BITS = 24
STEPS_NAMED = 5
Steps = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class MatchedSteps:
    """Steps of two runs in one mode, of which the n-th belong together.

    Attributes:
        modes: The mode, as each run has it.
        places: int64 (n,): where they stand on the axis, never descending.
        steps: Of each run int64 (n,): their global steps, ascending.
    """

    modes: tuple[ModeKeys, ModeKeys]
    places: Steps
    steps: tuple[Steps, Steps]

    def __len__(self) -> int:
        return len(self.places)


def mode_pairs(
    first: Trial, second: Trial, mode: str | ModeKeys | None
) -> list[tuple[ModeKeys, ModeKeys]]:
    """Return the modes that are compared, as each run has them.

    Args:
        first: A run.
        second: Another one.
        mode: A mode; two of them, ``"EVAL:PREDICT"``, if the runs have different ones;
            None: all that both have.  If there is none, what trains is compared with
            what trains, and what evaluates with what evaluates.

    Raises:
        ConfigurationError: If there is no such mode.
    """
    if mode is not None:
        if isinstance(mode, ModeKeys):
            return [(mode, mode)]
        one, _, other = mode.partition(":")
        return [(mode_key(one), mode_key(other or one))]
    modes = first.modes(), second.modes()
    both = [(each, each) for each in modes[0] if each in modes[1]]
    return both or [
        (one, other)
        for one in modes[0]
        for other in modes[1]
        if {one, other} <= TRAINING or {one, other} <= EVALUATION
    ]


def match(
    first: Trial,
    second: Trial,
    modes: tuple[ModeKeys, ModeKeys],
    by: str,
) -> MatchedSteps:
    """Match the recorded steps of two runs.

    Forwards of evaluation that stand at one place belong together in their order.

    Raises:
        ConfigurationError: If *by* is none of ``BY``.
    """
    if by not in BY:
        msg = f"runs diverge at a step: match them by {', '.join(BY)}, not by {by!r}"
        raise ConfigurationError(msg)
    tables = [
        _of_mode(trial.step_table(), mode)
        for trial, mode in zip((first, second), modes, strict=True)
    ]
    one, other = (_keys(_places(table, by)) for table in tables)
    keys, i, j = np.intersect1d(one, other, assume_unique=True, return_indices=True)
    steps = tables[0]["step"][i], tables[1]["step"][j]
    return MatchedSteps(
        modes, keys >> ORDINAL_BITS, (_as_int(steps[0]), _as_int(steps[1]))
    )


def _places(table: NDArray[np.void], by: str) -> Steps:
    return _as_int(table["mode_step"]) if by == "mode" else Axis(by).places(table)


def _of_mode(table: NDArray[np.void], mode: ModeKeys) -> NDArray[np.void]:
    return table if mode is ModeKeys.GLOBAL else table[table["mode"] == mode.value]


def _keys(places: Steps) -> Steps:
    """Make places unique: the n-th step at a place is followed by the next."""
    first = np.searchsorted(places, places)
    return (places << ORDINAL_BITS) | (np.arange(len(places)) - first)


def _as_int(steps: NDArray[np.integer]) -> Steps:
    return steps.astype(np.int64)


def no_match(first: Trial, second: Trial, by: str) -> QueryError:
    """Return the error for runs that share no step: it says what each has instead."""
    told = " and ".join(
        f"{trial.name} has {_steps_in_words(trial, by)}" for trial in (first, second)
    )
    return QueryError(
        f"the runs share no recorded step: {told}{_another_way(first, second, by)}"
    )


def _another_way(first: Trial, second: Trial, by: str) -> str:
    """Which other modes, or another count of steps, match some steps."""
    for way in (by, *BY):
        for one, other in product(first.modes(), second.modes()):
            if (n := len(match(first, second, (one, other), way))) == 0:
                continue
            word = one.name if one is other else f"{one.name}:{other.name}"
            counted = "" if way == by else f" and by={way!r}"
            return f"; mode={word!r}{counted} matches {plural(n, 'step')}"
    return ""


def _steps_in_words(trial: Trial, by: str) -> str:
    told = []
    for mode in trial.modes():
        found = np.unique(_places(_of_mode(trial.step_table(), mode), by)).tolist()
        shown = ", ".join(map(str, found[:STEPS_NAMED]))
        more = f", ... {found[-1]}" if len(found) > STEPS_NAMED else ""
        told.append(f"{mode.name} steps {shown}{more}")
    return "; ".join(told) or "none"
