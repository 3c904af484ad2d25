"""Things that code names and that lie outside of a model: what is known of each.

Thread safety: pure functions.
"""

from __future__ import annotations

import builtins
import collections
import enum
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from tdbg.hooks.pytorch.checks.probes.pure_libraries import is_pure

__all__ = [
    "ARRAYS",
    "CONSTANT",
    "CONTAINERS",
    "FUNCTIONS",
    "ITS_CLASS",
    "PLAIN",
    "UNKNOWN",
    "OutsideValue",
    "closure_of",
    "global_of",
    "is_changeable",
    "is_kept",
    "is_stateless",
    "may_change",
    "only_reads",
    "wrapped_by",
]


PLAIN = (
    *(type(None), type(NotImplemented), type(...), bool, int, float, complex, str),
    *(bytes, range, slice, enum.Enum),
)
"""What nobody can change."""
CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, Mapping)
ARRAYS = (torch.Tensor, np.ndarray)
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
# Methods of objects of these classes change nothing; generators get their state back.
CONSTANT: tuple[type, ...] = (
    *(re.Pattern, torch.finfo, torch.iinfo, torch.dtype, torch.device, np.ufunc),
    *(torch.layout, torch.memory_format, torch.jit.ScriptFunction, np.dtype),
    *(types.MethodDescriptorType, types.WrapperDescriptorType),
    *(torch._ops.OpOverload, torch._ops.OpOverloadPacket),
)
UNKNOWN = object()


class OutsideValue(NamedTuple):
    """Something that code names and that lies outside of the model.

    Attributes:
        name: As the code names it.
        value: It, or ``UNKNOWN``: a part of something known.
    """

    name: str
    value: Any = UNKNOWN


ITS_CLASS = OutsideValue("its class")


def wrapped_by(value: Any) -> Any:
    """Return the function that a decorator was given; None: there is none."""
    own = getattr(value, "__dict__", None)
    return own.get("__wrapped__") if isinstance(own, Mapping) else None


def may_change(value: Any) -> bool:
    """Return whether something that all objects of a class share can be changed."""
    if isinstance(value, (*PLAIN, *FUNCTIONS, staticmethod, classmethod, *CONSTANT)):
        return False
    return isinstance(value, (*ARRAYS, nn.Module)) or not hasattr(value, "__get__")


def closure_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names in the closure of a function, and what they mean."""
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            yield name, None


def global_of(function: types.FunctionType, name: str) -> Any:
    """Return what a global name means in a function, or ``UNKNOWN``."""
    found = function.__globals__.get(name, UNKNOWN)
    return found if found is not UNKNOWN else vars(builtins).get(name, UNKNOWN)


def is_changeable(found: OutsideValue | None) -> bool:
    """Return whether something outside has a state that code could change."""
    if found is None:
        return False
    constant = (*FUNCTIONS, *CONSTANT, types.ModuleType)
    return not isinstance(found.value, constant)


def is_kept(found: OutsideValue) -> bool:
    """Return whether code that is given it may change it unseen.

    Tensors are watched; modules, and generators of random numbers, are put back.
    """
    if isinstance(found.value, (torch.Tensor, torch.Generator)):
        return False
    if isinstance(found.value, tuple | frozenset):
        return False
    return is_changeable(found) and found is not ITS_CLASS


def only_reads(function: Any) -> bool:
    """Return whether a function changes none of its arguments."""
    is_known = isinstance(function, FUNCTIONS) and function is not UNKNOWN
    return is_known and is_pure(function)


def is_stateless(module: nn.Module) -> bool:
    """Return whether a call of a module leaves no trace."""
    for each in module.modules():
        if not is_pure(type(each)) or each._forward_hooks or each._forward_pre_hooks:
            return False
    held = (*module.parameters(), *module.buffers())
    return not held
