"""What follows from the role and the element type of a tensor."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tdbg._core import Definition
from tdbg.collections import Role
from tdbg.errors import UnsupportedFeature
from tdbg.trial import _merge

__all__ = [
    "PER_WORKER",
    "SHARD",
    "element_type",
    "extreme_class",
    "has_statistics",
    "role_of",
]

# Of these every worker has its own part of the batch, so that the statistics of the
# run are those of all workers together.  Parameters and their gradients are the
# same on every worker, unless their placement says otherwise.
PER_WORKER = frozenset(
    {
        Role.INPUT,
        Role.MODEL_INPUT,
        Role.PREDICTION,
        Role.LABEL,
        Role.OUTPUT,
        Role.LOSS,
        Role.UNIT_SUMMARY,
        Role.OUTPUT_GRADIENT,
    }
)
SHARD = 1  # The kind of a placement: docs/format.md, record type `definition`.

_SIGNED = ("int8", "int16", "int32", "int64")
_FLOATS = (
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_UNSIGNED = ("bool", "uint8", "uint16", "uint32", "uint64")


def role_of(definition: Definition) -> Role:
    """The role; ``OTHER`` for one that a later tdbg added."""
    try:
        return Role(definition.role)
    except ValueError:
        return Role.OTHER


def extreme_class(dtype: str) -> int:
    """In which class the minimum and maximum of *dtype* are held."""
    if dtype in _SIGNED:
        return _merge.INT64
    return _merge.UINT64 if dtype in _UNSIGNED else _merge.FLOAT64


def has_statistics(definition: Definition) -> bool:
    """Whether a statistics row is defined for its elements."""
    return definition.dtype in (*_SIGNED, *_UNSIGNED, *_FLOATS, "")


def element_type(definition: Definition) -> np.dtype[Any]:
    """The NumPy dtype of the values.

    Raises:
        UnsupportedFeature: If NumPy and ml_dtypes have none that is safe to use.
    """
    text = definition.dtype
    try:
        dtype = np.dtype(getattr(ml_dtypes, text) if text in _FLOATS[3:] else text)
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype(object)
    # What stands in a file must not become pointers.
    if dtype.hasobject or dtype.names or dtype.itemsize != definition.item_size:
        msg = f"{definition.name!r} has elements of the unknown type {text!r}"
        raise UnsupportedFeature(msg, kind="unsupported")
    return dtype
