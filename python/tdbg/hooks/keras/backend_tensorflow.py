"""Keras on TensorFlow: a step with taps is traced with further outputs.

Thread safety: the training's thread.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdbg.capture.adapter import ComputedRow, TensorRef
from tdbg.hooks.keras.backend import Answer, State, flat_logs
from tdbg.hooks.keras.replicas import (
    FlatTensors,
    n_replicas,
    read_variable,
    replica_number,
    warn_of_eager_replicas,
)
from tdbg.hooks.keras.tracing import Patches, Taps
from tdbg.hooks.sparse import dense_of_slices, row_of_slices, units_of_slices

__all__ = ["make_backend"]

_log = logging.getLogger("tdbg")
_LOGS, _TAPS = "logs", "taps"


class _TensorFlowBackend:
    """TensorFlow, as Keras uses it."""

    name = "tensorflow"
    as_async = None
    shows_batches = False  # The graph takes them.
    keeps_traces = True

    def __init__(self, keras_version: str) -> None:
        self._tf: Any = import_module("tensorflow")
        self.version = f"{keras_version} (TensorFlow {self._tf.__version__})"
        self.operations: Any = import_module("keras").ops
        self._eager = type(self._tf.constant(0))
        self._state = LiveVariables(self._tf)
        # What the replicas of the step under way have shown.
        self._posted: dict[int, dict[str, Any]] = {}

    # ---- tensors ---------------------------------------------------------------

    def is_tensor(self, value: Any) -> bool:
        tf = self._tf
        return isinstance(value, tf.Tensor | tf.IndexedSlices)

    def has_scores(self, output: Any) -> bool:
        """Return it as Keras finds it out, by a mark or by the operation of a graph."""
        if hasattr(output, "_keras_logits"):
            return True
        is_of_graph = self._tf.is_tensor(output) and hasattr(output, "op")
        return is_of_graph and output.op.type in {"Softmax", "Sigmoid"}

    def scope(self) -> Callable[[Any], bool]:
        """Accept tensors of the graph under trace, which alone can return them."""
        tf = self._tf
        if tf.executing_eagerly():
            return lambda _: True
        graph = tf.compat.v1.get_default_graph()

        def may_return(tensor: Any) -> bool:
            if isinstance(tensor, tf.IndexedSlices):
                return tensor.values.graph is graph
            return getattr(tensor, "graph", None) is graph

        return may_return

    def array(self, tensor: Any) -> NDArray[Any] | None:
        if isinstance(tensor, self._tf.IndexedSlices):
            return None
        return np.asarray(tensor)

    def arrays(self, tensors: Sequence[Any]) -> Sequence[Any]:
        eager = self._eager
        return [np.asarray(each) if type(each) is eager else each for each in tensors]

    def sparse_row(self, tensor: Any, scale: float) -> ComputedRow | None:
        if not isinstance(tensor, self._tf.IndexedSlices):
            return None
        indices, values = np.asarray(tensor.indices), np.asarray(tensor.values)
        return row_of_slices(indices, values, _rows_of(tensor), scale)

    def sparse_table(self, tensor: Any) -> TensorRef | None:
        if not isinstance(tensor, self._tf.IndexedSlices):
            return None
        indices, values = np.asarray(tensor.indices), np.asarray(tensor.values)
        return dense_of_slices(indices, values, _rows_of(tensor))

    def sparse_units(self, tensor: Any) -> NDArray[Any] | None:
        if not isinstance(tensor, self._tf.IndexedSlices):
            return None
        indices, values = np.asarray(tensor.indices), np.asarray(tensor.values)
        return units_of_slices(indices, values, _rows_of(tensor))

    # ---- state -----------------------------------------------------------------

    def state_before(self, model: Any, args: tuple[Any, ...]) -> State:  # noqa: ARG002
        return self._state

    def state_after(self, model: Any, result: Any) -> State:  # noqa: ARG002
        return self._state

    # ---- steps -----------------------------------------------------------------

    def tap(
        self,
        step: Callable[..., Any],
        model: Any,
        taps: Callable[[], Taps],
        install: Callable[[Patches, Taps], None],
    ) -> Callable[..., Any]:
        def tapped(data: Any) -> dict[str, Any]:
            held = taps()
            with held.patched(install):
                logs = step(data)
            if n_replicas(self._tf) > 1:
                self._post(model, held.tensors)
                return {_LOGS: logs, _TAPS: {}}
            return {_LOGS: logs, _TAPS: held.tensors}

        return tapped

    def _post(self, model: Any, tensors: Mapping[str, Any]) -> None:
        """Let a replica hand its tensors to Python; Keras would add or join outputs."""
        tf = self._tf
        if tf.executing_eagerly():
            warn_of_eager_replicas()
            return
        if model.jit_compile:
            _log.warning(
                "a step of several replicas that XLA compiles (jit_compile=True) "
                "cannot call Python, so tdbg leaves out gradients and tensors of layers"
            )
            return
        flat, number = FlatTensors.of(tf, tensors), replica_number(tf)

        def posted(*arrays: Any) -> None:
            # They live for the length of this call.
            self._posted[number] = flat.restored(
                tf, [np.array(each) for each in arrays]
            )

        tf.numpy_function(posted, flat.tensors, [])

    def answer(self, returned: Any) -> Answer:
        posted, self._posted = self._posted, {}
        if not posted:
            return Answer(returned[_LOGS], returned[_TAPS])
        first, *others = (posted[each] for each in sorted(posted))
        return Answer(returned[_LOGS], first, tuple(others))

    def logs_of(self, result: Any) -> Mapping[str, Any]:
        return flat_logs(result)

    def with_batch(
        self,
        args: tuple[Any, ...],  # noqa: ARG002
        batch: Any,
    ) -> tuple[Any, ...]:
        return (batch,) if isinstance(batch, list) else (iter((batch,)),)

    def is_end(self, error: BaseException) -> bool:
        return isinstance(error, StopIteration | self._tf.errors.OutOfRangeError)

    def noting(
        self,
        plain: Callable[..., Any],
        note: Callable[[Any], None],  # noqa: ARG002
    ) -> Callable[..., Any]:
        return plain

    def next_batch(self, args: tuple[Any, ...]) -> Any:
        """Take the next batch; a prediction gets its batches in a list."""
        (iterator,) = args
        return iterator if isinstance(iterator, list) else next(iterator)

    def following(
        self,
        args: tuple[Any, ...],
        result: Any,  # noqa: ARG002
    ) -> tuple[Any, ...]:
        return args

    def has_run(self, model: Any, error: Exception) -> bool:
        """Return whether an operation failed, which it does only when it runs."""
        is_eager = bool(getattr(model, "run_eagerly", False))
        return is_eager or isinstance(error, self._tf.errors.OpError)


def _rows_of(slices: Any) -> int:
    shape = slices.dense_shape
    return int(np.asarray(shape)[0]) if shape is not None else 0


def make_backend(keras_version: str) -> _TensorFlowBackend:
    """Make the backend for this version of Keras."""
    return _TensorFlowBackend(keras_version)


# TensorFlow has it for its own runtime: it reads ten variables in the time of two.
_READ_ALL = "_ReadVariablesOp"


class _Handle(NamedTuple):
    """What a variable is read by, which Keras takes long to look up.

    Attributes:
        owner: The variable of Keras.
        resource: Its handle.
        dtype: The type of its elements.
        dtype_number: The same as operations of TensorFlow are given it.
    """

    owner: weakref.ref[Any]
    resource: Any
    dtype: Any
    dtype_number: int


class LiveVariables:
    """Reads variables that always have their values, as ``State`` does.

    What is read is the memory of the variable, until the variable changes.

    Args:
        tf: TensorFlow.
    """

    def __init__(self, tf: Any) -> None:
        self._tf = tf
        self._read_one = tf.raw_ops.ReadVariableOp
        self._handles: dict[int, _Handle] = {}
        self._execute: Any = None
        self._context: Any = None
        try:
            self._execute = import_module("tensorflow.python.eager.execute").execute
            self._context = import_module("tensorflow.python.eager.context").context()
        except (ImportError, AttributeError):
            self._execute = None  # A version of TensorFlow that has these elsewhere.

    def read(self, variables: Sequence[Any]) -> list[Any]:
        """Read the values of variables, together where possible."""
        known = self._handles
        handles = []
        for each in variables:
            handle = known.get(id(each))
            if handle is None or handle.owner() is not each:
                handle = self._handle_of(each)
            handles.append(handle)
        if len(handles) > 1 and None not in handles and self._execute is not None:
            together = self._read_together(handles)
            if together is not None:
                return together
        return [
            self._read_alone(variable, handle)
            for variable, handle in zip(variables, handles, strict=True)
        ]

    def _handle_of(self, variable: Any) -> _Handle | None:
        """The handle of a variable; None: it has none, or one on each replica."""
        inner = variable.value
        if isinstance(inner, self._tf.distribute.DistributedValues):
            return None
        resource = getattr(inner, "handle", None)
        if resource is None or resource.dtype != self._tf.resource:
            return None
        identity, dtype = id(variable), inner.dtype
        # A handle keeps the memory of its variable.
        owner = weakref.ref(variable, lambda _: self._handles.pop(identity, None))
        made = _Handle(owner, resource, dtype, dtype.as_datatype_enum)
        self._handles[identity] = made
        return made

    def _read_together(self, handles: Sequence[Any]) -> list[Any] | None:
        """The values of several variables; None: only one by one."""
        if not self._context.executing_eagerly():
            return None
        n = len(handles)
        attributes = ("N", n, "dtypes", [each.dtype_number for each in handles])
        resources = [each.resource for each in handles]
        try:
            found: list[Any] = self._execute(
                _READ_ALL, n, resources, attributes, self._context
            )
        except Exception:
            return None  # They lie on several devices, or one of them has no value.
        return found

    def _read_alone(self, variable: Any, handle: _Handle | None) -> Any:
        if handle is not None:
            return self._read_one(resource=handle.resource, dtype=handle.dtype)
        inner = variable.value
        if isinstance(inner, self._tf.distribute.DistributedValues):
            return read_variable(self._tf, inner)
        return inner
