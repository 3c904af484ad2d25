"""What a step is called with: parameters, buffers and the state of the optimizer.

A step is a function of pytrees, and nothing says which of them holds the parameters.
They are found by what they are: the state of an optax transformation, a ``TrainState``
of Flax, a module of Flax NNX or of Equinox, a mapping with ``params``; otherwise the
first argument that is a container of floating-point arrays has the parameters.

Thread safety: the training's thread.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tdbg.hooks.jax.names import path_name

__all__ = [
    "ArgumentReader",
    "Arguments",
    "OfStep",
    "ParameterArgument",
    "StateArgument",
    "has_model",
    "hyperparameters",
]

_PARAMETERS, _BUFFERS, _STATE = "parameters", "buffers", "state"
_BATCH_STATS = "batch_stats"
_STATISTICS = "mean", "var"
# So many structures of pytrees are remembered; more than a training has.
_MOST_STRUCTURES = 64


class ParameterArgument(NamedTuple):
    """A parameter, or a buffer, by its name."""

    name: str
    array: Any
    is_buffer: bool = False


class StateArgument(NamedTuple):
    """A tensor of the optimizer's that belongs to a parameter: ``mu`` of Adam."""

    state: str
    parameter: str
    array: Any


class Arguments(NamedTuple):
    """The parameters, states and numbers in the arguments of one call."""

    parameters: tuple[ParameterArgument, ...] = ()
    states: tuple[StateArgument, ...] = ()
    numbers: Mapping[str, Any] = {}
    optimizers: tuple[str, ...] = ()


class OfStep(NamedTuple):
    """Trees in the arguments of one call, as they are; None: there is none.

    Attributes:
        parameters: The parameters.
        statistics: The running statistics of normalizations.
        state: The state of the optimizer.
    """

    parameters: Any = None
    statistics: Any = None
    state: Any = None


class ArgumentReader:
    """Finds the parameters in the arguments of one step function.

    Args:
        choose: Returns the pytree of the parameters from the arguments, if the user
            says which it is; None: it is found.
    """

    def __init__(self, choose: Callable[..., Any] | None = None) -> None:
        self._choose = choose
        self._names: dict[Any, tuple[str, ...]] = {}
        self._owners: dict[Any, tuple[tuple[int, str, str], ...]] = {}
        self._has_numbers: dict[Any, bool] = {}

    def read(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        with_states: bool = True,
    ) -> Arguments:
        """Return what the arguments of a call hold.

        Args:
            args: Positional ones.
            kwargs: Named ones.
            with_states: Whether tensors of the optimizer's are looked for.
        """
        sections = list(_sections((*args, *kwargs.values())))
        if self._choose is not None:
            chosen = self._choose(*args, **kwargs)
            sections = [(_PARAMETERS, chosen)] + [
                each for each in sections if each[0] != _PARAMETERS
            ]
        parameters: list[ParameterArgument] = []
        states: list[StateArgument] = []
        numbers: dict[str, Any] = {}
        for what, tree in sections:
            if what == _STATE:
                if with_states:
                    states += self._states(tree, parameters)
                numbers.update(self._numbers(tree))
            elif what == _BUFFERS or not any(not each.is_buffer for each in parameters):
                parameters += self._parameters(tree, is_buffer=what == _BUFFERS)
        return Arguments(tuple(parameters), tuple(states), numbers)

    def of_step(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> OfStep:
        """Return the first tree of each kind in the arguments of a call.

        Running statistics may be an argument of their own: a container in which each
        array is called ``mean`` or ``var``.
        """
        values = (*args, *kwargs.values())
        found = dict(reversed(list(_sections(values))))
        statistics = found.get(_BUFFERS)
        if statistics is None:
            statistics = next(filter(_are_statistics, values), None)
        parameters = found.get(_PARAMETERS)
        if self._choose is not None:
            parameters = self._choose(*args, **kwargs)
        return OfStep(parameters, statistics, found.get(_STATE))

    def _parameters(self, tree: Any, *, is_buffer: bool) -> Iterator[ParameterArgument]:
        for name, leaf in self._leaves(tree):
            array, other = _unwrapped(leaf)
            if _is_float(array):
                yield ParameterArgument(name, array, is_buffer or other)

    def _states(
        self, tree: Any, parameters: Sequence[ParameterArgument]
    ) -> Iterator[StateArgument]:
        leaves, structure = jax.tree_util.tree_flatten(tree, is_leaf=_is_variable)
        key = structure, len(parameters)
        owners = self._owners.get(key)
        if owners is None:
            if len(self._owners) >= _MOST_STRUCTURES:
                self._owners.clear()
            owners = self._owners[key] = tuple(self._find_owners(tree, parameters))
        for index, state, parameter in owners:
            yield StateArgument(state, parameter, _unwrapped(leaves[index])[0])

    def _numbers(self, tree: Any) -> Mapping[str, Any]:
        """Return the hyperparameters in a state, which few structures have."""
        structure = jax.tree_util.tree_structure(tree)
        if self._has_numbers.get(structure) is False:
            return {}
        found = hyperparameters(tree)
        if len(self._has_numbers) >= _MOST_STRUCTURES:
            self._has_numbers.clear()
        self._has_numbers[structure] = bool(found)
        return found

    def _find_owners(
        self, tree: Any, parameters: Sequence[ParameterArgument]
    ) -> Iterator[tuple[int, str, str]]:
        shapes = {each.name: each.array.shape for each in parameters}
        taken: set[tuple[str, str]] = set()
        for index, (name, leaf) in enumerate(self._leaves(tree)):
            array, _ = _unwrapped(leaf)
            found = _of_parameter(name, shapes)
            if found is None or not _is_float(array) or array.shape != shapes[found[1]]:
                continue
            state, parameter = found
            unique, number = state, 1
            while (unique, parameter) in taken:
                number += 1
                unique = f"{state}_{number}"
            taken.add((unique, parameter))
            yield index, unique, parameter

    def _leaves(self, tree: Any) -> Iterator[tuple[str, Any]]:
        leaves, structure = jax.tree_util.tree_flatten(tree, is_leaf=_is_variable)
        names = self._names.get(structure)
        if names is None:
            paths, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_variable)
            names = tuple(path_name(path) for path, _ in paths)
            if len(self._names) >= _MOST_STRUCTURES:
                self._names.clear()
            self._names[structure] = names
        return zip(names, leaves, strict=True)


def hyperparameters(tree: Any) -> dict[str, Any]:
    """Return the numbers of ``optax.inject_hyperparams`` in a state, by their names."""
    numbers: dict[str, Any] = {}
    for each in _nodes(tree):
        found = getattr(each, "hyperparams", None)
        if isinstance(found, Mapping):
            numbers.update(
                (str(name), value) for name, value in found.items() if _is_number(value)
            )
    return numbers


def _nodes(tree: Any) -> Iterator[Any]:
    yield tree
    if isinstance(tree, tuple | list):
        for each in tree:
            yield from _nodes(each)
    elif isinstance(tree, Mapping):
        for each in tree.values():
            yield from _nodes(each)


def has_model(value: Any) -> bool:
    """Return whether an argument is known as parameters, or as a state of these."""
    return any(True for _ in _sections_of(value))


def _sections(values: tuple[Any, ...] | list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield what the arguments have, parameters first as the state refers to them."""
    found = [each for value in values for each in _sections_of(value)]
    if not found or found[0][0] != _PARAMETERS:
        others = [value for value in values if not list(_sections_of(value))]
        found += [(_PARAMETERS, each) for each in others if _is_container(each)][:1]
    return iter(sorted(found, key=lambda each: each[0] == _STATE))


def _sections_of(value: Any) -> Iterator[tuple[str, Any]]:
    if _is_optax_state(value):
        yield _STATE, value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _sections_of(each)
    elif isinstance(value, Mapping):
        if _PARAMS in value:
            yield from _train_state(value.get)
    elif hasattr(value, _PARAMS) and hasattr(value, _OPT_STATE):
        yield from _train_state(lambda name: getattr(value, name, None))
    elif _is_nnx(value, "Optimizer"):
        yield _STATE, value.opt_state
    elif _is_nnx(value, "Module") or _is_nnx(value, "State") or _is_equinox(value):
        yield _PARAMETERS, value


_PARAMS, _OPT_STATE = "params", "opt_state"


def _train_state(get: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
    yield _PARAMETERS, get(_PARAMS)
    for what, name in ((_BUFFERS, _BATCH_STATS), (_STATE, _OPT_STATE)):
        if get(name) is not None:
            yield what, get(name)


def _is_optax_state(value: Any) -> bool:
    """Whether it is a state of optax, or a chain of them."""
    if not isinstance(value, tuple):
        return False
    if hasattr(value, "_fields"):
        return type(value).__module__.partition(".")[0] == "optax"
    return any(_is_optax_state(each) for each in value)


def _is_container(value: Any) -> bool:
    if isinstance(value, jax.Array | np.ndarray) or np.isscalar(value):
        return False
    return any(_is_float(leaf) for leaf in jax.tree_util.tree_leaves(value))


def _are_statistics(value: Any) -> bool:
    """Whether it has nothing but means and variances of layers."""
    if not isinstance(value, Mapping):
        return False
    leaves = jax.tree_util.tree_flatten_with_path(value)[0]
    names = [path_name(path).rpartition("/") for path, _ in leaves]
    paths = [{path for path, _, key in names if key == each} for each in _STATISTICS]
    return bool(leaves) and paths[0] == paths[1] and len(leaves) == 2 * len(paths[0])


def _is_nnx(value: Any, name: str) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, getattr(nnx, name))


def _is_equinox(value: Any) -> bool:
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(value, equinox.Module)


def _is_variable(value: Any) -> bool:
    return _is_nnx(value, "Variable")


def _unwrapped(leaf: Any) -> tuple[Any, bool]:
    """Return the array of a leaf, and whether it is one that is not trained."""
    if not _is_variable(leaf):
        return leaf, False
    return leaf.get_value(), not _is_nnx(leaf, "Param")


def _is_float(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray) and _has_fraction(value.dtype)


@functools.cache
def _has_fraction(dtype: Any) -> bool:
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.floating))


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) or (
        isinstance(value, jax.Array | np.ndarray) and value.size == 1
    )


def _of_parameter(name: str, shapes: Mapping[str, Any]) -> tuple[str, str] | None:
    """Divide the name of a tensor of the optimizer's: ``0/mu/dense/kernel``.

    Returns:
        The word before the name of a parameter, and that name.
    """
    before, rest = "", name
    while rest:
        rest_of_params = rest.removeprefix(f"{_PARAMS}/")
        if before and rest_of_params in shapes:
            return before, rest_of_params
        head, _, rest = rest.partition("/")
        before = head if not head.isdigit() else before
    return None
