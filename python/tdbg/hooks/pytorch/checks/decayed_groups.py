"""Find weight decay on the wrong groups of an optimizer's parameters.

Programs exempt biases and normalizations.  What they exempt says what they mean, so
one that forgets some, or takes one group for the other, contradicts itself.

Thread safety: the training's thread.  Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from tdbg.config.kinds import NORMS, Kind
from tdbg.run.observations import Fault

__all__ = ["DecayFault", "KnownParameter", "fault_of_decay", "has_exempt_groups"]

# Layers whose weights a program means to decay.
_OF_WEIGHTS = frozenset(
    {
        Kind.LINEAR,
        Kind.BILINEAR,
        Kind.CONV,
        Kind.CONV_TRANSPOSE,
        Kind.RNN,
        Kind.GRU,
        Kind.LSTM,
    }
)


class KnownParameter(NamedTuple):
    """Where a parameter belongs.

    Attributes:
        name: Its name in the run.
        kind: What its module is, if known.
    """

    name: str
    kind: Kind | None

    @property
    def is_bias(self) -> bool:
        """Whether it is a bias, by its name."""
        return self.name.rpartition(".")[2] == "bias"


class DecayFault(NamedTuple):
    """What is wrong with the decay of an optimizer.

    Attributes:
        fault: What it is.
        ids: The parameters that are decayed, by id.
        decay: The largest decay.
        kind: Of the normalizations, if they normalize over the batch; else "".
    """

    fault: Fault
    ids: Sequence[int]
    decay: float
    kind: str = ""


def has_exempt_groups(optimizer: Optimizer) -> bool:
    """Return whether some groups are decayed and others are not."""
    return all(_groups_of(optimizer))


def fault_of_decay(
    optimizer: Optimizer, places: Mapping[int, KnownParameter]
) -> DecayFault | None:
    """Return what is decayed although its like is exempt, or nothing.

    Args:
        optimizer: Has groups with and without decay.
        places: Where parameters belong, by id.

    Example:
        >>> norm = torch.nn.LayerNorm(4)
        >>> layer = torch.nn.Linear(4, 4)
        >>> groups = [
        ...     {"params": [layer.weight, norm.weight], "weight_decay": 0.1},
        ...     {"params": [layer.bias, norm.bias], "weight_decay": 0.0},
        ... ]
        >>> places = {
        ...     id(layer.weight): KnownParameter("0.weight", Kind.LINEAR),
        ...     id(layer.bias): KnownParameter("0.bias", Kind.LINEAR),
        ...     id(norm.weight): KnownParameter("1.weight", Kind.LAYER_NORM),
        ...     id(norm.bias): KnownParameter("1.bias", Kind.LAYER_NORM),
        ... }
        >>> found = fault_of_decay(torch.optim.SGD(groups, 0.1), places)
        >>> found.fault.value, [places[key].name for key in found.ids]
        ('decayed_normalization', ['1.weight'])
    """
    decayed, exempt = _groups_of(optimizer)
    decay = max(float(group["weight_decay"]) for group in decayed)
    if _are_exchanged(decayed, exempt, places):
        every = [id(each) for group in decayed for each in group["params"]]
        return DecayFault(Fault.DECAY_UPSIDE_DOWN, every, decay)
    found = _normalizations(decayed, places) if _is_exemption(exempt, places) else {}
    if not found:
        return None
    is_of_batch = {place.kind for place in found.values()} == {Kind.BATCH_NORM}
    kind = Kind.BATCH_NORM if is_of_batch else ""
    return DecayFault(Fault.DECAYED_NORMALIZATION, [*found], decay, kind)


def _groups_of(
    optimizer: Optimizer,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the groups that are decayed, and those that are not."""
    groups = optimizer.param_groups
    decayed = [group for group in groups if float(group.get("weight_decay") or 0)]
    exempt = [group for group in groups if group.get("weight_decay") == 0]
    return decayed, exempt


def _normalizations(
    groups: Iterable[Mapping[str, Any]], places: Mapping[int, KnownParameter]
) -> dict[int, KnownParameter]:
    """Return the parameters of normalizations that stand in a group beside weights."""
    return {
        id(each): place
        for group in groups
        if any(_is_weight(parameter, places) for parameter in group["params"])
        for each in group["params"]
        if each.requires_grad
        and (place := places.get(id(each))) is not None
        and place.kind in NORMS
    }


def _is_exemption(
    groups: Iterable[Mapping[str, Any]], places: Mapping[int, KnownParameter]
) -> bool:
    """Return whether groups without decay are there for biases or normalizations."""
    members = [each for group in groups for each in group["params"]]
    if any(_is_weight(each, places) for each in members):
        return False  # They hold a part of the model, and differ in more than that.
    known = [place for each in members if (place := places.get(id(each))) is not None]
    return any(place.is_bias or place.kind in NORMS for place in known)


def _are_exchanged(
    decayed: Iterable[Mapping[str, Any]],
    exempt: Iterable[Mapping[str, Any]],
    places: Mapping[int, KnownParameter],
) -> bool:
    """Return whether nothing but biases and normalizations is decayed, and no weight.

    All that is decayed must be known, and weights that are exempt must be of layers
    whose biases, or of normalizations behind them, are decayed.
    """
    ours = [places.get(id(each)) for group in decayed for each in group["params"]]
    is_small = all(
        place is not None and (place.is_bias or place.kind in NORMS) for place in ours
    )
    theirs = [each for group in exempt for each in group["params"]]
    weights = [each for each in theirs if _is_weight(each, places)]
    return (
        is_small
        and bool(ours)
        and len(weights) > 1
        and len(weights)
        == sum(_is_weight(each, places) for each in theirs if each.ndim > 1)
    )


def _is_weight(parameter: torch.Tensor, places: Mapping[int, KnownParameter]) -> bool:
    place = places.get(id(parameter))
    return place is not None and place.kind in _OF_WEIGHTS and parameter.ndim > 1
