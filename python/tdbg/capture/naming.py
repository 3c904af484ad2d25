"""The names of captured tensors.

Implements docs/steps.md, "Names".
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tdbg.collections import Role

__all__ = [
    "GROUP_SCALARS",
    "MAX_CALLS",
    "Naming",
    "UniqueNames",
    "activation_name",
    "buffer_name",
    "gradient_name",
    "group_scalar_name",
    "optimizer_state_name",
    "parameter_role",
    "scalar_name",
    "tensors_in",
    "unclipped_gradient_name",
    "unit_name",
    "update_name",
]

# Deeper structures and longer lists of tensors are cut, so that a call that
# returns a cache of a million tensors costs no more than this.
MAX_DEPTH = 8
# Of a module that is called over and over in one forward, so many calls have names.
MAX_CALLS = 64
MAX_TENSORS = 1024


class Naming:
    """A scheme of names: tdbg's own.

    A face that keeps the names of another library has a scheme of its own, derived
    from this one.

    Attributes:
        name: Of the scheme, as the configuration event has it.
        index_runs: Whether the index in the names of inputs and outputs runs on
            over the calls of a module in one forward, so that the second call of
            ``relu`` answers ``relu_output_1``; otherwise it answers
            ``relu_output_0@2``.
    """

    name = "tdbg"
    index_runs = False

    def before_parameters(self, root: str, prefix: str) -> str:
        """What goes before the names of a root's parameters.

        Args:
            root: What the names of its own inputs and outputs begin with.
            prefix: What goes before the paths of the modules inside it.
        """
        del root
        return prefix


def activation_name(path: str, direction: str, index: int, call: int) -> str:
    """``layer1.0.relu_output_0``; the second call in a forward adds ``@2``."""
    name = f"{path}_{direction}_{index}"
    return f"{name}@{call + 1}" if call else name


def gradient_name(parameter: str) -> str:
    """``gradient/fc.weight``."""
    return f"gradient/{parameter}"


def buffer_name(buffer: str) -> str:
    """``buffer/norm.running_mean``."""
    return f"buffer/{buffer}"


def unclipped_gradient_name(parameter: str) -> str:
    """``gradient_unclipped/fc.weight``."""
    return f"gradient_unclipped/{parameter}"


def update_name(parameter: str) -> str:
    """``update/fc.weight``."""
    return f"update/{parameter}"


def optimizer_state_name(state: str, parameter: str) -> str:
    """``optimizer/exp_avg/fc.weight``."""
    return f"optimizer/{state}/{parameter}"


# What numbers of parameter groups begin with.
GROUP_SCALARS = "scalar/optimizer"


def group_scalar_name(optimizer: int, group: str, key: str) -> str:
    """``optimizer/group_0/lr``, a scalar's; optimizers count from 0."""
    of = f"optimizer_{optimizer + 1}" if optimizer else "optimizer"
    return f"{of}/{group}/{key}"


def scalar_name(name: str) -> str:
    """``scalar/accuracy``."""
    return f"scalar/{name}"


def unit_name(tensor: str) -> str:
    """``unit/relu_output_0``."""
    return f"unit/{tensor}"


def parameter_role(name: str) -> Role:
    """A bias if the last part of the name says so, else a weight."""
    return Role.BIAS if "bias" in name.rpartition(".")[2] else Role.WEIGHT


class UniqueNames:
    """Gives the second of a name a number: ``Net``, ``Net_2``, ..."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, name: str) -> str:
        """*name*, or with the first number that makes it new."""
        result, number = name, 1
        while result in self._taken:
            number += 1
            result = f"{name}_{number}"
        self._taken.add(result)
        return result


def tensors_in(
    value: Any, is_tensor: Callable[[Any], bool], limit: int = MAX_TENSORS
) -> Iterable[Any]:
    """The tensors of a nested structure, in order, depth first.

    Looks into tuples, lists, mappings and instances of dataclasses.  An index in
    a name counts these tensors; what is no tensor is not counted.
    """
    if is_tensor(value):  # Nearly always: no generator for these two.
        return (value,)
    if type(value) is tuple and len(value) == 1 and is_tensor(value[0]):
        return value
    return itertools.islice(_walk(value, is_tensor, 0), limit)


def _walk(value: Any, is_tensor: Callable[[Any], bool], depth: int) -> Iterator[Any]:
    if is_tensor(value):
        yield value
        return
    if depth >= MAX_DEPTH or value is None or isinstance(value, str | bytes | int):
        return
    for child in _children(value):
        yield from _walk(child, is_tensor, depth + 1)


def _children(value: Any) -> Iterable[Any]:
    """What a structure holds; nothing of one that raises when it is asked."""
    if isinstance(value, tuple | list):
        return value
    try:
        if isinstance(value, Mapping):
            return list(value.values())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return [getattr(value, item.name, None) for item in fields]
    except Exception:
        return ()
    return ()
