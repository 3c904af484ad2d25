"""``JaxAdapter``: what capture asks JAX."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from tdbg.capture.adapter import FrameworkAdapter, Part, TensorRef, array_ref
from tdbg.config.kinds import Kind
from tdbg.hooks.jax.kinds import kind_of
from tdbg.hooks.jax.shards import part_of

__all__ = ["JaxAdapter", "pointer_of", "refs"]

_CPU = "cpu"


class JaxAdapter(FrameworkAdapter):
    """Describes the arrays of JAX."""

    name = "jax"
    version = jax.__version__

    def is_tensor(self, value: Any) -> bool:
        """Return whether a value is an array with values, and no tracer."""
        return isinstance(value, jax.Array | np.ndarray) and not isinstance(
            value, jax.core.Tracer
        )

    def kind_of(self, module: Any) -> Kind | None:
        """Return the kind of a module of Flax or Equinox, or of a function."""
        return kind_of(module)

    def describe(self, tensor: Any) -> TensorRef | None:
        """Return where an array lies, which is waited for; None for a part of one."""
        if not isinstance(tensor, jax.Array):
            return array_ref(tensor)
        found = list(refs(tensor))
        return found[0] if len(found) == 1 else None

    def read_number(self, value: Any) -> float | None:
        """Return a value as a number, or None if it is none."""
        try:
            return float(np.asarray(value).reshape(()))
        except (TypeError, ValueError, RuntimeError):
            return None

    def process_rank(self) -> tuple[int, int] | None:
        """Return the rank and the number of processes, or None for a single one."""
        count = jax.process_count()
        return (jax.process_index(), count) if count > 1 else None


def refs(array: jax.Array) -> Iterator[TensorRef]:
    """Yield where the parts of an array lie that this process is to capture.

    That is its own part of each array, and of what several devices hold the first
    one's, of all processes. Parts that lie on no CPU are copied to one.
    """
    sharding = array.sharding
    is_whole = sharding.is_fully_replicated
    for shard in array.addressable_shards:
        if shard.replica_id != 0:
            continue
        part = None
        if not is_whole:
            offset = tuple(
                index.indices(n)[0]
                for index, n in zip(shard.index, array.shape, strict=True)
            )
            part = part_of(shard.data.shape, array.shape, offset)
        ref = _ref_of(shard.data, part)
        if ref is not None:
            yield ref


def pointer_of(array: jax.Array) -> int:
    """The address of an array that lies on one CPU, whole, with statistics; or 0."""
    if not _is_one_cpu(array.sharding) or not _has_statistics(array.dtype):
        return 0
    pointer: int = array.unsafe_buffer_pointer()
    return pointer


@functools.lru_cache(64)
def _is_one_cpu(sharding: Any) -> bool:
    devices = sharding.device_set
    return len(devices) == 1 and next(iter(devices)).platform == _CPU


@functools.cache
def _has_statistics(dtype: Any) -> bool:
    return dtype.kind in "biuf" or dtype.name in _NAMED - _COMPLEX


def _ref_of(data: jax.Array, part: Part | None) -> TensorRef | None:
    """Where an array on one device lies.

    The address is asked for, and no view is made: a view that is alive would keep the
    next step from taking the memory over (``donate_argnums``).
    """
    if next(iter(data.devices())).platform != _CPU:
        ref = array_ref(np.asarray(data))
        return None if ref is None else ref._replace(part=part)
    if data.dtype.kind not in "biuf" and data.dtype.name not in _NAMED:
        return None
    pointer = data.unsafe_buffer_pointer()
    return TensorRef(pointer, data.dtype.name, data.shape, owner=data, part=part)


_COMPLEX = frozenset({"complex64", "complex128"})
_NAMED = frozenset(
    {
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "complex64",
        "complex128",
    }
)
