"""See what steps do with the running statistics of normalizations, and in which mode.

The program of a step shows what it computes with: in training a normalization uses the
statistics of its batch, in evaluation the running ones.  It also shows the weight that
the past has in a running average.  Modules of Flax NNX have flags for the mode.

Thread safety: the training's thread.

Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal
from jax.interpreters import partial_eval
from numpy.typing import NDArray

from tdbg.capture.session import Session
from tdbg.hooks.jax.arguments import ArgumentReader
from tdbg.hooks.jax.names import path_name
from tdbg.hooks.jax.programs import program_of
from tdbg.hooks.jax.returned import (
    are_initial,
    find_subtree,
    form_of,
    is_readable,
    layers_in,
    subtree_at,
)
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = [
    "OF_ANOTHER",
    "IgnoredStatistics",
    "TrainedStatistics",
    "distance",
    "momentum_of",
]

# A weight of the past that another framework has for the latest batch.
OF_ANOTHER = 0.2
# Calls in which means jump, and after which statistics must have been fed.
_ENOUGH_JUMPS, _ENOUGH_FOR_FEEDING = 5, 8
# Steps of training before an evaluation, and evaluations that are looked at.
_LEAST_STEPS, _MOST_EVALUATIONS = 3, 3
# Layers that are looked at, and named.
_MOST_LAYERS, _MOST_NAMED = 16, 8
_MEAN, _VARIANCE = "mean", "var"
# Equations of a program that run a program of their own, once.
_CALLS = frozenset({"pjit", "jit", "closed_call", "core_call", "remat", "checkpoint"})
_SAME = frozenset({"convert_element_type", "copy", "copy_p", "stop_gradient"})

Arrays = NDArray[np.float64]


class _Layer(NamedTuple):
    """The running statistics of a layer, by their places among all."""

    name: str
    mean: int
    variance: int


class TrainedStatistics:
    """Looks at the running statistics in the first calls of a step of training.

    Args:
        session: Receives what is seen.
        reader: Finds statistics and parameters among the arguments.

    Attributes:
        is_on: Whether calls are to be looked at.
    """

    def __init__(self, session: Session, reader: ArgumentReader) -> None:
        self._session = session
        self._reader = reader
        self._n_calls = 0
        # Layers whose past weighs little, that weight, and how far their means jump.
        self._layers: list[_Layer] = []
        self._momentum = 0.0
        self._before: list[Arrays] = []
        self._jumps: list[float] = []
        self._infers = False
        self.is_on = True

    def look(
        self,
        compiled: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        outputs: Any,
    ) -> None:
        """Look at one call of the step, which has returned.

        Args:
            compiled: What ``jax.jit`` has made of the step.
            args: Positional arguments.
            kwargs: Named ones.
            outputs: What it returned.
        """
        self.is_on = False  # Also if anything below fails.
        self._n_calls += 1
        statistics = self._reader.of_step(args, kwargs).statistics
        if statistics is None:
            return
        if self._n_calls == 1:
            self._look_at_program(compiled, args, kwargs, outputs)
        if self._layers:
            self._look_at_jumps(statistics, outputs)
        if self._infers and self._n_calls >= _ENOUGH_FOR_FEEDING:
            self._infers = False
            if are_initial(statistics):
                names = layers_in(statistics)
                self._observe(
                    Fault.NEVER_FED,
                    names,
                    {"layers": float(len(names))},
                    {"how": "used"},
                )
        self.is_on = bool(self._layers) or self._infers

    def _look_at_program(
        self,
        compiled: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        outputs: Any,
    ) -> None:
        found = self._reader.of_step(args, kwargs)
        closed = program_of(compiled, args, kwargs)
        if closed is None:
            return
        program = closed.jaxpr
        inputs = _places_of(found.statistics, (args, kwargs))
        if inputs is None or len(program.invars) != _count((args, kwargs)):
            return
        trained = _subtree_like(found.parameters, outputs)
        places = None if trained is None else _places_of(trained, outputs)
        if places and len(program.outvars) == _count(outputs):
            flags = [i in set(places) for i in range(len(program.outvars))]
            used = partial_eval.dce_jaxpr(program, flags)[1]
            self._infers = any(used[i] for i in inputs)
        returned = _subtree_like(found.statistics, outputs)
        ends = None if returned is None else _places_of(returned, outputs)
        if ends is not None and len(ends) == len(inputs):
            weights = {
                i: momentum_of(program, program.outvars[end], program.invars[start])
                for i, (start, end) in enumerate(zip(inputs, ends, strict=True))
            }
            self._find_layers(found.statistics, weights)

    def _find_layers(
        self, statistics: Any, weights: Mapping[int, float | None]
    ) -> None:
        for layer in _layers_of(statistics):
            weight = weights.get(layer.mean)
            if weight is not None and 0 < weight <= OF_ANOTHER:
                self._layers.append(layer)
                self._momentum = weight
        self._layers = self._layers[:_MOST_LAYERS]

    def _look_at_jumps(self, statistics: Any, outputs: Any) -> None:
        returned = _subtree_like(statistics, outputs)
        leaves = jax.tree_util.tree_leaves(returned)
        asked = [i for each in self._layers for i in (each.mean, each.variance)]
        if not leaves or not all(is_readable(leaves[i]) for i in asked):
            self._layers = []
            return
        before, self._before = (
            self._before,
            [np.asarray(leaves[i]).astype(np.float64) for i in asked],
        )
        if not before:
            return
        self._jumps.append(
            max(
                distance(before[i : i + 2], self._before[i : i + 2])
                for i in range(0, len(asked), 2)
            )
        )
        if len(self._jumps) < _ENOUGH_JUMPS:
            return
        names = tuple(each.name for each in self._layers)
        self._layers, self._before = [], []
        if any(self._jumps):
            numbers = {
                "distance": median(self._jumps[1:]),
                "layers": float(len(names)),
                "momentum": round(self._momentum, 6),
            }
            self._observe(Fault.MOMENTUM_OF_ANOTHER_FRAMEWORK, names, numbers, {})

    def _observe(
        self,
        fault: Fault,
        names: tuple[str, ...],
        numbers: dict[str, float],
        words: dict[str, str],
    ) -> None:
        step = max(0, self._session.latest_step(TRAIN)[0])
        named = names[:_MOST_NAMED] or ("model",)
        self._session.observe(Observation(fault, step, named, numbers, words))


class IgnoredStatistics:
    """Sees evaluations that are given running statistics, and use those of the batch.

    Args:
        session: Receives what is seen.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._n_looks = 0

    def look(
        self,
        reader: ArgumentReader,
        compiled: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        outputs: Any,
    ) -> None:
        """Look at one evaluation, which has returned.

        Args:
            reader: Finds statistics and parameters in it.
            compiled: What ``jax.jit`` has made of the evaluation.
            args: Positional arguments.
            kwargs: Named ones.
            outputs: What it returned.
        """
        if self._n_looks >= _MOST_EVALUATIONS:
            return
        if self._session.n_training_steps < _LEAST_STEPS:
            return
        self._n_looks += 1
        found = reader.of_step(args, kwargs)
        if found.statistics is None or found.parameters is None:
            return
        used = _used_by_answers(compiled, args, kwargs, outputs, found.statistics)
        of_statistics, of_parameters = (
            any(used[i] for i in _places_of(each, (args, kwargs)) or ())
            if used
            else False
            for each in (found.statistics, found.parameters)
        )
        if of_parameters and not of_statistics:
            self._n_looks = _MOST_EVALUATIONS
            names = layers_in(found.statistics)
            self._session.observe(
                Observation(
                    Fault.EVALUATED_BY_BATCH,
                    max(0, self._session.latest_step(TRAIN)[0]),
                    names[:_MOST_NAMED],
                    {"layers": float(len(names))},
                )
            )


def _used_by_answers(
    compiled: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    outputs: Any,
    statistics: Any,
) -> list[bool]:
    """Return which arguments the answers of a model are computed with; none: unknown.

    Statistics that it returns are no answer, and neither is what it hands on.
    """
    closed = program_of(compiled, args, kwargs)
    program = None if closed is None else closed.jaxpr
    if program is None or len(program.invars) != _count((args, kwargs)):
        return []
    if len(program.outvars) != _count(outputs):
        return []
    if _places_of(statistics, (args, kwargs)) is None:
        return []
    returned = _subtree_like(statistics, outputs)
    own = set(_places_of(returned, outputs) or ())
    inputs = set(program.invars)
    flags = [
        i not in own and not isinstance(each, Literal) and each not in inputs
        for i, each in enumerate(program.outvars)
    ]
    return list(partial_eval.dce_jaxpr(program, flags)[1])


def momentum_of(program: Any, output: Any, given: Any) -> float | None:
    """Return the weight of the past in a running average; None: it is none.

    Args:
        program: The program that computes it.
        output: The variable of the average.
        given: That of the average before.

    Example:
        >>> def average(old, new):
        ...     return 0.9 * old + 0.1 * new
        >>> program = jax.make_jaxpr(average)(1.0, 2.0).jaxpr
        >>> momentum_of(program, program.outvars[0], program.invars[0])
        0.9
    """
    scope = _Scope(program, None, None)
    name, values = scope.made(output)
    if name != "add":
        return None
    for inner, value in values:
        factor, operands = inner.made(value)
        if factor != "mul" or len(operands) != 2:
            continue
        for (_, one), (other_scope, other) in (operands, operands[::-1]):
            if isinstance(one, Literal) and other_scope.origin(other) is given:
                return round(float(np.asarray(one.val)), 6)
    return None


class _Scope:
    """A program, as part of the one that calls it."""

    def __init__(self, program: Any, outer: _Scope | None, call: Any) -> None:
        self._outer = outer
        self._given = (
            {} if call is None else dict(zip(program.invars, call.invars, strict=False))
        )
        self._by = {var: each for each in program.eqns for var in each.outvars}

    def made(self, value: Any) -> tuple[str, list[tuple[_Scope, Any]]]:
        """Return the operation that has made a value, and its operands."""
        scope, value = self._source(value)
        equation = None if isinstance(value, Literal) else scope._by.get(value)
        if equation is None:
            return "", []
        return equation.primitive.name, [(scope, each) for each in equation.invars]

    def origin(self, value: Any) -> Any:
        """Return the variable of the outermost program that a value is."""
        return self._source(value)[1]

    def _source(self, value: Any) -> tuple[_Scope, Any]:
        scope: _Scope = self
        while not isinstance(value, Literal):
            equation = scope._by.get(value)
            if equation is None:
                if scope._outer is None or value not in scope._given:
                    break
                scope, value = scope._outer, scope._given[value]
                continue
            name = equation.primitive.name
            if name in _SAME:
                value = equation.invars[0]
                continue
            inner = equation.params.get("jaxpr") if name in _CALLS else None
            if inner is None:
                break
            inner = getattr(inner, "jaxpr", inner)
            if len(inner.outvars) != len(equation.outvars):
                break
            place = list(equation.outvars).index(value)
            scope, value = _Scope(inner, scope, equation), inner.outvars[place]
        return scope, value


def _count(tree: Any) -> int:
    return len(jax.tree_util.tree_leaves(tree))


def _subtree_like(tree: Any, outputs: Any) -> Any:
    form = None if tree is None else form_of(tree)
    if form is None or not form.is_container:
        return None
    way = find_subtree(outputs, form)
    return None if way is None else subtree_at(outputs, way)


def _places_of(tree: Any, whole: Any) -> list[int] | None:
    """Return where the leaves of a tree are among those of the whole."""
    places = {id(leaf): i for i, leaf in enumerate(jax.tree_util.tree_leaves(whole))}
    found = [places.get(id(leaf), -1) for leaf in jax.tree_util.tree_leaves(tree)]
    return None if -1 in found or not found else found


def _layers_of(statistics: Any) -> Iterator[_Layer]:
    """Yield the layers that have a mean and a variance."""
    leaves = jax.tree_util.tree_flatten_with_path(statistics)[0]
    names = [path_name(path).rpartition("/") for path, _ in leaves]
    places = {(path, key): i for i, (path, _, key) in enumerate(names)}
    for (path, key), i in places.items():
        variance = places.get((path, _VARIANCE))
        if key == _MEAN and variance is not None:
            yield _Layer(path or "model", i, variance)


def distance(one: Sequence[Arrays], other: Sequence[Arrays]) -> float:
    """Return how far means are apart, in deviations, on average over the channels."""
    deviations = np.sqrt(np.maximum(np.maximum(one[1], other[1]), 1e-24))
    return float((np.abs(one[0] - other[0]) / deviations).mean())
