"""See values that a compiled step has taken in, and the program has replaced since.

``jax.jit`` reads variables from outside of the step, and attributes of ``self``, once:
when it traces the step.  Arrays become constants of the program, and numbers become
literals.  If the program gives such a variable other arrays or another number, the step
goes on with the first ones.

Thread safety: the training's thread.

Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal

from tdbg.capture.session import Session
from tdbg.hooks.jax.programs import program_of
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = ["ClosedOver", "held_by"]

# Calls that computed with replaced values, and calls that are looked at: of training,
# and of evaluations, which may have many batches.
_ENOUGH, _MOST_CALLS, _MOST_EVALUATED = 3, 24, 2000
# How deep functions that call each other are followed; variables, their arrays, and
# elements of an array that is compared.
_MOST_DEPTH, _MOST_VARIABLES, _MOST_LEAVES = 3, 256, 4096
_MOST_ELEMENTS, _MOST_LITERALS = 1 << 16, 1 << 14
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


class _Variable(NamedTuple):
    """A variable that a step reads.

    Attributes:
        name: As the program has it.
        read: Returns what it holds now.
    """

    name: str
    read: Callable[[], Any]


class _Taken(NamedTuple):
    """A variable of which a compiled step has taken in what it held.

    Attributes:
        variable: The variable.
        leaves: The arrays that are constants of the program, by their places.
        structure: Of all that it held.
    """

    variable: _Variable
    leaves: Mapping[int, Any]
    structure: Any


class _Number(NamedTuple):
    """A variable that held a number which a compiled step has as a literal.

    Attributes:
        variable: The variable.
        value: The number.
    """

    variable: _Variable
    value: float


class ClosedOver:
    """Compares what a step has taken in with what its variables hold.

    Args:
        session: Receives what is seen.
        function: The function that is compiled.

    Attributes:
        is_on: Whether calls are to be looked at: most steps take in nothing.
        has_numbers: Whether calls that are captured are to be looked at.
    """

    def __init__(self, session: Session, function: Callable[..., Any]) -> None:
        self._session = session
        self._function = function
        self._program: Any = None
        self._taken: list[_Taken] = []
        self._n_calls = 0
        self._n_stale: dict[str, int] = {}
        self._numbers: list[_Number] = []
        self.is_on = True
        self.has_numbers = False

    def look(
        self,
        compiled: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        trains: bool = True,
    ) -> None:
        """Look at one call of the step, which has returned.

        Args:
            compiled: What ``jax.jit`` has made of the step.
            args: Positional arguments.
            kwargs: Named ones.
            trains: Whether it is a step of training.
        """
        self.is_on = False  # Also if anything below fails.
        self._n_calls += 1
        program = program_of(compiled, args, kwargs)
        if program is None:
            return  # Other functions than jax.jit have compiled it.
        if program is not self._program:
            # Traced anew, by the values that hold now.
            self._program, self._n_stale = program, {}
            self._taken = list(self._find(program.consts, args))
            self._numbers = list(self._find_numbers(program, args))
        else:
            for taken in self._taken:
                self._compare(taken)
            self._compare_numbers()
        most = _MOST_CALLS if trains else _MOST_EVALUATED
        is_open = bool(self._taken) or (bool(self._numbers) and trains)
        self.is_on = is_open and self._n_calls < most
        self.has_numbers = bool(self._numbers) and trains

    def look_later(
        self, compiled: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Look at the numbers of a call that is captured, when ``is_on`` is over."""
        self.has_numbers = False  # Also if anything below fails.
        if program_of(compiled, args, kwargs) is self._program:
            self._compare_numbers()
            self.has_numbers = bool(self._numbers)

    def _find_numbers(self, program: Any, args: tuple[Any, ...]) -> Iterator[_Number]:
        """Yield variables whose numbers are literals of the program.

        Numbers that every program has, such as 1, would be found by accident.
        """
        literals = set(itertools.islice(_literals_in(program.jaxpr), _MOST_LITERALS))
        if not literals:
            return
        variables = _variables_of(self._function, args, 0, set())
        for variable in itertools.islice(variables, _MOST_VARIABLES):
            value = variable.read()
            is_number = type(value) is float and math.isfinite(value)
            is_own = is_number and 2 * value != round(2 * value)
            if is_own and float(np.float32(value)) in literals:
                yield _Number(variable, value)

    def _compare_numbers(self) -> None:
        """Tell once of a number that has changed."""
        for each in self._numbers:
            name, value = each.variable.name, each.variable.read()
            if type(value) is not float or value == each.value:
                continue
            self._n_stale[name] = self._n_stale.get(name, 0) + 1
            if self._n_stale[name] == _ENOUGH:
                numbers = {"first": each.value, "latest": value}
                numbers["calls"] = float(_ENOUGH)
                step = max(0, self._session.latest_step(TRAIN)[0])
                fault, words = Fault.TAKEN_IN_AND_REPLACED, {"kind": "number"}
                self._session.observe(Observation(fault, step, (name,), numbers, words))
                self._numbers = []
                return

    def _find(self, constants: Any, args: tuple[Any, ...]) -> Iterator[_Taken]:
        known = {id(each) for each in constants if isinstance(each, jax.Array)}
        if not known:
            return
        variables = _variables_of(self._function, args, 0, set())
        for variable in itertools.islice(variables, _MOST_VARIABLES):
            leaves, structure = jax.tree_util.tree_flatten(variable.read())
            if len(leaves) > _MOST_LEAVES:
                continue
            own = {i: leaf for i, leaf in enumerate(leaves) if id(leaf) in known}
            if own:
                yield _Taken(variable, own, structure)

    def _compare(self, taken: _Taken) -> None:
        name = taken.variable.name
        leaves, structure = jax.tree_util.tree_flatten(taken.variable.read())
        if structure != taken.structure:
            return
        replaced = [i for i, leaf in taken.leaves.items() if leaves[i] is not leaf]
        if not replaced:
            return
        self._n_stale[name] = self._n_stale.get(name, 0) + 1
        if self._n_stale[name] != _ENOUGH or self._is_held_elsewhere(taken):
            return
        if any(_differ(taken.leaves[i], leaves[i]) for i in replaced):
            self._session.observe(
                Observation(
                    Fault.TAKEN_IN_AND_REPLACED,
                    max(0, self._session.latest_step(TRAIN)[0]),
                    (name,),
                    {"calls": float(_ENOUGH), "arrays": float(len(replaced))},
                )
            )

    def _is_held_elsewhere(self, taken: _Taken) -> bool:
        """Return whether another variable still holds the constants, as is meant."""
        own = {id(leaf) for leaf in taken.leaves.values()}
        for other in self._taken:
            if other is not taken:
                leaves = jax.tree_util.tree_leaves(other.variable.read())
                if any(id(leaf) in own for leaf in leaves):
                    return True
        return False


def held_by(function: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[Any]:
    """Yield what the variables hold that a function reads from outside.

    Example:
        >>> rate = 0.1
        >>> def step(x):
        ...     return rate * x
        >>> list(held_by(step, ()))
        [0.1]
    """
    variables = _variables_of(function, args, 0, set())
    for variable in itertools.islice(variables, _MOST_VARIABLES):
        yield variable.read()


def _variables_of(
    function: Any, args: tuple[Any, ...], depth: int, seen: set[int]
) -> Iterator[_Variable]:
    """Yield variables from outside that a function reads, and those that it calls."""
    function = _inner_of(function)
    owners = [getattr(function, "__self__", None)] if depth == 0 else []
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None or id(code) in seen or depth > _MOST_DEPTH:
        return
    seen.add(id(code))
    loads, attributes = _names_in(code)
    names = function.__globals__
    for each in _read_by(function, loads):
        value = getattr(each.read(), "__wrapped__", each.read())
        if not isinstance(value, FunctionType):
            yield each
        elif value.__globals__ is names:
            yield from _variables_of(value, (), depth + 1, seen)
    for owner in (*owners, *filter(_is_object, args)):
        for name in attributes & vars(owner).keys() if owner is not None else ():
            yield _Variable(f"self.{name}", functools.partial(_attribute, owner, name))


def _literals_in(program: Any) -> Iterator[float]:
    """Yield the literals of a program and of those that it calls, as 32-bit floats."""
    for equation in program.eqns:
        for each in equation.invars:
            value = np.asarray(each.val) if isinstance(each, Literal) else None
            if value is not None and not value.ndim and value.dtype.kind == "f":
                yield float(np.float32(value))
        called = jax.tree_util.tree_leaves(list(equation.params.values()))
        for each in called:
            inner = getattr(each, "jaxpr", each)
            if hasattr(inner, "eqns"):
                yield from _literals_in(inner)


def _inner_of(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    with contextlib.suppress(ValueError):  # It goes round in circles.
        function = inspect.unwrap(function)
    return function


def _read_by(function: FunctionType, loads: Sequence[str]) -> list[_Variable]:
    """Return the variables of a closure, and global ones."""
    names, cells = function.__globals__, function.__closure__ or ()
    found = [
        _Variable(name, functools.partial(_content_of, cell))
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True)
    ]
    return found + [
        _Variable(name, functools.partial(names.get, name))
        for name in loads
        if name in names
    ]


def _names_in(code: CodeType) -> tuple[list[str], set[str]]:
    """Return the global variables that code loads, and its attributes."""
    loads: dict[str, None] = {}
    attributes: set[str] = set()
    codes = [code]
    while codes:
        each = codes.pop()
        codes += [one for one in each.co_consts if isinstance(one, CodeType)]
        for instruction in dis.get_instructions(each):
            if instruction.opname in _LOADS:
                loads[str(instruction.argval)] = None
            elif instruction.opname in _ATTRIBUTES:
                attributes.add(str(instruction.argval))
    return list(loads), attributes


def _content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # It is empty.
        return None


def _attribute(owner: Any, name: str) -> Any:
    return vars(owner).get(name)


def _is_object(value: Any) -> bool:
    """Return whether an argument is an object of the program, and no pytree."""
    leaves = jax.tree_util.tree_leaves(value)
    is_leaf = len(leaves) == 1 and leaves[0] is value
    return is_leaf and hasattr(value, "__dict__") and not callable(value)


def _differ(one: Any, other: Any) -> bool:
    """Return whether two arrays of one shape have different values."""
    both = (one, other)
    if not all(isinstance(each, jax.Array | np.ndarray) for each in both):
        return False
    if any(isinstance(each, jax.Array) and each.is_deleted() for each in both):
        return False
    if one.shape != other.shape or one.size > _MOST_ELEMENTS:
        return bool(one.shape == other.shape)
    return not np.array_equal(np.asarray(one), np.asarray(other))
