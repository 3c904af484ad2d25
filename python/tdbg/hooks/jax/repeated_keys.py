"""See random numbers that are the same in each step, as their key never changes.

A random number of JAX is a function of its key.  A step that is called with one key
again and again, or makes its key of a constant, drops the same units of each batch.
The program of a step shows which random numbers depend on nothing that changes between
calls, and where they meet what does.

Thread safety: the training's thread.

Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal
from jax.interpreters import partial_eval

from tdbg.capture.session import Session
from tdbg.hooks.jax.arguments import ArgumentReader, has_model
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = ["Repeated", "RepeatedKeys", "repeated_in"]

# Calls with other parameters each, and calls that are looked at.
_ENOUGH, _MOST_CALLS = 8, 24
# Elements of an argument that may be a key.
_MOST_ELEMENTS = 4096
_DRAWING = frozenset({"random_bits", "random_gamma", "rng_bit_generator"})
# Where noise or a mask meets a value of its own shape.
_ELEMENTWISE = frozenset(
    {"add", "and", "div", "max", "min", "mul", "or", "pow", "select_n", "sub"}
)
# Names of the functions of jax.random, as programs have them.
_FUNCTIONS = frozenset(
    {
        "bernoulli",
        "categorical",
        "exponential",
        "gumbel",
        "laplace",
        "normal",
        "rademacher",
        "randint",
        "truncated_normal",
        "uniform",
    }
)
_MASKS = "bernoulli"
# What is known of a value: it changes between calls, it is always the same and comes
# from the arguments, or (None) it is always the same and comes from the program.
_CHANGES, _GIVEN = "changes", "given"


class _Drawn(NamedTuple):
    """Random numbers that are always the same.

    Attributes:
        function: The function of ``jax.random`` that has drawn them.
        shape: Of their bits.
        is_given: Whether their key is an argument.
    """

    function: str
    shape: tuple[int, ...]
    is_given: bool


class Repeated(NamedTuple):
    """Random numbers that meet what changes, and are always the same.

    Attributes:
        function: The function of ``jax.random`` that has drawn them.
        shape: Their shape.
        is_given: Whether their key is an argument.
        is_of_samples: Whether each sample of the batch has its own.
        meets_samples: Whether all samples of the batch meet the same.
    """

    function: str
    shape: tuple[int, ...]
    is_given: bool
    is_of_samples: bool
    meets_samples: bool

    @property
    def is_sure(self) -> bool:
        """Whether nobody means them to repeat.

        The random numbers that all samples share may be part of the model, unless the
        step is given the key for a mask of its units.
        """
        is_of_units = self.meets_samples and self.is_given and self.function == _MASKS
        return self.is_of_samples or is_of_units


class RepeatedKeys:
    """Compares the keys that the calls of a step are given.

    Args:
        session: Receives what is seen.
        reader: Finds the parameters among the arguments.

    Attributes:
        is_on: Whether calls are to be looked at: most programs have another key in
            the second call, or draw nothing.
    """

    def __init__(self, session: Session, reader: ArgumentReader) -> None:
        self._session = session
        self._reader = reader
        # Arguments that may be keys, by their places, as long as they do not change.
        self._same: dict[int, Any] = {}
        self._parameter: weakref.ref[Any] | None = None
        self._batch: list[weakref.ref[Any]] = []
        self._has_other_batches = False
        self._n_calls = self._n_same = 0
        self.is_on = True

    def look(
        self, compiled: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Look at one call of the step, which has returned.

        Args:
            compiled: What ``jax.jit`` has made of the step.
            args: Positional arguments.
            kwargs: Named ones.
        """
        self.is_on = False  # Also if anything below fails.
        leaves = jax.tree_util.tree_leaves((args, kwargs))
        is_first = not self._n_calls
        self._n_calls += 1
        if is_first:
            self._same = {
                i: _value_of(leaf) for i, leaf in enumerate(leaves) if _may_be_key(leaf)
            }
            if not self._found(compiled, args, kwargs, leaves):
                return
        elif self._drop_changed(leaves) and not self._found(
            compiled, args, kwargs, leaves
        ):
            return
        self._n_same += self._note_change(args, kwargs)
        if self._n_same < _ENOUGH:
            self.is_on = self._n_calls < _MOST_CALLS
            return
        found = self._found(compiled, args, kwargs, leaves)
        self._report(max(found, key=_importance))

    def _drop_changed(self, leaves: Sequence[Any]) -> bool:
        """Leave out what has changed; return whether anything has."""
        before = len(self._same)
        self._same = {
            i: value
            for i, value in self._same.items()
            if i < len(leaves) and _is_equal(leaves[i], value)
        }
        return len(self._same) < before

    def _note_change(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether the parameters are others than those of the last call."""
        parameters = self._reader.of_step(args, kwargs).parameters
        arrays = filter(_is_array, jax.tree_util.tree_leaves(parameters))
        latest = next(arrays, None)
        known = self._parameter and self._parameter()
        self._parameter = None if latest is None else weakref.ref(latest)
        batch = self._batch_of(args, kwargs)
        if self._batch and any(
            one() is not other for one, other in zip(self._batch, batch, strict=False)
        ):
            self._has_other_batches = True
        self._batch = [weakref.ref(each) for each in batch]
        return latest is not None and known is not latest

    def _found(
        self,
        compiled: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        leaves: Sequence[Any],
    ) -> Sequence[Repeated]:
        program = _program_of(compiled, args, kwargs)
        if program is None or len(leaves) != len(program.invars):
            return ()
        states = [_GIVEN if i in self._same else _CHANGES for i in range(len(leaves))]
        sizes = {len(each) for each in self._batch_of(args, kwargs)}
        parameters = self._reader.of_step(args, kwargs).parameters
        shapes = {np.shape(each) for each in jax.tree_util.tree_leaves(parameters)}
        return repeated_in(program, states, sizes, shapes)

    def _batch_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arrays that are neither the model's nor keys."""
        leaves = jax.tree_util.tree_leaves
        known = set(map(id, leaves(self._reader.of_step(args, kwargs))))
        return [
            leaf
            for value in (*args, *kwargs.values())
            if not has_model(value)
            for leaf in leaves(value)
            if id(leaf) not in known
            and _is_array(leaf)
            and leaf.ndim
            and not _may_be_key(leaf)
        ]

    def _report(self, found: Repeated) -> None:
        is_mask = found.function == _MASKS
        is_sure = found.is_sure and (is_mask or self._has_other_batches)
        self._session.observe(
            Observation(
                Fault.RANDOM_NUMBERS_REPEAT,
                max(0, self._session.latest_step(TRAIN)[0]),
                (found.function,),
                {"calls": float(self._n_same), "samples": float(is_sure)},
                {
                    "function": f"jax.random.{found.function}",
                    "shape": " x ".join(map(str, found.shape)),
                    "source": "argument" if found.is_given else "step",
                },
            )
        )


def repeated_in(
    program: Any,
    states: Sequence[str],
    sizes: Collection[int],
    shapes: Collection[tuple[int, ...]] = (),
) -> Sequence[Repeated]:
    """Return the random numbers of a program that are the same in each call.

    Args:
        program: The jaxpr.
        states: Of each argument: whether it changes between calls.
        sizes: Numbers of samples that a batch may have.
        shapes: Of the parameters, which have no samples.

    Example:
        >>> def step(x, key):
        ...     return x * jax.random.bernoulli(key, 0.5, x.shape)
        >>> program = jax.make_jaxpr(step)(np.ones((8, 3)), jax.random.key(0)).jaxpr
        >>> [each.function for each in repeated_in(program, ["changes", "given"], {8})]
        ['bernoulli']
        >>> repeated_in(program, ["changes", "changes"], {8})
        []
    """
    program, used = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))
    given = [state for state, is_used in zip(states, used, strict=True) if is_used]
    reading = _Reading()
    reading.read(program, given, ())

    def is_of_samples(shape: tuple[int, ...]) -> bool:
        return bool(shape) and shape[0] in sizes and shape not in shapes

    met: dict[_Drawn, bool] = {}
    for drawn, shape in reading.met:
        met[drawn] = met.get(drawn, False) or is_of_samples(shape)
    return [
        Repeated(*drawn, is_of_samples(drawn.shape), meets)
        for drawn, meets in met.items()
    ]


@dataclass
class _Reading:
    """Follows values through a program.

    Attributes:
        met: Random numbers that have met what changes, element by element, and the
            shape in which they did.
        notes: Whether such are noted.
    """

    met: list[tuple[_Drawn, tuple[int, ...]]] = field(default_factory=list)
    notes: bool = True

    def read(self, program: Any, given: Sequence[Any], path: Sequence[str]) -> Any:
        """Return what is known of the outputs of a program, by that of its inputs."""
        known = dict(zip(program.invars, given, strict=True))

        def of(variable: Any) -> Any:
            return None if isinstance(variable, Literal) else known.get(variable)

        for equation in program.eqns:
            states = [of(each) for each in equation.invars]
            results = self._results(equation, states, path)
            known.update(zip(equation.outvars, results, strict=True))
        return [of(each) for each in program.outvars]

    def _results(self, equation: Any, states: list[Any], path: Sequence[str]) -> Any:
        name, parameters = equation.primitive.name, equation.params
        n = len(equation.outvars)
        if name in _DRAWING:
            return [_drawn(equation, states, path)] * n
        if name == "scan":
            n_fixed, n_carried = parameters["num_consts"], parameters["num_carry"]
            body = parameters["jaxpr"].jaxpr
            return self._repeat(body, states, n_fixed, n_carried, path)
        if name == "while":
            n_test, n_fixed = parameters["cond_nconsts"], parameters["body_nconsts"]
            body, states = parameters["body_jaxpr"].jaxpr, states[n_test:]
            return self._repeat(body, states, n_fixed, len(states) - n_fixed, path)
        if name == "cond":
            ways = [
                self.read(each.jaxpr, states[1:], path)
                for each in parameters["branches"]
            ]
            return [
                _CHANGES if states[0] == _CHANGES else _joined(each)
                for each in zip(*ways, strict=True)
            ]
        inner = _program_in(parameters, len(states))
        if inner is not None and len(inner.outvars) == n:
            return self.read(inner, states, (*path, str(parameters.get("name", ""))))
        self._note_meeting(equation, states)
        return [_joined(states)] * n

    def _repeat(
        self,
        body: Any,
        states: list[Any],
        n_fixed: int,
        n_carried: int,
        path: Sequence[str],
    ) -> Any:
        """Follow a loop until what it carries is known."""
        fixed, carried = states[:n_fixed], states[n_fixed : n_fixed + n_carried]
        rest, notes = states[n_fixed + n_carried :], self.notes
        self.notes = False
        try:
            for _ in range(n_carried + 1):
                results = self.read(body, [*fixed, *carried, *rest], path)
                after = [
                    _joined(pair)
                    for pair in zip(carried, results[:n_carried], strict=True)
                ]
                if after == carried:
                    break
                carried = after
        finally:
            self.notes = notes
        return self.read(body, [*fixed, *carried, *rest], path)

    def _note_meeting(self, equation: Any, states: Sequence[Any]) -> None:
        if not self.notes or equation.primitive.name not in _ELEMENTWISE:
            return
        if _CHANGES in states:
            shape = tuple(map(int, np.shape(equation.outvars[0].aval)))
            self.met += [
                (state, shape)
                for state, variable in zip(states, equation.invars, strict=True)
                if isinstance(state, _Drawn) and np.size(variable.aval) > 1
            ]


def _program_of(compiled: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the jaxpr of a call, which is traced already; None: it has none."""
    trace = getattr(compiled, "trace", None)
    if trace is None:
        return None
    program = getattr(trace(*args, **kwargs), "jaxpr", None)
    return getattr(program, "jaxpr", None)


def _drawn(equation: Any, states: Sequence[Any], path: Sequence[str]) -> Any:
    if _CHANGES in states:
        return _CHANGES
    names = [each.lstrip("_").removesuffix("_real") for each in path]
    function = next((each for each in names if each in _FUNCTIONS), "bits")
    shape = tuple(map(int, equation.outvars[-1].aval.shape))
    return _Drawn(function, shape, _joined(states) is not None)


def _joined(states: Sequence[Any]) -> Any:
    """Return what is known of a value that is computed of others."""
    if _CHANGES in states:
        return _CHANGES
    drawn = next((each for each in states if isinstance(each, _Drawn)), None)
    return drawn or (_GIVEN if _GIVEN in states else None)


def _program_in(parameters: Mapping[str, Any], n: int) -> Any:
    """Return the program that an equation calls with its own arguments."""
    for each in parameters.values():
        program = getattr(each, "jaxpr", each)
        if len(getattr(program, "invars", ())) == n and hasattr(program, "eqns"):
            return program
    return None


def _importance(found: Repeated) -> tuple[bool, bool]:
    return found.is_sure, found.function == _MASKS


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _may_be_key(leaf: Any) -> bool:
    """Return whether a leaf may be a key, or a count that makes others of one."""
    if isinstance(leaf, bool | int):
        return True
    if not _is_array(leaf) or leaf.size > _MOST_ELEMENTS:
        return False
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return True
    is_key = leaf.dtype == np.uint32 and leaf.ndim > 0 and leaf.shape[-1] in {2, 4}
    return is_key or (not leaf.ndim and np.issubdtype(leaf.dtype, np.integer))


def _value_of(leaf: Any) -> Any:
    """Return the leaf, or a copy of what the program may change in place."""
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _is_equal(leaf: Any, known: Any) -> bool:
    if leaf is known:
        return True
    if not _may_be_key(leaf) or any(map(_is_gone, (leaf, known))):
        return False
    return np.array_equal(_numbers(leaf), _numbers(known))


def _is_gone(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array):
        return False
    return leaf.is_deleted() or not leaf.is_fully_addressable


def _numbers(leaf: Any) -> Any:
    if _is_array(leaf) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)
