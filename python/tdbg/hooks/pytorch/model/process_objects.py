"""Objects of the process by their classes, and the parameters that optimizers hold.

Thread safety: the training's thread.  Errors: none.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import weakref
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader, IterableDataset

_Kind = TypeVar("_Kind")

__all__ = [
    "counting_schedules",
    "custom_optimizers",
    "empty_loader",
    "has_schedule",
    "held_ids",
    "living",
    "longest_loader",
    "met",
    "parameters_of",
    "schedules_of",
]

# What every pass over all objects looks for, what the latest one has met of each, and
# how often Python had collected objects before, except the youngest ones.
_LOOKED_FOR: tuple[type[Any], ...] = (nn.Module, Optimizer, LRScheduler, DataLoader)
_met: dict[type, list[weakref.ref[Any]]] = {}
_collections: list[int] = []


def living(*classes: type[Any]) -> list[Any]:
    """Return all objects of the process that are of some classes or subclasses.

    A pass over all objects takes about 50 ms for a million of them, most of it in
    Python's own list of them.  What was made since is among the young objects until
    Python collects these, and one pass does for all who ask before that.

    Args:
        classes: Of modules, optimizers, schedules and loaders.
    """
    collections = _counts_of_collections()
    is_new = bool(_met and collections) and collections == _collections
    known = [each for kind in _LOOKED_FOR for each in met(kind)] if is_new else []
    objects = gc.get_objects(0) + gc.get_objects(1) if is_new else gc.get_objects()
    ids = set(map(id, known))
    found = _instances(objects, _kinds(*_LOOKED_FOR))
    found = known + [each for each in found if id(each) not in ids]
    for kind in _LOOKED_FOR:
        _met[kind] = [weakref.ref(one) for one in found if isinstance(one, kind)]
    _collections[:] = collections
    return [each for kind in classes for each in met(kind)]


def _counts_of_collections() -> list[int]:
    """Return how often older objects were collected; nothing if nobody can tell."""
    is_by_age = sys.version_info < (3, 14)
    return [each["collections"] for each in gc.get_stats()[1:]] if is_by_age else []


def met(kind: type[_Kind]) -> list[_Kind]:
    """Return the living objects that the latest pass has met.

    Args:
        kind: A class of modules, optimizers, schedules or loaders.
    """
    base = next(each for each in _LOOKED_FOR if issubclass(kind, each))
    references = _met.get(base, ())
    return [each for known in references if isinstance(each := known(), kind)]


def schedules_of(optimizer: Any) -> list[LRScheduler]:
    """Return the schedules of an optimizer's learning rate.

    Those that the latest pass has met, if it has met one of this optimizer: programs
    make optimizers and schedules together.
    """
    return _of(optimizer, met(LRScheduler)) or _of(optimizer, living(LRScheduler))


def counting_schedules(optimizer: Any) -> list[LRScheduler]:
    """Return the schedules of an optimizer that count steps; chains do not."""
    return [each for each in schedules_of(optimizer) if hasattr(each, "last_epoch")]


def has_schedule(optimizer: Any) -> bool:
    """Return whether an optimizer was given to a schedule."""
    return hasattr(optimizer.step, "_wrapped_by_lr_sched")


def _of(optimizer: Any, schedules: list[LRScheduler]) -> list[LRScheduler]:
    return [each for each in schedules if getattr(each, "optimizer", None) is optimizer]


def longest_loader() -> int:
    """Return the batches of the longest loader that the latest pass has met; 0: none.

    Only loaders of PyTorch over data with a length count.
    """
    longest = 0
    for loader in met(DataLoader):
        with contextlib.suppress(Exception):
            if not isinstance(loader.dataset, IterableDataset):
                longest = max(longest, len(loader))
    return longest


def _instances(objects: list[Any], kinds: set[type]) -> list[Any]:
    from tdbg._core import instances_of  # Where tdbg is off, nobody loads the core.

    return instances_of(objects, kinds)


def _kinds(*classes: type) -> set[type]:
    """Return classes with all of their subclasses."""
    kinds, waiting = set[type](), [*classes]
    while waiting:
        kind = waiting.pop()
        if kind not in kinds:
            kinds.add(kind)
            waiting += kind.__subclasses__()
    return kinds


def custom_optimizers() -> list[weakref.ref[Any]]:
    """Return all optimizers of the process that are not PyTorch's, such as fastai's.

    They have a method ``step`` and parameter groups like those of PyTorch. No code of
    other objects is called.
    """
    every = gc.get_objects()
    kinds = {
        kind
        for kind in set(map(type, every))
        if not issubclass(kind, Optimizer)
        and any("step" in vars(base) for base in kind.__mro__)
    }
    found = []
    for each in _instances(every, kinds):
        with contextlib.suppress(Exception):
            if inspect.getattr_static(each, "param_groups", None) is not None:
                groups = list(each.param_groups)
                if groups and all(map(_is_group, groups)):
                    found.append(weakref.ref(each))
    return found


def empty_loader() -> tuple[int, ...]:
    """Return the samples and the batch size of a loader without a batch; else nothing.

    Only loaders of PyTorch that leave out the last batch count.
    """
    for each in living(DataLoader):
        with contextlib.suppress(Exception):
            size = each.batch_size
            if each.drop_last and size and 0 < len(each.dataset) < size:
                return len(each.dataset), size
    return ()


def _is_group(group: object) -> bool:
    return isinstance(group, Mapping) and "params" in group


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """Return the parameters in the groups of an optimizer."""
    return [item for group in optimizer.param_groups for item in group["params"]]


def held_ids(optimizer: Any) -> set[int]:
    """Return the ids of the parameters in the groups of an optimizer."""
    return set(map(id, parameters_of(optimizer)))
