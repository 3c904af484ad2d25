"""Variables of Keras on TensorFlow, read where they lie.

Thread safety: the training's thread, and threads of TensorFlow, one at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from tdbg.hooks.keras.replicas import read_variable

__all__ = ["LiveVariables"]

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
        """As ``State``."""
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
