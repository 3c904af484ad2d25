"""Keras on JAX: a step with taps is compiled with further outputs.

During a training the variables of a model have no values: these are the ``state`` that
each call of a step is given and returns.  What is computed inside of the function that
JAX differentiates reaches the step among the non-trainable variables, which that
function returns beside the loss.

Thread safety: the training's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
from numpy.typing import NDArray

from tdbg.capture.adapter import AsyncResult, ComputedRow, TensorRef
from tdbg.hooks.keras.backend import Answer, State, flat_logs
from tdbg.hooks.keras.tracing import Patches, Taps

__all__ = ["make_backend"]

_log = logging.getLogger("tdbg")
_LOGS, _TAPS = "logs", "taps"
_LOSS = "compute_loss_and_updates"
# What a state has, by how many parts it has: of fit, evaluate and predict.
_PARTS = {
    4: ("trainable", "non_trainable", "optimizer", "metrics"),
    3: ("trainable", "non_trainable", "metrics"),
    2: ("trainable", "non_trainable"),
}


class _JaxBackend:
    """JAX, as Keras uses it."""

    name = "jax"
    shows_batches = True
    keeps_traces = True

    def __init__(self, keras_version: str) -> None:
        self._jax: Any = import_module("jax")
        self.as_async = self
        copy = self._jax.numpy.copy
        # Compiled, a tenth of the time: one call for all.
        self._copy = self._jax.jit(lambda tensors: [copy(each) for each in tensors])
        self.operations: Any = import_module("keras").ops
        self.version = f"{keras_version} (JAX {self._jax.__version__})"
        self._places: WeakKeyDictionary[Any, dict[int, tuple[str, int]]]
        self._places = WeakKeyDictionary()
        # Models of which it was said that some tensors cannot be captured.
        self._told: WeakSet[Any] = WeakSet()

    # ---- tensors ---------------------------------------------------------------

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, self._jax.Array)

    def has_scores(self, output: Any) -> bool:  # noqa: ARG002
        return False

    def scope(self) -> Callable[[Any], bool]:
        return lambda _: True

    def array(self, tensor: Any) -> NDArray[Any] | None:
        return np.asarray(tensor)

    def arrays(self, tensors: Sequence[Any]) -> Sequence[Any]:
        return [np.asarray(each) for each in tensors]

    def sparse_row(self, tensor: Any, scale: float) -> ComputedRow | None:
        del tensor, scale
        return None

    def sparse_table(self, tensor: Any) -> TensorRef | None:
        del tensor
        return None

    def sparse_units(self, tensor: Any) -> NDArray[Any] | None:
        del tensor
        return None

    def computed(self, tensors: Sequence[Any]) -> AsyncResult:
        return _Computed(tensors)

    def copies(self, tensors: Sequence[Any]) -> list[Any]:
        """Copy tensors, since the next step gets the memory of this one's state."""
        copied: list[Any] = self._copy(tensors)
        return copied

    # ---- state -----------------------------------------------------------------

    def state_before(self, model: Any, args: tuple[Any, ...]) -> State:
        return _State(self, model, args[0] if args else ())

    def state_after(self, model: Any, result: Any) -> State:
        return _State(self, model, result[1])

    def place_of(
        self, model: Any, variable: Any, *, anew: bool = False
    ) -> tuple[str, int] | None:
        """In which part of a state a variable is, and where there.

        Args:
            model: The model.
            variable: One of its variables, or of its optimizer or metrics.
            anew: Whether to look, though it is not known as one of the model's.
        """
        places = self._places.get(model)
        if places is None or anew:
            optimizer = getattr(model, "optimizer", None)
            parts = {
                "trainable": model.trainable_variables,
                "non_trainable": model.non_trainable_variables,
                "optimizer": [] if optimizer is None else optimizer.variables,
                "metrics": model.metrics_variables,
            }
            places = self._places[model] = {
                id(each): (part, i)
                for part, variables in parts.items()
                for i, each in enumerate(variables)
            }
        return places.get(id(variable))

    # ---- steps -----------------------------------------------------------------

    def tap(
        self,
        step: Callable[..., Any],
        model: Any,
        taps: Callable[[], Taps],
        install: Callable[[Patches, Taps], None],
    ) -> Callable[..., Any]:
        def tapped(state: Any, data: Any) -> tuple[dict[str, Any], Any]:
            held = taps()
            inside: list[str] = []
            patches = Patches()
            try:
                patches.wrap(model, _LOSS, lambda loss: _returning(loss, held, inside))
                with held.patched(install):
                    logs, new_state = step(state, data)
            finally:
                patches.undo()
            new_state = _without(new_state, held, inside, len(state[1]))
            leaves = self._jax.tree.leaves(state)
            of_step = leaves[0] if leaves else None
            tensors = _reachable(held, of_step)
            lost = sorted(_differentiated(held, of_step))
            self._tell_lost(model, [each.partition(" ")[2] for each in lost])
            return {_LOGS: logs, _TAPS: tensors}, new_state

        return tapped

    def _tell_lost(self, model: Any, names: Sequence[str]) -> None:
        if names and model not in self._told:
            self._told.add(model)
            others = f" and {len(names) - 3} others" if len(names) > 3 else ""
            _log.warning(
                "tdbg cannot capture %s%s of %s: they stay inside the function that "
                "your train_step differentiates. Differentiate "
                "model.compute_loss_and_updates instead; see docs/keras.md",
                ", ".join(names[:3]),
                others,
                model.name,
            )

    def answer(self, returned: Any) -> Answer:
        outputs, state = returned
        return Answer((outputs[_LOGS], state), outputs[_TAPS])

    def logs_of(self, result: Any) -> Mapping[str, Any]:
        return flat_logs(result[0])

    def with_batch(self, args: tuple[Any, ...], batch: Any) -> tuple[Any, ...]:
        return args[0], iter((batch,))

    def noting(
        self, plain: Callable[..., Any], note: Callable[[Any], None]
    ) -> Callable[..., Any]:
        def noted(state: Any, iterator: Any) -> Any:
            return plain(state, _Noted(iterator, note))

        return noted

    def next_batch(self, args: tuple[Any, ...]) -> Any:
        return next(args[1])

    def following(self, args: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
        return result[1], args[1]

    def is_end(self, error: BaseException) -> bool:
        return isinstance(error, StopIteration)

    def has_run(self, model: Any, error: Exception) -> bool:
        is_eager = bool(model.run_eagerly) or not model.jit_compile
        return is_eager or isinstance(error, self._jax.errors.JaxRuntimeError)


class _Noted:
    """An iterator whose items are handed over."""

    def __init__(self, iterator: Iterator[Any], note: Callable[[Any], None]) -> None:
        self._iterator = iterator
        self._note = note

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self._note(batch)
        return batch


class _Computed:
    """Arrays that JAX may still compute: an ``AsyncResult``."""

    n_bytes = 0

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._arrays = [each for each in arrays if hasattr(each, "is_ready")]

    def is_there(self) -> bool:
        return all(each.is_ready() for each in self._arrays)


class _State:
    """The state around one call; without one, the variables themselves."""

    def __init__(self, backend: _JaxBackend, model: Any, state: Any) -> None:
        self._backend = backend
        self._model = model
        self._parts = dict(zip(_PARTS.get(len(state), ()), state, strict=False))

    def read(self, variables: Sequence[Any]) -> list[Any]:
        return [self._read(each) for each in variables]

    def _read(self, variable: Any) -> Any:
        find = self._backend.place_of
        place = find(self._model, variable) or find(self._model, variable, anew=True)
        if place is not None and place[0] in self._parts:
            return self._parts[place[0]][place[1]]
        return variable.value


def _returning(
    loss: Callable[..., Any], held: Taps, inside: list[str]
) -> Callable[..., Any]:
    """Return a loss function that also returns the tensors tapped inside it."""

    def returning(*args: Any, **kwargs: Any) -> Any:
        before = set(held.tensors)
        returned = loss(*args, **kwargs)
        found = [key for key in held.tensors if key not in before]
        place = _place_of_variables(returned, args)
        if place is None:
            return returned
        inside[:] = found
        return _extended(returned, place, [held.tensors[key] for key in found])

    return returning


def _place_of_variables(returned: Any, args: Sequence[Any]) -> tuple[int, ...] | None:
    """Where a loss function returns the non-trainable variables; None: nowhere.

    Keras's own returns them in the third place beside the loss, and a program's own
    may return them elsewhere, or not.  They are the second argument of both.
    """
    if len(args) < 2 or not isinstance(returned, tuple) or len(returned) != 2:
        return None
    given = _kinds_of(args[1])
    level: list[tuple[tuple[int, ...], Any]] = [((1,), returned[1])]
    while level:
        way, value = level.pop(0)
        if _kinds_of(value) == given:
            return way
        if isinstance(value, tuple):
            level += [((*way, i), each) for i, each in enumerate(value)]
    return None


def _kinds_of(value: Any) -> list[Any] | None:
    """Shapes and types of a list of arrays; None: it is none."""
    if not isinstance(value, list | tuple):
        return None
    if not all(hasattr(each, "shape") and hasattr(each, "dtype") for each in value):
        return None
    return [(each.shape, each.dtype) for each in value]


def _extended(value: Any, way: Sequence[int], found: Sequence[Any]) -> Any:
    """Return nested tuples with more in the list at the end of a way."""
    if not way:
        return [*value, *found]
    first, *rest = way
    changed = _extended(value[first], rest, found)
    return (*value[:first], changed, *value[first + 1 :])


def _without(state: Any, held: Taps, inside: Sequence[str], n_own: int) -> Any:
    """Return the state without the tensors that the loss function put beside it.

    A step that has dropped what the loss function returned has left them out.  A step
    that computes no loss, as in ``predict``, may return another kind of state.
    """
    if not inside:
        return state
    trainable, others, *rest = state
    if len(others) != n_own + len(inside):
        return state
    held.tensors.update(zip(inside, others[n_own:], strict=True))
    return (trainable, others[:n_own], *rest)


def _reachable(held: Taps, of_step: Any) -> dict[str, Any]:
    """Return the tensors of taps that the step can return: no traces inside its own."""
    own = getattr(of_step, "_trace", None)
    return {
        key: tensor
        for key, tensor in held.tensors.items()
        if getattr(tensor, "_trace", own) is own
    }


def _differentiated(held: Taps, of_step: Any) -> Iterator[str]:
    """Yield the tensors of taps that stay inside a function that is differentiated.

    The body of a loop, such as a recurrent layer's, has a trace of the step's own type.
    """
    own = getattr(of_step, "_trace", None)
    for key, tensor in held.tensors.items():
        if type(getattr(tensor, "_trace", own)) is not type(own):
            yield key


def make_backend(keras_version: str) -> _JaxBackend:
    """Make the backend for this version of Keras."""
    return _JaxBackend(keras_version)
