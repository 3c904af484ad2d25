"""The names of captured tensors.

Implements docs/steps.md, "Names".
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tdbg.config.collections import Role
from tdbg.config.tensor_names import PREFIXES

__all__ = [
    "GROUP_SCALARS",
    "MAX_CALLS",
    "Naming",
    "UniqueNames",
    "activation_name",
    "buffer_name",
    "gradient_name",
    "group_scalar_name",
    "local_gradient_name",
    "optimizer_state_name",
    "parameter_role",
    "scalar_name",
    "tensors_in",
    "unclipped_gradient_name",
    "unit_name",
    "update_name",
]

# Deeper structures, and more tensors, are cut off: a call may return a cache of a
# million tensors.
MAX_DEPTH = 8
MAX_TENSORS = 1024
# Number of calls of one module in one forward that have names.
MAX_CALLS = 64


class Naming:
    """tdbg's scheme of names.

    A package that keeps the names of another library derives its own scheme.

    Attributes:
        name: Name of the scheme, for the configuration event.
        index_runs: Whether the index in the names of inputs and outputs runs on
            over the calls of a module in one forward, so that the output of the
            second call of ``relu`` is ``relu_output_1``; otherwise it is
            ``relu_output_0@2``.
    """

    name = "tdbg"
    index_runs = False

    def before_parameters(self, root: str, prefix: str) -> str:
        """Return what the names of a root's parameters begin with.

        Args:
            root: What the names of the root's own inputs and outputs begin with.
            prefix: What the names of the modules inside it begin with.
        """
        del root
        return prefix


def activation_name(path: str, direction: str, index: int, call: int) -> str:
    """``layer1.0.relu_output_0``; the second call in a forward adds ``@2``."""
    name = f"{path}_{direction}_{index}"
    return f"{name}@{call + 1}" if call else name


def gradient_name(parameter: str) -> str:
    """``gradient/fc.weight``."""
    return f"{PREFIXES[Role.GRADIENT]}{parameter}"


def buffer_name(buffer: str) -> str:
    """``buffer/norm.running_mean``."""
    return f"{PREFIXES[Role.BUFFER]}{buffer}"


def unclipped_gradient_name(parameter: str) -> str:
    """``gradient_unclipped/fc.weight``."""
    return f"{PREFIXES[Role.GRADIENT_UNCLIPPED]}{parameter}"


def local_gradient_name(parameter: str) -> str:
    """``gradient_local/fc.weight``."""
    return f"{PREFIXES[Role.GRADIENT_LOCAL]}{parameter}"


def update_name(parameter: str) -> str:
    """``update/fc.weight``."""
    return f"{PREFIXES[Role.UPDATE]}{parameter}"


def optimizer_state_name(state: str, parameter: str) -> str:
    """``optimizer/exp_avg/fc.weight``."""
    return f"{PREFIXES[Role.OPTIMIZER_STATE]}{state}/{parameter}"


# What the names of numbers of parameter groups begin with.
GROUP_SCALARS = "scalar/optimizer"


def group_scalar_name(optimizer: int, group: str, key: str) -> str:
    """``optimizer/group_0/lr``, the name of a scalar; *optimizer* counts from 0."""
    of = f"optimizer_{optimizer + 1}" if optimizer else "optimizer"
    return f"{of}/{group}/{key}"


def scalar_name(name: str) -> str:
    """``scalar/accuracy``."""
    return f"{PREFIXES[Role.SCALAR]}{name}"


def unit_name(tensor: str) -> str:
    """``unit/relu_output_0``."""
    return f"{PREFIXES[Role.UNIT_SUMMARY]}{tensor}"


def parameter_role(name: str) -> Role:
    """Return BIAS if the last part of the name has that word, else WEIGHT."""
    return Role.BIAS if "bias" in name.rpartition(".")[2] else Role.WEIGHT


class UniqueNames:
    """Makes names unique by numbers: ``Net``, ``Net_2``, ..."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, name: str) -> str:
        """Return *name*, with the first number that makes it new if need be."""
        result, number = name, 1
        while result in self._taken:
            number += 1
            result = f"{name}_{number}"
        self._taken.add(result)
        return result


def tensors_in(
    value: Any, is_tensor: Callable[[Any], bool], limit: int = MAX_TENSORS
) -> Iterable[Any]:
    """Return the tensors of a nested structure, in order, depth first.

    It searches tuples, lists, mappings and instances of dataclasses.  The index in a
    name counts these tensors, and nothing else.
    """
    if is_tensor(value):  # The two most frequent cases need no generator.
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
    """Return the elements of a structure; none if reading them raises."""
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
