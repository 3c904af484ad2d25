"""The program of a step: what it computes its loss of, and what it does with integers.

JAX knows the program of a call.  Read from the loss back to the arguments, it shows
each operation, whoever wrote it: a softmax of a softmax, outputs and targets that
broadcast, an argument that nothing is computed of.  Integers that come from the batch
are computed again in NumPy, so indices are known exactly.

Thread safety: the training's thread.

Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal
from numpy.typing import NDArray

__all__ = [
    "SHAPING",
    "Integers",
    "Value",
    "Wrapped",
    "ancestors",
    "counts_to_one",
    "is_of_equinox",
    "is_whole",
    "may_wrap",
    "peeled",
    "program_of",
    "program_of_any",
    "values_of",
]

# Operations that a program calls with its own arguments.
_CALLS = frozenset(
    {
        "checkpoint",
        "closed_call",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "jit",
        "pjit",
        "remat2",
    }
)
# Operations that change the form of numbers, and not the numbers.
SHAPING = frozenset(
    {
        "broadcast_in_dim",
        "convert_element_type",
        "copy",
        "copy_p",
        "expand_dims",
        "optimization_barrier",
        "reduce_precision",
        "reshape",
        "squeeze",
        "stop_gradient",
        "transpose",
    }
)
# Operations of a program that is read, and elements of integers that are computed.
_MOST_OPERATIONS, _MOST_ELEMENTS = 50_000, 1 << 18
# Of narrow types there may be whole images.
_MOST_NARROW = 1 << 23
_NARROW = frozenset({"int8", "int16", "uint8", "uint16"})
_WHOLE = _NARROW | {"bool", "int32", "int64", "uint32", "uint64"}

Array = NDArray[Any]


class Value:
    """A value of a program, with the operation that made it.

    Attributes:
        op: The operation's name; ``argument``, ``constant`` or ``literal``.
        inputs: What the operation is given.
        params: Its parameters.
        place: Which of its results this is, or which of the arguments.
        aval: Shape and type.
        held: The number of a constant or a literal.
        caller: The name of the innermost function that JAX compiled by itself.
    """

    __slots__ = ("aval", "caller", "held", "inputs", "op", "params", "place")

    def __init__(
        self,
        op: str,
        aval: Any,
        inputs: tuple[Value, ...] = (),
        params: Mapping[str, Any] | None = None,
        place: int = 0,
        held: Any = None,
        caller: str = "",
    ) -> None:
        self.op, self.aval, self.inputs = op, aval, inputs
        self.params, self.place, self.held = params or {}, place, held
        self.caller = caller

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(map(int, getattr(self.aval, "shape", ())))

    @property
    def dtype(self) -> str:
        """The name of its type; empty: it has none."""
        return str(getattr(self.aval, "dtype", ""))


def program_of(compiled: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the program of a call, with its constants; None: jax.jit has made none.

    JAX knows it from the call: nothing is traced again.
    """
    if not hasattr(compiled, "trace"):
        return None
    return getattr(compiled.trace(*args, **kwargs), "jaxpr", None)


def program_of_any(
    compiled: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Return the program of a call, whichever library has compiled the function."""
    return (
        program_of(compiled, args, kwargs)
        or _program_of_nnx(compiled, args, kwargs)
        or _program_of_equinox(compiled, args, kwargs)
    )


def is_of_equinox(compiled: Any) -> bool:
    """Whether ``equinox.filter_jit`` has made it."""
    return type(compiled).__module__.partition(".")[0] == "equinox"


def _program_of_equinox(
    compiled: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Return the program of a call of ``equinox.filter_jit``; None: there is none."""
    divide = getattr(sys.modules.get("equinox._jit"), "_preprocess", None)
    names = "_signature", "_dynamic_fun", "_static_fun", "donate_first", "donate_rest"
    if divide is None or not all(hasattr(compiled, name) for name in names):
        return None
    made = tuple(getattr(compiled, name) for name in names)
    given = divide(made, args, kwargs, return_static=True)
    return getattr(compiled._cached.trace(*given), "jaxpr", None)


def _program_of_nnx(
    compiled: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Return the program of a call of ``nnx.jit``; None: there is none."""
    if not hasattr(compiled, "jitted_fn") or not hasattr(compiled, "trace"):
        return None
    traced = getattr(compiled.trace(*args, **kwargs), "traced", None)
    return getattr(traced, "jaxpr", None)


def values_of(program: Any) -> Sequence[Value]:
    """Return the results of a program, as values; none: it is too large.

    Args:
        program: A jaxpr with its constants.

    Example:
        >>> program = jax.make_jaxpr(lambda x: jax.nn.relu(x) * 2)(1.0)
        >>> [(each.op, each.inputs[0].op) for each in values_of(program)]
        [('mul', 'max')]
    """
    inner = program.jaxpr
    given = [Value("argument", v.aval, place=i) for i, v in enumerate(inner.invars)]
    budget = [_MOST_OPERATIONS]
    found = _read(inner, program.consts, given, budget)
    return found if budget[0] > 0 else ()


def _read(
    program: Any,
    constants: Sequence[Any],
    given: Sequence[Value],
    budget: list[int],
    caller: str = "",
) -> list[Value]:
    known: dict[Any, Value] = dict(zip(program.invars, given, strict=True))
    for variable, held in zip(program.constvars, constants, strict=False):
        known[variable] = Value("constant", variable.aval, held=held)

    def of(variable: Any) -> Value:
        if isinstance(variable, Literal):
            return Value("literal", variable.aval, held=variable.val)
        return known.get(variable) or Value("constant", variable.aval)

    for equation in program.eqns:
        budget[0] -= 1
        if budget[0] <= 0:
            break
        inputs = tuple(map(of, equation.invars))
        inner, held = _called(equation)
        if inner is None:
            name, params = equation.primitive.name, equation.params
            made = [
                Value(name, each.aval, inputs, params, i, caller=caller)
                for i, each in enumerate(equation.outvars)
            ]
        else:
            within = str(equation.params.get("name", caller))
            made = _read(inner, held, inputs, budget, within)
        known.update(zip(equation.outvars, made, strict=False))
    return [of(each) for each in program.outvars]


def _called(equation: Any) -> tuple[Any, Sequence[Any]]:
    """Return the program that an operation calls, and its constants."""
    if equation.primitive.name not in _CALLS:
        return None, ()
    for each in equation.params.values():
        program = getattr(each, "jaxpr", each)
        sizes = [len(getattr(program, key, ())) for key in ("invars", "outvars")]
        if hasattr(program, "eqns") and sizes == [
            len(equation.invars),
            len(equation.outvars),
        ]:
            return program, getattr(each, "consts", ())
    return None, ()


def ancestors(values: Iterable[Value]) -> Iterator[Value]:
    """Yield values and all that they are computed of, each once."""
    seen: set[int] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        waiting += value.inputs


def peeled(value: Value, through: frozenset[str] = SHAPING) -> Value:
    """Return what a value is but for its form.

    Example:
        >>> program = jax.make_jaxpr(lambda x: jax.numpy.exp(x)[:, None])(np.ones(3))
        >>> peeled(values_of(program)[0]).op
        'exp'
    """
    while value.op in through and value.inputs:
        value = value.inputs[0]
    return value


class Wrapped(NamedTuple):
    """Integers that do not fit their type.

    Attributes:
        op: The operation.
        dtype: The type.
        n_wrapped: How many do not fit.
        n: How many there are.
    """

    op: str
    dtype: str
    n_wrapped: int
    n: int


class Integers:
    """Computes integers of a program, as far as they come from known arguments.

    Args:
        read: Returns the array of an argument, by its place; None: it is unknown.

    Attributes:
        wrapped: Operations on narrow types whose results did not fit.
    """

    def __init__(self, read: Callable[[int], Array | None]) -> None:
        self._read = read
        self._known: dict[int, tuple[Value, Array | None]] = {}
        self.wrapped: list[Wrapped] = []

    def of(self, value: Value) -> Array | None:
        """Return the array of a value; None: it is unknown, or none of integers."""
        waiting = [value]
        while waiting:
            top = waiting[-1]
            missing = [
                each
                for each in top.inputs
                if id(each) not in self._known and is_whole(each)
            ]
            if missing and is_whole(top) and id(top) not in self._known:
                waiting += missing
                continue
            waiting.pop()
            if id(top) not in self._known:
                # The value is kept, so that its id stays its own.
                self._known[id(top)] = top, self._compute(top)
        return self._known[id(value)][1]

    def _compute(self, value: Value) -> Array | None:
        most = _MOST_NARROW if value.dtype in _NARROW else _MOST_ELEMENTS
        if not is_whole(value) or math.prod(value.shape) > most:
            return None
        if value.op in {"argument", "constant", "literal"}:
            return self._held(value)
        given = [self._known.get(id(each), (None, None))[1] for each in value.inputs]
        compute = _COMPUTED.get(value.op)
        if compute is None or any(each is None for each in given):
            return None
        with np.errstate(over="ignore"):
            made = compute(value, *given)
        if made is None or made.shape != value.shape:
            return None
        if may_wrap(value):
            self._note(value, given)
        return np.asarray(made, value.dtype)

    def _held(self, value: Value) -> Array | None:
        if value.op != "argument":
            return None if value.held is None else np.asarray(value.held, value.dtype)
        found = self._read(value.place)
        if found is None:
            return None
        made = found.astype(value.dtype)
        n = int(np.count_nonzero(made != found))
        if n and value.shape:
            self.wrapped.append(Wrapped("argument", value.dtype, n, int(made.size)))
        return made

    def _note(self, value: Value, given: Sequence[Any]) -> None:
        wide = (each.astype(np.int64) for each in given)
        exact = np.asarray(_COMPUTED[value.op](value, *wide))
        limits = np.iinfo(value.dtype)
        n = int(np.count_nonzero((exact < limits.min) | (exact > limits.max)))
        if n:
            self.wrapped.append(Wrapped(value.op, value.dtype, n, int(exact.size)))


def counts_to_one(results: Sequence[Value]) -> bool:
    """Whether a step returns a count of 1, whatever it is given.

    A training within the step, as in meta-learning, counts further.
    """
    constant = Integers(lambda _: None)
    counts = [constant.of(each) for each in results if not each.shape]
    known = [int(each) for each in counts if each is not None]
    return bool(known) and max(known) == 1


def is_whole(value: Value) -> bool:
    """Whether it has integers, or truth values."""
    return value.dtype in _WHOLE


def may_wrap(value: Value) -> bool:
    """Whether it is computed in a type that holds few integers."""
    return value.dtype in _NARROW and value.op in _WRAPPING


def _broadcast(value: Value, x: Array) -> Array:
    shape = [1] * len(value.shape)
    for axis, size in zip(value.params["broadcast_dimensions"], x.shape, strict=True):
        shape[int(axis)] = size
    return np.broadcast_to(x.reshape(shape), value.shape)


def _slice(value: Value, x: Array) -> Array:
    params = value.params
    steps = params["strides"] or (1,) * x.ndim
    limits = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
    return x[tuple(slice(*map(int, each)) for each in limits)]


def _select(value: Value, which: Array, *cases: Array) -> Array:
    del value
    return np.choose(np.broadcast_to(which, cases[0].shape).astype(int), cases)


def _iota(value: Value) -> Array:
    shape, axis = value.shape, int(value.params["dimension"])
    form = [-1 if i == axis else 1 for i in range(len(shape))]
    return np.broadcast_to(np.arange(shape[axis]).reshape(form), shape)


def _remainder(value: Value, a: Array, b: Array) -> Array | None:
    del value
    return np.fmod(a, b) if np.all(b != 0) else None


_WRAPPING = frozenset({"add", "mul", "neg", "sub"})
_COMPUTED: Mapping[str, Callable[..., Array | None]] = {
    "add": lambda _, a, b: a + b,
    "and": lambda _, a, b: a & b,
    "broadcast_in_dim": _broadcast,
    "clamp": lambda _, low, x, high: np.clip(x, low, high),
    "concatenate": lambda v, *xs: np.concatenate(xs, int(v.params["dimension"])),
    "convert_element_type": lambda v, x: x.astype(v.dtype),
    "copy": lambda _, x: x,
    "eq": lambda _, a, b: a == b,
    "ge": lambda _, a, b: a >= b,
    "gt": lambda _, a, b: a > b,
    "iota": _iota,
    "le": lambda _, a, b: a <= b,
    "lt": lambda _, a, b: a < b,
    "max": lambda _, a, b: np.maximum(a, b),
    "min": lambda _, a, b: np.minimum(a, b),
    "mul": lambda _, a, b: a * b,
    "ne": lambda _, a, b: a != b,
    "neg": lambda _, x: -x,
    "not": lambda _, x: ~x,
    "or": lambda _, a, b: a | b,
    "rem": _remainder,
    "reshape": lambda v, x: x.reshape(v.shape),
    "select_n": _select,
    "slice": _slice,
    "squeeze": lambda v, x: x.reshape(v.shape),
    "stop_gradient": lambda _, x: x,
    "sub": lambda _, a, b: a - b,
    "transpose": lambda v, x: x.transpose([int(i) for i in v.params["permutation"]]),
}
