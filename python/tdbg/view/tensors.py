"""What the tensors of a run are: their roles, its losses, whether they are trees.

All of it is asked at every change of a run that trains, and changes only when there is
another tensor, attempt or model: until then it is kept.

Thread safety: functions; the trial's lock is held inside.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tdbg.config.collections import Role
from tdbg.run.model_info import TREES
from tdbg.run.model_info import are_trees as is_of_trees
from tdbg.trial import TensorDescription, Trial

__all__ = ["Tensors", "are_trees", "loss_names", "tensors_in"]

_LOSS = Role.LOSS.name.lower()
# What hooks call the loss that the training minimizes; others may be parts of it.
_WHOLE = frozenset({"loss", "loss_output_0"})
_SCALAR = Role.SCALAR.name.lower()


@dataclass(frozen=True, slots=True)
class Tensors:
    """What the tensors of a run are.

    Attributes:
        n: How many tensors and scalars there are.
        losses: The losses, in the order of `loss_names`.
        scalars: The scalars, by name.
        are_trees: Whether they come from boosted trees, whose steps are rounds.
    """

    n: int
    losses: tuple[str, ...]
    scalars: tuple[str, ...]
    are_trees: bool


@dataclass(slots=True)
class _Kept:
    """Tensors, what they depend on, and how much of the run had been read."""

    tensors: Tensors
    known: Hashable
    read: Hashable


_kept: WeakKeyDictionary[Trial, _Kept] = WeakKeyDictionary()


def tensors_in(trial: Trial) -> Tensors:
    """Return what the tensors of a run are."""
    with trial.no_refresh():
        kept, read = _kept.get(trial), (trial.epoch, trial.n_bytes)
        if kept is not None and kept.read == read:
            return kept.tensors
        known = (
            *(trial.epoch, trial.count_names()),
            *(len(trial.attempts()), len(trial.model_info())),
        )
        if kept is None or kept.known != known:
            kept = _kept[trial] = _Kept(_described(trial), known, read)
        kept.read = read
        return kept.tensors


def _described(trial: Trial) -> Tensors:
    losses = trial.describe(trial.names_of_role(_LOSS))
    return Tensors(
        trial.count_tensors(),
        tuple(each.name for each in sorted(losses, key=_place_of_loss)),
        tuple(trial.names_of_role(_SCALAR)),
        is_of_trees(trial.collections(*TREES), trial.model_info()),
    )


def loss_names(trial: Trial) -> list[str]:
    """Return the losses of a run, *the* loss first.

    That is one number: what the training minimizes, rather than a part of it.
    """
    return list(tensors_in(trial).losses)


def are_trees(trial: Trial) -> bool:
    """Return whether the run is of boosted trees, whose steps are rounds."""
    return tensors_in(trial).are_trees


def _place_of_loss(loss: TensorDescription) -> tuple[bool, bool, str]:
    is_number = loss.shape is not None and math.prod(loss.shape) == 1
    return not is_number, loss.name.rpartition("/")[2] not in _WHOLE, loss.name
