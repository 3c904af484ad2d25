"""How much of a training was recorded: at how many of its steps, by role.

Thread safety: functions; the trial's lock is held inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tdbg.config.collections import BUILT_IN, Role
from tdbg.config.quantities import conjoin, plural
from tdbg.modes import GLOBAL, TRAIN
from tdbg.run.json_values import is_integer, mapping_of
from tdbg.trial import RunOverhead, Trial
from tdbg.view.tensors import Tensors

__all__ = [
    "Coverage",
    "RoleCoverage",
    "coverage_of",
    "gaps_of",
    "interval_of",
]

# Roles by the word for their tensors, in the order in which a sentence names them.
# Scalars come when the program has one, and the rest is tdbg's own bookkeeping.
WORDS = {
    Role.LOSS: "losses",
    Role.WEIGHT: "weights",
    Role.BIAS: "biases",
    Role.GRADIENT: "gradients",
    Role.GRADIENT_UNCLIPPED: "unclipped gradients",
    Role.GRADIENT_LOCAL: "local gradients",
    Role.UPDATE: "updates",
    Role.OPTIMIZER_STATE: "optimizer states",
    Role.BUFFER: "buffers",
    Role.MODEL_INPUT: "model inputs",
    Role.INPUT: "inputs",
    Role.OUTPUT: "outputs",
    Role.OUTPUT_GRADIENT: "output gradients",
    Role.PREDICTION: "predictions",
    Role.LABEL: "labels",
}
# A live run is counted again when it has grown by this share: that takes a pass over
# all steps, and the number of passes then grows with the logarithm of the steps.
GROWTH = 1 / 32


@dataclass(frozen=True, slots=True)
class RoleCoverage:
    """How much was recorded of the tensors of a role.

    Attributes:
        role: The role: ``gradient``, ...
        words: The word for its tensors: ``gradients``.
        steps: Steps at which the tensor of the role that was recorded most often was.
        tensors: Number of its tensors.
        interval: As ``interval_of`` returns it.
    """

    role: str
    words: str
    steps: int
    tensors: int
    interval: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {
            "role": self.role,
            "steps": self.steps,
            "tensors": self.tensors,
            "interval": self.interval,
        }


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a training was recorded.

    Attributes:
        steps: Training steps when they were counted, of which those of the roles are
            some; steps of evaluation where nothing was trained.
        step_word: "step", or "round" of boosted trees.
        roles: Each role that was recorded, the one with the most steps first.
        budget: The share of time that capture was allowed where that left steps out;
            None if no budget did.
        empty: The collections that were asked for and of which a training that has
            ended captured no tensor, in words.
    """

    steps: int = 0
    step_word: str = "step"
    roles: tuple[RoleCoverage, ...] = ()
    budget: float | None = None
    empty: tuple[str, ...] = ()

    @property
    def is_full(self) -> bool:
        """Whether each role was recorded at every step."""
        return all(each.steps >= self.steps for each in self.roles)

    @property
    def text(self) -> str:
        """How much was recorded, in words; empty if nothing was.

        Example:
            ``losses at 150, weights and gradients at 43 of 600 steps; the budget of 5 %
            allows no more``
        """
        parts = [self._of_roles] if self.roles else []
        if self.empty:
            parts.append(f"no tensor of {conjoin([*self.empty])}")
        return "; ".join(parts)

    @property
    def _of_roles(self) -> str:
        steps = plural(self.steps, self.step_word)
        if self.is_full:
            at = f"each of {steps}" if self.steps > 1 else f"the only {self.step_word}"
            return f"{_listed(self.roles)} at {at}"
        parts = []
        for n, group in groupby(self.roles, key=lambda each: each.steps):
            at = f"every {self.step_word}" if n >= self.steps else f"{n:,}"
            parts.append(f"{_listed(group)} at {at}")
        text = f"{', '.join(parts)} of {steps}"
        if self.budget is not None:
            text += f"; the budget of {100 * self.budget:g} % allows no more"
        return text

    @property
    def advice(self) -> str:
        """Say how to record more; empty if everything was recorded."""
        if self.is_full:
            return ""
        if self.budget is not None:
            return (
                "To record more, allow more of the time, such as "
                f"budget={_higher(self.budget):g}, or turn the budget off: "
                "budget='off', or TDBG_BUDGET=off."
            )
        return "To record more steps, lower statistics_interval."

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {
            "steps": self.steps,
            "roles": [each.to_json() for each in self.roles],
            "budget": self.budget,
            "empty": [*self.empty],
            "text": self.text,
            "advice": self.advice,
        }


_kept: WeakKeyDictionary[Trial, tuple[tuple[object, ...], int, Coverage]] = (
    WeakKeyDictionary()
)


def coverage_of(
    trial: Trial, tensors: Tensors, n_steps: int, overhead: RunOverhead
) -> Coverage:
    """Return how much of a training was recorded.

    Args:
        trial: The run.
        tensors: Its tensors.
        n_steps: How many training steps it made, or else steps of evaluation.
        overhead: Its cost, as ``Trial.overhead`` returns it.
    """
    with trial.no_refresh():
        known = trial.status, trial.epoch, tensors.n, len(overhead.changes)
        held = _kept.get(trial)
        if held is None or held[0] != known or n_steps > held[1] * (1 + GROWTH):
            found = _counted(trial, tensors, n_steps, overhead)
            held = _kept[trial] = known, n_steps, found
        return held[2]


def interval_of(trial: Trial, role: str) -> int | None:
    """Return how many steps apart a tensor of a role was to be recorded.

    What was recorded at a step stands for so many steps; what is further apart was left
    out.  None if the run does not say.

    Args:
        trial: The run.
        role: A role, as ``RoleCoverage`` has it.
    """
    if role == Role.LOSS.name.lower():
        return 1
    schedules = [mapping_of(trial.configuration().get("hook"))]
    for event in trial.events("collections")[-1:]:
        named = mapping_of(event.data.get("collections"))
        schedules += [mapping_of(named.get(name)) for name in _collections_of(role)]
    told = [mapping_of(each.get("save_config")) for each in schedules]
    found = [schedule.get("statistics_interval") for schedule in told]
    usual, *own = [n if is_integer(n) and n > 0 else None for n in found]
    return min((n for n in own if n is not None), default=usual)


def _collections_of(role: str) -> list[str]:
    """The built-in collections that hold a role, but for that of everything."""
    held = {name: {each.name.lower() for each in BUILT_IN[name]} for name in BUILT_IN}
    return [name for name in held if role in held[name] and name != "all"]


def gaps_of(
    first: NDArray[np.int64], last: NDArray[np.int64], interval: int
) -> list[tuple[int, int]]:
    """Return the stretches of steps in which nothing was recorded.

    Args:
        first: First recorded step of each column, ascending.  Shape (columns,).
        last: Last recorded step of each.
        interval: For how many steps a recorded one stands, at least 1.

    Returns:
        First step of each stretch, and the step after its last one.

    Example:
        >>> gaps_of(np.array([0, 10, 40]), np.array([0, 10, 40]), 10)
        [(20, 40)]
    """
    ends = last[:-1] + interval
    # What comes a little late, as where evaluation lies between, is not left out.
    is_gap = first[1:] > ends + interval // 2
    return [*zip(ends[is_gap].tolist(), first[1:][is_gap].tolist(), strict=True)]


def _counted(
    trial: Trial, tensors: Tensors, n_steps: int, overhead: RunOverhead
) -> Coverage:
    words = {role.name.lower(): text for role, text in WORDS.items()}
    # Trees are evaluated in every round that trains.
    is_trained = TRAIN in trial.modes() and not tensors.are_trees
    most = trial.recorded_of_roles(TRAIN if is_trained else GLOBAL)
    found = [
        RoleCoverage(role, text, *most[role], interval_of(trial, role))
        for role, text in words.items()
        if most.get(role, (0, 0))[0]
    ]
    found.sort(key=lambda each: -each.steps)
    return Coverage(
        n_steps,
        "round" if tensors.are_trees else "step",
        tuple(found),
        _budget_that_left_out(overhead),
        _empty_collections(trial),
    )


def _empty_collections(trial: Trial) -> tuple[str, ...]:
    """The collections whose expressions found no tensor in all of a training."""
    if trial.status not in {"closed", "dead"}:
        return ()
    asked: set[str] = set()
    for event in trial.events("collections"):
        named = mapping_of(event.data.get("collections"))
        asked |= {name for name, each in named.items() if _is_asked(mapping_of(each))}
    found = trial.collections(*asked) if asked else {}
    return tuple(each.in_words for each in found.values() if not each.tensor_names)


def _budget_that_left_out(overhead: RunOverhead) -> float | None:
    """The newest budget that made something rarer, or None if none did."""
    for change in reversed(overhead.changes):
        throttle, share = mapping_of(change.get("throttle")), change.get("budget")
        factors = [throttle.get(name) for name in ("activations", "others", "steps")]
        is_rarer = any(is_integer(each) and each > 1 for each in factors)
        is_rarer |= throttle.get("beginning") is False
        if is_rarer and isinstance(share, float) and 0 < share < 1:
            return share
    return None


def _is_asked(collection: Mapping[str, Any]) -> bool:
    """Whether the expressions of a collection are to find tensors at some step."""
    schedule = mapping_of(collection.get("save_config"))
    is_off = schedule.get("end_step") == 0 and not schedule.get("save_steps")
    expects = bool(collection.get("include_regex")) and not is_off
    return expects and bool(collection.get("captured"))


def _higher(budget: float) -> float:
    return min(0.5, 2 * budget)


def _listed(roles: Iterable[RoleCoverage]) -> str:
    return conjoin([each.words for each in roles])
