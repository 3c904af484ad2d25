"""Tensors that are sharded over workers: which parts count, and the whole tensor.

A sharded parameter has one part on each worker, or the same part on several.  If
several hold a part, the first rank's counts.  An activation that ranks share
has a group of parts for each part of the batch, so that all groups count, and of each
group one replica.

Thread safety: ``Contributions`` has none; the rest are pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tdbg._core import Definition
from tdbg.config.collections import Role, role_numbered
from tdbg.errors import UnsupportedFeature
from tdbg.run.schema import PlacementKind
from tdbg.stats.row_fields import COUNTS, MOMENTS, NOT_FINITE_COUNTS
from tdbg.trial.writers import Source

__all__ = [
    "CLASS_DTYPES",
    "FLOAT64",
    "INT64",
    "OF_SAMPLES",
    "PER_WORKER",
    "UINT64",
    "Contributions",
    "assemble",
    "dtype_of",
    "element_type",
    "extreme_class",
    "finite_count",
    "group",
    "has_statistics",
    "is_shard",
    "role_of",
    "tell_missing",
    "to_float",
    "whole_count",
    "whole_shape",
]


# How the bits of a minimum or maximum are to be understood: cpp/tensor/dtype.h.
FLOAT64 = 0
INT64 = 1
UINT64 = 2
CLASS_DTYPES: dict[int, Any] = {FLOAT64: np.float64, INT64: np.int64, UINT64: np.uint64}

Rows = dict[str, NDArray[Any]]


def dtype_of(field: str) -> Any:
    """Return the dtype of a field while rows are merged: extremes are bits."""
    return np.float64 if field in MOMENTS else np.uint64


def to_float(
    bits: NDArray[np.uint64], classes: NDArray[np.uint8], finite: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Minima or maxima as float64; left as their bits say where not *finite*."""
    result = np.array(bits, np.uint64).view(np.float64)
    for number in (INT64, UINT64):
        at = classes == number
        if at.any():
            values = bits[at].view(CLASS_DTYPES[number]).astype(np.float64)
            result[at] = np.where(finite[at], values, np.nan)
    return result + 0.0  # A zero has no sign.


def group(
    keys: NDArray[np.int64], rows: Rows, classes: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], Rows, NDArray[np.uint8]]:
    """Merge all rows of the same key; the rows of a key are of one class.

    Returns:
        The keys, ascending and each once, with their rows and classes.
    """
    if len(keys) > 1 and not np.all(keys[1:] > keys[:-1]):
        order = np.argsort(keys, kind="stable")
        keys, classes = keys[order], classes[order]
        rows = {name: values[order] for name, values in rows.items()}
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    if len(keys) == 0 or len(starts) == len(keys):
        return keys, rows, classes
    merged = {name: np.add.reduceat(rows[name], starts) for name in COUNTS}
    merged |= _moments(rows, merged, starts, len(keys))
    for name, ufunc in (("min", np.minimum), ("max", np.maximum)):
        merged[name] = _extremes(rows[name], classes, starts, ufunc)
    merged["abs_min"] = np.minimum.reduceat(rows["abs_min"], starts)
    return keys[starts], merged, classes[starts]


def finite_count(rows: Rows) -> NDArray[np.uint64]:
    """Return the number of finite elements of each row."""
    nan, plus, minus = (rows[name] for name in NOT_FINITE_COUNTS)
    return np.asarray(rows["count"] - (nan + plus + minus), np.uint64)


def _moments(rows: Rows, merged: Rows, starts: NDArray[np.intp], n_rows: int) -> Rows:
    which = np.repeat(np.arange(len(starts)), np.diff(starts, append=n_rows))
    n = finite_count(rows).astype(np.float64)
    total = finite_count(merged).astype(np.float64)
    # Weights first: n * mean could overflow where the mean cannot.
    share = n / np.maximum(total, 1.0)[which]
    mean = np.add.reduceat(rows["mean"] * share, starts)
    with np.errstate(over="ignore", invalid="ignore"):
        delta = rows["mean"] - mean[which]
        m2 = np.add.reduceat(rows["m2"] + n * delta * delta, starts)
        l1 = np.add.reduceat(rows["l1"], starts)
        largest = np.maximum.reduceat(rows["l2"], starts)
        scale = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
        ratio = rows["l2"] / scale[which]
        l2 = scale * np.sqrt(np.add.reduceat(ratio * ratio, starts))
    return {"mean": mean, "m2": m2, "l1": l1, "l2": l2}


def _extremes(
    bits: NDArray[np.uint64],
    classes: NDArray[np.uint8],
    starts: NDArray[np.intp],
    ufunc: np.ufunc,
) -> NDArray[np.uint64]:
    result = np.empty(len(starts), np.uint64)
    of_group = classes[starts]
    for number in np.unique(of_group):
        dtype = CLASS_DTYPES[int(number)]
        chosen = of_group == number
        values = ufunc.reduceat(bits.view(dtype), starts)
        result[chosen] = values[chosen].view(np.uint64)
    return result


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
        Role.GRADIENT_LOCAL,
    }
)

# Of these a worker's part is some samples of the batch.
OF_SAMPLES = PER_WORKER - {Role.UNIT_SUMMARY, Role.GRADIENT_LOCAL}

_SIGNED = ("int8", "int16", "int32", "int64")
_FLOATS = (
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_UNSIGNED = ("bool", "uint8", "uint16", "uint32", "uint64")


def role_of(definition: Definition) -> Role:
    """Return the role; ``OTHER`` for one that a later tdbg added."""
    return role_numbered(definition.role)


def extreme_class(dtype: str) -> int:
    """In which class the minimum and maximum of *dtype* are held."""
    if dtype in _SIGNED:
        return INT64
    return UINT64 if dtype in _UNSIGNED else FLOAT64


def has_statistics(definition: Definition) -> bool:
    """Return whether a statistics row is defined for its elements."""
    return definition.dtype in (*_SIGNED, *_UNSIGNED, *_FLOATS, "")


def element_type(definition: Definition) -> np.dtype[Any]:
    """Return the NumPy dtype of the values.

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


class Contributions:
    """Decides which rows count when several workers have the same tensor.

    Sources must be asked about in the order of their ranks.
    """

    def __init__(self) -> None:
        self._holders: dict[object, object] = {}

    def merges(self, source: Source, number: int) -> bool:
        """Return whether the rows of this definition add to those of other workers."""
        definition = source.writer.definitions[number]
        return role_of(definition) in PER_WORKER or is_shard(definition)

    def counts(self, source: Source, number: int) -> bool:
        """Return whether its rows count: only one holder's do if several have it."""
        definition = source.writer.definitions[number]
        holder: object = source.writer.rank
        if role_of(definition) in PER_WORKER:
            # Groups are told apart by nothing; their replicas by their places.
            holder = tuple(
                p[4] for p in definition.placements if p[0] != PlacementKind.SHARD
            )
        elif not is_shard(definition):
            return True
        if not definition.placements:
            return True
        # Attempts may divide a tensor differently.
        part = (
            definition.name,
            source.attempt,
            definition.global_shape,
            definition.global_offset,
            definition.shape,
        )
        return self._holders.setdefault(part, holder) == holder


def is_shard(definition: Definition) -> bool:
    """Return whether the definition describes a part of a tensor."""
    return any(
        placement[0] == PlacementKind.SHARD for placement in definition.placements
    )


def whole_count(definition: Definition) -> int:
    """Elements that all parts together have; 0 where nobody can know.

    The parts of an activation are not counted: how many groups of them there are
    depends on the training.
    """
    if not is_shard(definition) or role_of(definition) in PER_WORKER:
        return 0
    return math.prod(definition.global_shape)


def whole_shape(definition: Definition) -> tuple[int, ...]:
    """Return the shape of the tensor, or of the whole if it is a part."""
    return definition.global_shape if is_shard(definition) else definition.shape


def assemble(
    parts: Sequence[tuple[Definition, NDArray[np.generic]]],
) -> NDArray[np.generic] | None:
    """Return the whole tensor, which cannot be written to; None if parts are missing.

    Also where they are no blocks, but interleave.

    Args:
        parts: Those of one tensor with their values; at least one.  Of those that lie
            at the same place the first counts.
    """
    shape = parts[0][0].global_shape
    unique: dict[object, tuple[Definition, NDArray[np.generic]]] = {}
    for definition, value in parts:
        if definition.global_shape == shape and value.size:
            place = definition.global_offset, definition.shape
            unique.setdefault(place, (definition, value))
    found = list(unique.values())
    if not _tile(shape, [definition for definition, _ in found]):
        return None
    whole = np.empty(shape, parts[0][1].dtype)
    for definition, value in found:
        whole[_block(definition)] = value
    whole.flags.writeable = False
    return whole


def tell_missing(
    definitions: Iterable[Definition], savers: Iterable[str], workers: Iterable[str]
) -> str:
    """Say which parts there are and which are missing.

    Args:
        definitions: Of the parts that were saved; at least one.
        savers: Names of the workers that saved them.
        workers: Names of all workers that were seen.
    """
    known = list(definitions)
    cut = [i for i, p in enumerate(known[0].placements) if p[0] == PlacementKind.SHARD]
    sizes = [known[0].placements[i][3] for i in cut]
    there = {tuple(each.placements[i][4] for i in cut) for each in known}
    missing = [at for at in np.ndindex(*sizes) if at not in there]
    by = list(savers)
    text = f"{len(there)} of {math.prod(sizes)} parts saved, by {', '.join(by)}"
    if missing:
        shown = ", ".join(str(at[0] if len(at) == 1 else at) for at in missing[:4])
        more = ", ..." if len(missing) > 4 else ""
        text += f"; missing: that of mesh coordinate {shown}{more}"
    else:
        text += "; they are not blocks of the whole"
    silent = [worker for worker in workers if worker not in by]
    if silent:
        text += f"; nothing from {', '.join(silent)}"
    return text


def _tile(shape: tuple[int, ...], definitions: Sequence[Definition]) -> bool:
    """Return whether these parts cover the shape, each element once."""
    if sum(math.prod(each.shape) for each in definitions) != math.prod(shape):
        return False
    if not definitions:
        return True
    low = np.array([each.global_offset for each in definitions], np.int64)
    high = low + np.array([each.shape for each in definitions], np.int64)
    if (low < 0).any() or (high > np.array(shape, np.int64)).any():
        return False
    for i in range(len(low) - 1):
        apart = (high[i] <= low[i + 1 :]) | (high[i + 1 :] <= low[i])
        if not apart.any(axis=1).all():
            return False
    return True


def _block(definition: Definition) -> tuple[slice, ...]:
    pairs = zip(definition.global_offset, definition.shape, strict=True)
    return tuple(slice(start, start + size) for start, size in pairs)
