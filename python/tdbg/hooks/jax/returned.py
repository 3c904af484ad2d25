"""See what steps return, and the training throws away.

A step of JAX changes nothing in place.  Running statistics and the state of an
optimizer go on only if each call is given what the last one has returned.  If a call is
given the same arrays again, although the last one returned others for them, nobody has
kept these.  A tree that was given is found among the outputs by its form.

Several devices may hold all of an array.  Then all of them count as equal, and nobody
checks that they are.

Thread safety: the training's thread.

Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal
from jax.interpreters import partial_eval

from tdbg.capture.session import Session
from tdbg.hooks.jax.arguments import ArgumentReader, OfStep
from tdbg.hooks.jax.names import path_name
from tdbg.hooks.jax.programs import program_of
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = [
    "Evaluations",
    "Form",
    "ReturnedTrees",
    "are_initial",
    "find_subtree",
    "form_of",
    "is_readable",
    "layers_in",
    "subtree_at",
]

# Calls that are given the same arrays, one after the other, and calls looked at.
_ENOUGH, _MOST_CALLS = 8, 24
# Steps of training before an evaluation, and evaluations that are looked at.
_LEAST_STEPS, _MOST_EVALUATIONS = 3, 3
# The call at which copies of parameters are compared, and the share of their size that
# rounding may explain: devices compute what they share each for itself.
_CALL_OF_COPIES, _ROUNDING = 2, 1e-5
# Arrays that are compared, each of this size at most; layers that are named.
_MOST_ARRAYS, _MOST_ELEMENTS, _MOST_NAMED = 16, 1 << 16, 8


class Form(NamedTuple):
    """A structure by which pytrees of the same arrays are recognized later."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]

    @property
    def is_container(self) -> bool:
        """Whether the structure has arrays, and is more than one array."""
        return bool(self.shapes) and not jax.tree_util.treedef_is_leaf(self.structure)


class _Given(NamedTuple):
    """Arrays that a call was given.

    Attributes:
        arrays: They, not kept alive.
        n_same: In how many calls before they were the same, and others returned.
    """

    arrays: tuple[weakref.ref[Any], ...]
    n_same: int = 0

    def has(self, leaves: Sequence[Any]) -> bool:
        """Return whether these are the same arrays."""
        return len(leaves) == len(self.arrays) and all(
            known() is leaf for known, leaf in zip(self.arrays, leaves, strict=True)
        )


class Evaluations:
    """Sees evaluations with running statistics that no training has fed.

    Args:
        session: Receives what is seen.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        # Statistics that steps of training are given, and do not compute with.
        self._unused: set[Form] = set()
        self._n_looks = 0

    def not_used_by_training(self, statistics: Any) -> None:
        """Note that a step of training returns statistics as it was given them."""
        self._unused.add(form_of(statistics))

    def look(
        self,
        reader: ArgumentReader,
        compiled: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Look at what an evaluation was called with.

        Args:
            reader: Finds statistics in it.
            compiled: What ``jax.jit`` has made of the evaluation.
            args: Positional arguments.
            kwargs: Named ones.
        """
        session = self._session
        if not self._unused or self._n_looks >= _MOST_EVALUATIONS:
            return
        if session.n_training_steps < _LEAST_STEPS:
            return
        self._n_looks += 1
        statistics = reader.of_step(args, kwargs).statistics
        if statistics is None or form_of(statistics) not in self._unused:
            return
        if are_initial(statistics) and _computes_with(
            compiled, args, kwargs, statistics
        ):
            self._n_looks = _MOST_EVALUATIONS
            step = max(0, session.latest_step(TRAIN)[0])
            names = layers_in(statistics)
            numbers = {"layers": float(len(names))}
            session.observe(
                Observation(Fault.NEVER_FED, step, names[:_MOST_NAMED], numbers)
            )


class ReturnedTrees:
    """Compares what a step of training returns with what the next call is given.

    Args:
        session: Receives what is seen.
        reader: Finds parameters, statistics and states among the arguments.
        evaluations: Learns which statistics the step does not compute with.

    Attributes:
        is_on: Whether calls are to be looked at: most programs show in two of them
            that they keep everything.
        makes_state: Whether the step makes the state that its optimizer uses.
    """

    def __init__(
        self, session: Session, reader: ArgumentReader, evaluations: Evaluations
    ) -> None:
        self._session = session
        self._reader = reader
        self._evaluations = evaluations
        self._parameters = _Given(())
        self._given: dict[Fault, _Given] = {}
        self._n_calls = 0
        # Whether a state that has counted no step was another than that before.
        self._is_made_anew = False
        self._n_made = 0
        # Whether the step computes with a state, and returns it as it was.
        self._hands_state_on = False
        self.makes_state = False
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
        self._n_calls += 1
        self.is_on = False  # Also if anything below fails.
        found = self._reader.of_step(args, kwargs)
        trained = _arrays(found.parameters)
        has_moved = not self._parameters.has(trained)
        self._parameters = _given(trained)
        followed = {
            Fault.STATISTICS_DROPPED: found.statistics,
            Fault.OPTIMIZER_STATE_DROPPED: found.state,
        }
        if self._n_calls == 1 and found.statistics is not None:
            self._look_at_statistics(compiled, args, kwargs, found)
        if self._n_calls == _ENOUGH and self._hands_state_on:
            self._observe_state("handed on")
        elif self._n_calls == 1 and found.state is not None:
            self._hands_state_on = _hands_on(
                compiled, args, kwargs, found.state, outputs
            )
        self._hands_state_on &= has_moved
        for fault, tree in followed.items():
            known = self._given.get(fault)
            if tree is None or (self._n_calls > 1 and known is None):
                continue
            self._follow(fault, known, tree, outputs, has_moved=has_moved)
        has_copies = self._look_at_copies(found.parameters, outputs)
        follows = bool(self._given) or self._makes_another(has_moved)
        follows |= self._hands_state_on and self._n_calls < _ENOUGH
        follows = follows and self._n_calls < _MOST_CALLS
        self.is_on = follows or has_copies

    def _makes_another(self, has_moved: bool) -> bool:
        """Count a call that made a state of the optimizer; return whether to go on."""
        if not self.makes_state:
            return False
        self._n_made += has_moved
        if self._n_made == _ENOUGH:
            self._observe_state("inside")
        return self._n_made < _ENOUGH

    def _observe_state(self, how: str) -> None:
        fault, numbers = Fault.OPTIMIZER_STATE_DROPPED, {"calls": float(_ENOUGH)}
        step = max(0, self._session.latest_step(TRAIN)[0])
        names, words = ("optimizer",), {"how": how}
        self._session.observe(Observation(fault, step, names, numbers, words))

    def _look_at_copies(self, parameters: Any, outputs: Any) -> bool:
        """Compare the copies of parameters that devices hold, once.

        Returns:
            Whether the next call is to be looked at: updates of the first one are those
            of the smallest learning rate.
        """
        if self._n_calls > _CALL_OF_COPIES or parameters is None:
            return False
        form = form_of(parameters)
        way = find_subtree(outputs, form) if form.is_container else None
        if way is None:
            return False
        leaves = jax.tree_util.tree_flatten_with_path(subtree_at(outputs, way))[0]
        shared = [(path_name(path), leaf) for path, leaf in leaves if _is_shared(leaf)]
        if not shared or self._n_calls < _CALL_OF_COPIES:
            return bool(shared)
        distances = {
            name: distance
            for name, array in shared[:_MOST_ARRAYS]
            if (distance := _distance_of_copies(array)) > _ROUNDING
        }
        if distances:
            names = tuple(sorted(distances, key=distances.__getitem__, reverse=True))
            devices = sorted(each.device.id for each in shared[0][1].addressable_shards)
            step = max(0, self._session.latest_step(TRAIN)[0])
            numbers = {
                "relative": distances[names[0]],
                "differ": float(len(names)),
                "tensors": float(len(shared[:_MOST_ARRAYS])),
            }
            words = {"ranks": ", ".join(map(str, devices))}
            self._session.observe(
                Observation(
                    Fault.REPLICAS_DEVICES, step, names[:_MOST_NAMED], numbers, words
                )
            )
        return False

    def _follow(
        self,
        fault: Fault,
        known: _Given | None,
        tree: Any,
        outputs: Any,
        *,
        has_moved: bool,
    ) -> None:
        """Count a call that was given the arrays of the last one, though not kept.

        Arrays that are kept, or are never returned, are followed no longer.  States of
        an optimizer that have counted no step count, too: the program makes them anew.
        """
        leaves = _arrays(tree)
        self._given.pop(fault, None)
        if known is not None and not known.has(leaves):
            is_state = fault is Fault.OPTIMIZER_STATE_DROPPED
            if not is_state or not _has_not_begun(tree):
                return
            self._is_made_anew = True
        form = form_of(tree)
        way = find_subtree(outputs, form) if form.is_container else None
        if way is None:
            return
        n_same = 0 if known is None else known.n_same
        if known is None or has_moved:
            n_same += 1
        if n_same < _ENOUGH:
            self._given[fault] = _given(leaves)._replace(n_same=n_same)
        elif _differ(fault, tree, subtree_at(outputs, way)):
            self._observe(fault, tree, n_same)

    def _look_at_statistics(
        self,
        compiled: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        found: OfStep,
    ) -> None:
        """Note statistics that the step does not compute with, as batches have own."""
        if not _computes_with(compiled, args, kwargs, found.statistics):
            self._evaluations.not_used_by_training(found.statistics)

    def _observe(self, fault: Fault, tree: Any, n_calls: int) -> None:
        step = max(0, self._session.latest_step(TRAIN)[0])
        numbers = {"calls": float(n_calls)}
        names: tuple[str, ...] = ("optimizer",)
        if fault is Fault.STATISTICS_DROPPED:
            names = layers_in(tree)
            numbers["layers"] = len(names)
            numbers["initial"] = float(are_initial(tree))
        made = fault is Fault.OPTIMIZER_STATE_DROPPED and self._is_made_anew
        words = {"how": "made"} if made else {}
        self._session.observe(
            Observation(fault, step, names[:_MOST_NAMED] or ("model",), numbers, words)
        )


def _arrays(tree: Any) -> list[Any]:
    leaves = jax.tree_util.tree_leaves(tree)
    return [each for each in leaves if isinstance(each, jax.Array | np.ndarray)]


def _is_shared(array: Any) -> bool:
    """Return whether several devices of this process hold all of an array."""
    return (
        is_readable(array)
        and isinstance(array, jax.Array)
        and array.is_fully_replicated
        and len(array.addressable_shards) > 1
        and bool(jax.numpy.issubdtype(array.dtype, jax.numpy.floating))
    )


def _distance_of_copies(array: jax.Array) -> float:
    """Return the largest difference to the first copy, as a share of its size."""
    first, *others = (
        np.asarray(each.data).astype(np.float64) for each in array.addressable_shards
    )
    size = float(np.abs(first).max(initial=0.0)) or 1.0
    gaps = [float(np.abs(first - each).max(initial=0.0)) for each in others]
    largest = max(gaps)
    return largest / size if np.isfinite(largest) else 0.0


def _given(leaves: Sequence[Any]) -> _Given:
    return _Given(tuple(map(weakref.ref, leaves)))


def _differ(fault: Fault, given: Any, returned: Any) -> bool:
    """Return whether a step has made something new of what it was given.

    A state of an optimizer must have counted one step: a call of more steps is a
    training of its own, which may begin anew each time (meta-learning).
    """
    pairs = [
        (np.asarray(one), np.asarray(other))
        for one, other in zip(
            *map(jax.tree_util.tree_leaves, (given, returned)), strict=True
        )
        if is_readable(one) and is_readable(other)
    ]
    if fault is Fault.OPTIMIZER_STATE_DROPPED:
        counts = [
            int(other) - int(one)
            for one, other in pairs
            if not one.ndim and np.issubdtype(one.dtype, np.integer)
        ]
        return bool(counts) and set(counts) == {1}
    return any(not np.array_equal(*pair) for pair in pairs[:_MOST_ARRAYS])


def _has_not_begun(state: Any) -> bool:
    """Return whether a state of an optimizer counts steps, and has counted none."""
    counts = [
        np.asarray(each)
        for each in jax.tree_util.tree_leaves(state)
        if is_readable(each) and not each.ndim and np.issubdtype(each.dtype, np.integer)
    ]
    return bool(counts) and not any(counts)


def is_readable(array: Any) -> bool:
    """Return whether the values of an array are at hand, and few."""
    if isinstance(array, np.ndarray):
        return array.size <= _MOST_ELEMENTS
    return (
        isinstance(array, jax.Array)
        and array.size <= _MOST_ELEMENTS
        and not array.is_deleted()
        and array.is_fully_addressable
        and not jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended)
    )


def are_initial(statistics: Any) -> bool:
    """Return whether all means are 0 and all variances 1, as layers make them."""
    n_means = 0
    leaves = jax.tree_util.tree_flatten_with_path(statistics)[0]
    for path, array in leaves[: 2 * _MOST_ARRAYS]:
        if not is_readable(array):
            return False
        is_mean = path_name(path).endswith("mean")
        n_means += is_mean
        if not (np.asarray(array) == (0 if is_mean else 1)).all():
            return False
    return n_means > 0


def layers_in(statistics: Any) -> tuple[str, ...]:
    """Return the paths of the layers that have statistics."""
    leaves = jax.tree_util.tree_flatten_with_path(statistics)[0]
    paths = (path_name(path).rpartition("/")[0] for path, _ in leaves)
    return tuple(dict.fromkeys(path or "model" for path in paths))


def _computes_with(
    compiled: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    tree: Any,
) -> bool:
    """Return whether a function computes anything of a tree among its arguments.

    The program is known: nothing is traced for this.  Handing an array on is no
    computation.  Where nobody knows, the result is True.
    """
    try:
        program = program_of(compiled, args, kwargs).jaxpr
        leaves = jax.tree_util.tree_leaves((args, kwargs))
        if len(leaves) != len(program.invars):
            return True
        inputs = set(program.invars)
        computed = [
            not isinstance(each, Literal) and each not in inputs
            for each in program.outvars
        ]
        used = partial_eval.dce_jaxpr(program, computed)[1]
        asked = {id(leaf) for leaf in jax.tree_util.tree_leaves(tree)}
        return any(
            is_used
            for leaf, is_used in zip(leaves, used, strict=True)
            if id(leaf) in asked
        )
    except Exception:
        return True


def _hands_on(
    compiled: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    tree: Any,
    outputs: Any,
) -> bool:
    """Return whether a function computes with a tree, and returns it as it was."""
    form = form_of(tree)
    way = find_subtree(outputs, form) if form.is_container else None
    known = None if way is None else program_of(compiled, args, kwargs)
    if way is None or known is None:
        return False
    program, given = known.jaxpr, jax.tree_util.tree_leaves((args, kwargs))
    returned, structure = jax.tree_util.tree_flatten(outputs)
    fits = len(given) == len(program.invars) and len(returned) == len(program.outvars)
    if not fits:
        return False
    variable = dict(zip(map(id, given), program.invars, strict=True))
    places = jax.tree_util.tree_unflatten(structure, range(len(returned)))
    pairs = zip(
        jax.tree_util.tree_leaves(tree),
        jax.tree_util.tree_leaves(subtree_at(places, way)),
        strict=True,
    )
    is_same = all(
        program.outvars[place] is variable.get(id(leaf)) for leaf, place in pairs
    )
    return is_same and _computes_with(compiled, args, kwargs, tree)


def form_of(tree: Any) -> Form:
    """Return the form of a pytree of arrays, or of tracers."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return Form(structure, tuple(tuple(np.shape(leaf)) for leaf in leaves))


def find_subtree(tree: Any, form: Form) -> tuple[int, ...] | None:
    """Return the way to the first subtree of a form, outermost first; None: none is.

    Example:
        >>> params = {"w": np.ones((2, 3)), "b": np.ones(3)}
        >>> find_subtree((np.ones(4), [params, 1.0]), form_of(params))
        (1, 0)
    """
    level: list[tuple[tuple[int, ...], Any]] = [((), tree)]
    while level:
        below: list[tuple[tuple[int, ...], Any]] = []
        for way, node in level:
            if form_of(node) == form:
                return way
            children = _children(node)
            if len(children) != 1 or children[0] is not node:
                below += [((*way, i), each) for i, each in enumerate(children)]
        level = below
    return None


def subtree_at(tree: Any, way: Sequence[int]) -> Any:
    """Return the subtree at the end of a way of ``find_subtree``."""
    for index in way:
        tree = _children(tree)[index]
    return tree


def _children(node: Any) -> list[Any]:
    return list(jax.tree_util.tree_leaves(node, is_leaf=lambda each: each is not node))
