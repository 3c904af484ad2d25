"""Read the variables of a program: those of its functions, and attributes of objects.

Thread safety: any thread; frames are those of the caller's own thread.

Errors: those of objects whose attributes are properties of the program.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

__all__ = [
    "best_values",
    "locals_of",
    "name_of_validation",
    "named_numbers",
    "namespaces",
]

# Frames outwards, names in each, and objects in each that have attributes, at most.
_MOST_FRAMES, _MOST_NAMES, _MOST_OBJECTS = 30, 400, 40
# References to the variables of a frame that nobody else has asked for.
_REFERENCES = 3
# Packages whose objects are not those of a program.
_FOREIGN = re.compile(
    r"(torch|numpy|tdbg|builtins|importlib|logging|pandas|PIL|pytest|_pytest)(\.|$)"
)

# What a program calls functions and data of validation.
_VALIDATES = re.compile(
    r"_*(validate|validation)(_(one_)?(step|epoch|loop|model|batch|loss|accuracy))?$"
)
_OF_DATA = (
    "(x|y|xs|ys|data|df|ds|dl|set|split|loader|dataset|dataloader|inputs?|labels?"
    "|targets?|features?|images?|batch(es)?|loss(es)?|acc(uracy)?|scores?|metrics?)"
)
_OF_VALIDATION = "(val|valid|validation|dev|holdout|held_out)"
_VALIDATION = re.compile(
    rf"_?({_OF_DATA}_?{_OF_VALIDATION}|{_OF_VALIDATION}_?{_OF_DATA})$", re.IGNORECASE
)
# What it calls the best metric, if that is no loss and no time.
_BEST = re.compile(
    r"(^|_)best(_|$)(?!.*(loss|err|epoch|step|index|idx))", re.IGNORECASE
)
_NO_DATA = (type(None), bool, int, str, type, FunctionType, ModuleType)


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a frame, without keeping them alive.

    A function's frame keeps what it was last asked for, until the function ends.
    """
    found = frame.f_locals
    copied = dict(found)
    is_snapshot = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    if is_snapshot and sys.version_info < (3, 13):
        # Nobody else has it: the frame, this variable and the call.
        if sys.getrefcount(found) <= _REFERENCES:
            found.clear()
    return copied


def namespaces(frame: FrameType | None) -> Iterator[Mapping[str, Any]]:
    """Yield the variables of frames, and the attributes of the objects in them."""
    seen = set[int]()
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if not _FOREIGN.match(str(frame.f_globals.get("__name__"))):
            yield from _of_scope(locals_of(frame), seen)
        frame = frame.f_back
    main = sys.modules.get("__main__")
    if main is not None:
        yield from _of_scope(vars(main), seen)


def _of_scope(scope: Mapping[str, Any], seen: set[int]) -> Iterator[Mapping[str, Any]]:
    names = _some_of(scope)
    yield names
    n_objects = 0
    for value in names.values():
        if isinstance(value, type | ModuleType | FunctionType | Optimizer):
            continue
        is_foreign = _FOREIGN.match(type(value).__module__ or "")
        if (is_foreign and not isinstance(value, nn.Module)) or id(value) in seen:
            continue
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict and n_objects < _MOST_OBJECTS:
            n_objects += 1
            seen.add(id(value))
            inside = value._modules if isinstance(value, nn.Module) else {}
            yield {**_some_of(attributes), **inside}


def _some_of(scope: Mapping[Any, Any]) -> dict[str, Any]:
    some = [*scope.items()][:_MOST_NAMES]
    return {name: value for name, value in some if type(name) is str}


def name_of_validation(innermost: FrameType, given: torch.Tensor) -> tuple[str, float]:
    """Return a name of validation, and how surely it is that of this evaluation.

    2: a function that goes on has it, or the data.  1: a loader has it.
    """
    frame: FrameType | None = innermost
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if _VALIDATES.match(frame.f_code.co_name):
            return frame.f_code.co_name, 2.0
        frame = frame.f_back
    found = "", 0.0
    for names in namespaces(innermost):
        for name, value in names.items():
            if not _VALIDATION.match(name) or isinstance(value, _NO_DATA):
                continue
            if _is_part(given, value):
                return name, 2.0
            certainty = float(isinstance(value, DataLoader))
            if not found[0] or certainty > found[1]:
                found = name, certainty
    return found


def best_values(innermost: FrameType | None) -> Iterator[tuple[str, float]]:
    """Yield what a program calls the best, if it is a number."""
    return named_numbers(innermost, _BEST)


def named_numbers(
    innermost: FrameType | None, pattern: re.Pattern[str]
) -> Iterator[tuple[str, float]]:
    """Yield numbers by the names of their variables, and the last ones of lists."""
    for names in namespaces(innermost):
        for name, value in names.items():
            if not pattern.search(name):
                continue
            if isinstance(value, list) and value:
                value = value[-1]  # noqa: PLW2901
            is_one = isinstance(value, torch.Tensor) and value.numel() == 1
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number or (is_one and value.is_cpu):
                yield name, float(value)


def _is_part(given: torch.Tensor, value: Any) -> bool:
    """Return whether a tensor lies in the memory of another one."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    behind = given.data_ptr() - value.data_ptr()
    return 0 <= behind < value.numel() * value.element_size()
