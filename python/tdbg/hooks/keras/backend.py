"""What the hook asks the backend of Keras; there is a file for each.

Thread safety: the training's thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from tdbg.capture.adapter import AsyncResult, ComputedRow, TensorRef
from tdbg.errors import ConfigurationError
from tdbg.hooks.keras.tracing import Patches, Taps

__all__ = [
    "Answer",
    "AsyncBackend",
    "Backend",
    "State",
    "backend_of_keras",
    "flat_logs",
    "number_in",
]

_MODULES = {
    "tensorflow": "tdbg.hooks.keras.backend_tensorflow",
    "torch": "tdbg.hooks.keras.backend_torch",
    "jax": "tdbg.hooks.keras.backend_jax",
}


class State(Protocol):
    """The variables of a model as they are around one call of a step."""

    def read(self, variables: Sequence[Any]) -> list[Any]:
        """Return the values of Keras variables, as tensors that stay until a change."""


class Answer(NamedTuple):
    """What a step with taps returned.

    Attributes:
        result: What the plain step would have returned.
        tensors: What the taps hold, by key; of several replicas those of the first.
        others: Those of the other replicas.
    """

    result: Any
    tensors: Mapping[str, Any]
    others: tuple[Mapping[str, Any], ...] = ()

    @property
    def replicas(self) -> tuple[Mapping[str, Any], ...]:
        """Return the tensors that the taps hold, one mapping for each replica."""
        return (self.tensors, *self.others)


class AsyncBackend(Protocol):
    """A backend whose calls return before a step is computed."""

    def copies(self, tensors: Sequence[Any]) -> list[Any]:
        """Return copies of tensors that the next step leaves unchanged."""

    def computed(self, tensors: Sequence[Any]) -> AsyncResult:
        """Return a result that arrives once these tensors are computed."""


class Backend(Protocol):
    """A backend of Keras.

    Attributes:
        name: Its name in Keras.
        version: The version of Keras, and its own.
        operations: ``keras.ops``.
        as_async: Itself, if a call returns before the step is computed, so that
            reading a number waits for it; else None.
        shows_batches: Whether ``noting`` sees the batches.
        keeps_traces: Whether a compiled step goes on as it was traced when the program
            freezes layers.
    """

    name: str
    version: str
    operations: Any
    as_async: AsyncBackend | None
    shows_batches: bool
    keeps_traces: bool

    def is_tensor(self, value: Any) -> bool:
        """Return whether a value is a tensor of the backend, symbolic ones included."""

    def has_scores(self, output: Any) -> bool:
        """Return whether cross-entropies find the scores that an output was made of.

        They then compute with these instead of the output, which a softmax or sigmoid
        has made of them.
        """

    def scope(self) -> Callable[[Any], bool]:
        """Return a function like ``TapBackend.scope``."""

    def array(self, tensor: Any) -> NDArray[Any] | None:
        """Return a tensor as an array, without a copy on the CPU; None if sparse."""

    def arrays(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """Return the tensors, as arrays where ``array`` makes one."""

    def sparse_row(self, tensor: Any, scale: float) -> ComputedRow | None:
        """Return the row of a sparse tensor; None for a dense one."""

    def sparse_table(self, tensor: Any) -> TensorRef | None:
        """Return a sparse tensor with all of its zeros; None for a dense one."""

    def sparse_units(self, tensor: Any) -> NDArray[Any] | None:
        """Return the counts of the rows of a sparse tensor; None for a dense one."""

    def computed(self, tensors: Sequence[Any]) -> AsyncResult:
        """Return a result that arrives once these tensors are computed."""

    def state_before(self, model: Any, args: tuple[Any, ...]) -> State:
        """Return the state that a call of a step function starts from."""

    def state_after(self, model: Any, result: Any) -> State:
        """Return the state that the call has left."""

    def tap(
        self,
        step: Callable[..., Any],
        model: Any,
        taps: Callable[[], Taps],
        install: Callable[[Patches, Taps], None],
    ) -> Callable[..., Any]:
        """Return a step with taps; ``answer`` takes its result apart."""

    def answer(self, returned: Any) -> Answer:
        """Take apart the result of a function made from a step with taps."""

    def logs_of(self, result: Any) -> Mapping[str, Any]:
        """Return the logs in the result of a plain function; none for a prediction."""

    def with_batch(self, args: tuple[Any, ...], batch: Any) -> tuple[Any, ...]:
        """Return the arguments of a step function, with one batch for the iterator."""

    def noting(
        self, plain: Callable[..., Any], note: Callable[[Any], None]
    ) -> Callable[..., Any]:
        """Return a plain function that hands its batches over, where Python has them.

        Args:
            plain: The function.
            note: Takes the batch of each step; never raises.
        """

    def next_batch(self, args: tuple[Any, ...]) -> Any:
        """Take the next batch from the iterator; raise its error if there is none."""

    def following(self, args: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
        """Return the arguments of a call that goes on where another one ended."""

    def is_end(self, error: BaseException) -> bool:
        """Return whether an error only says that there are no more batches."""

    def has_run(self, model: Any, error: Exception) -> bool:
        """Whether a step may have begun to run before this error.

        If not, the error came when the step was traced, and nothing was changed.
        """


def flat_logs(logs: Any) -> Mapping[str, Any]:
    """Return logs without the dictionaries in them, as callbacks of Keras get them.

    Example:
        >>> flat_logs({"loss": 1.0, "compile_metrics": {"mae": 2.0}})
        {'loss': 1.0, 'mae': 2.0}
    """
    found: dict[str, Any] = {}
    for name, value in logs.items() if isinstance(logs, dict) else ():
        found |= flat_logs(value) if isinstance(value, dict) else {name: value}
    return found


def number_in(backend: Backend, value: Any) -> float:
    """Return the number in a tensor of one element; 0 for a sparse one."""
    array = backend.array(value)
    return 0.0 if array is None else float(array.item())


def backend_of_keras() -> Backend:
    """The backend that Keras has; imports Keras.

    Raises:
        ConfigurationError: If Keras is not installed, or has a backend without
            trainings.
    """
    try:
        keras: Any = sys.modules.get("keras") or import_module("keras")
    except ImportError as error:
        msg = "tdbg.keras needs Keras 3: pip install keras"
        raise ConfigurationError(msg) from error
    name = str(keras.backend.backend())
    if name not in _MODULES:
        msg = f"Keras has the backend {name!r}: tdbg knows {', '.join(_MODULES)}"
        raise ConfigurationError(msg)
    made: Backend = import_module(_MODULES[name]).make_backend(str(keras.__version__))
    return made
