"""Find settings of an optimizer's groups that contradict what the program means.

Programs exempt biases and normalizations from weight decay.  What they exempt says what
they mean, so one that forgets some, or takes one group for the other, contradicts
itself.  A group may have any key, and PyTorch reads those that it knows.

Thread safety: the training's thread.  Reads only.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from tdbg.config.kinds import NORMS, Kind
from tdbg.run.observations import Fault

__all__ = [
    "DecayFault",
    "KnownParameter",
    "Unread",
    "exchanged_betas",
    "fault_of_decay",
    "has_exempt_groups",
    "unread_settings",
]

# What programs call settings, without case and what is no letter.
_CALLED = {
    "lr": {"eta", "learningrate", "learnrate", "lr", "lrate", "rate"},
    "weight_decay": {"decay", "l2", "l2reg", "wd", "weightdecay", "weightdecays"},
    "momentum": {"mom", "momentum"},
    "betas": {"beta", "betas"},
    "eps": {"eps", "epsilon"},
}
# Names of settings that may be misspelt, and how much of one must be right.
_LONG, _RIGHT = 5, 0.85
# What is no part of a program.
_OWN = re.compile(r"(tdbg|torch)(\.|$)")
# An average so long is that of squares; frames outwards whose files are read.
_OF_SQUARES, _MOST_FRAMES = 0.99, 20

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


class Unread(NamedTuple):
    """A setting of a group that no optimizer of PyTorch reads.

    Attributes:
        key: What the program calls it.
        setting: What the optimizer calls it.
        value: What the program has set.
        used: What the optimizer uses.
        ids: The parameters of the group, by id.
    """

    key: str
    setting: str
    value: float
    used: float
    ids: Sequence[int]


def unread_settings(optimizer: Optimizer, frame: FrameType | None) -> Iterator[Unread]:
    """Yield settings that groups have by another name than the optimizer reads.

    Args:
        optimizer: One of PyTorch's own; others may read what they like.
        frame: The program, which may read such a key itself.

    Example:
        >>> group = {"params": [torch.zeros(1)], "learning_rate": 0.01}
        >>> (found,) = unread_settings(torch.optim.SGD([group], 0.1), None)
        >>> found.setting, found.value, found.used
        ('lr', 0.01, 0.1)
    """
    if not type(optimizer).__module__.startswith("torch.optim"):
        return
    known = optimizer.defaults
    for group in optimizer.param_groups:
        for key, value in group.items():
            if key in known or not _is_plain(value):
                continue
            setting = _meant_by(str(key), known)
            used = group.get(setting, "")
            is_set = used != known.get(setting) or value == used
            if not setting or is_set or not _is_plain(used) or _reads(frame, str(key)):
                continue
            ids = [id(each) for each in group["params"]]
            yield Unread(str(key), setting, float(value), float(used), ids)


def _is_plain(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _meant_by(key: str, known: Mapping[str, Any]) -> str:
    """Return the setting that a key is another name of; empty: none."""
    letters = re.sub(r"[^a-z0-9]", "", key.lower())
    for setting, names in _CALLED.items():
        if setting in known and letters in names:
            return setting
    long = [each for each in known if len(each) >= _LONG]
    return next(iter(get_close_matches(key, long, 1, _RIGHT)), "")


def _reads(frame: FrameType | None, key: str) -> bool:
    """Return whether a file of the program takes this key out of a mapping."""
    taken = re.compile(rf"(\[|get\()\s*[\"']{re.escape(key)}[\"']")
    files = set[str]()
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if not _OWN.match(str(frame.f_globals.get("__name__"))):
            files.add(frame.f_code.co_filename)
        frame = frame.f_back
    return any(taken.search("".join(linecache.getlines(each))) for each in files)


def exchanged_betas(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the betas of Adam if the program has exchanged them; nothing: it has not.

    Example:
        >>> exchanged_betas(torch.optim.Adam([torch.zeros(1)], betas=(0.999, 0.9)))
        (0.999, 0.9)
    """
    for group in optimizer.param_groups:
        betas = group.get("betas")
        if (
            isinstance(betas, tuple | list)
            and len(betas) == 2
            and all(isinstance(each, float | int) for each in betas)
        ):
            first, second = map(float, betas)
            if first >= _OF_SQUARES > second:
                return first, second
    return ()


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
