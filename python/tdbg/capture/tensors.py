"""The tensors of a framework: where they lie, and what of the core reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tdbg.capture.remote import RemoteBackend
from tdbg.capture.wants import StepWants

__all__ = [
    "ComputedRow",
    "Local",
    "Part",
    "TensorRef",
    "Tensors",
    "array_ref",
    "bytes_of",
]

# The kind of a placement that splits a dimension: docs/format.md, `definition`.
SHARD = 1
# Bytes of the largest element type that goes by its name: not `longdouble`.
_LARGEST_NAMED = 8


class Part(NamedTuple):
    """Where what a rank holds of a distributed tensor lies in the whole.

    Attributes:
        global_shape: Of the whole.
        global_offset: Of the first element that is here.
        placements: By dimension of the mesh: kind, reduction, dimension, mesh size
            and coordinate, as docs/format.md numbers them.
    """

    global_shape: tuple[int, ...]
    global_offset: tuple[int, ...]
    placements: tuple[tuple[int, int, int, int, int], ...]

    def splits(self, dimension: int) -> bool:
        """Whether ranks hold different indices of a dimension."""
        return any(
            each[0] == SHARD and each[2] == dimension for each in self.placements
        )


class Local(NamedTuple):
    """What a rank holds of a tensor that several share.

    Attributes:
        tensor: It, plain; None where nothing here can be captured.
        part: Where it lies; None where it is the whole.
    """

    tensor: Any
    part: Part | None = None


class TensorRef(NamedTuple):
    """Where a tensor lies.

    Attributes:
        pointer: Address in the memory of the CPU.
        dtype: NumPy's or ml_dtypes' name, or another NumPy ``dtype.str``.
        shape: Its dimensions.
        strides: In bytes; None where it is contiguous.
        item_size: Bytes per element; needed for a ``dtype.str`` only.
        owner: Keeps the memory where it is as long as the reference lives.
        is_remote: Whether it lies on a device: then *owner* is the tensor itself,
            and *pointer* is not read.
        part: Where it lies in a distributed tensor; None: it is whole.
    """

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    item_size: int = 0
    owner: object = None
    is_remote: bool = False
    part: Part | None = None


class ComputedRow(NamedTuple):
    """The row of a tensor that has no plain memory, as its framework computed it.

    Attributes:
        dtype: NumPy's or ml_dtypes' name.
        shape: Of the whole tensor.
        words: The 12 fields of the core's row, as bits (uint64).
    """

    dtype: str
    shape: tuple[int, ...]
    words: NDArray[Any]


class _Taker(Protocol):
    """What is used of ``_core.Taker``; documented there."""

    @property
    def n_repeated(self) -> int: ...

    @property
    def n_too_large(self) -> int: ...

    @property
    def spent_ns(self) -> int: ...

    @property
    def devices(self) -> set[int]: ...

    def begin_forward(
        self,
        context: Any,
        calls: dict[Any, int],
        wants: StepWants,
        step: int,
        micro_batch: int,
    ) -> None: ...

    def end_forward(self) -> None: ...

    def begin_values(
        self, step: int, slots: list[Any], tensors: list[Any]
    ) -> list[int]: ...

    def fence(self) -> None: ...

    def take(
        self,
        step: int,
        slots: Sequence[Any],
        tensors: Sequence[Any],
        wanted: Sequence[int],
        call: int,
        micro_batch: int,
        scale: Any,
        reuses: bool,
        /,
    ) -> Iterable[int] | None: ...


class Tensors(NamedTuple):
    """How the tensors of a framework are read.

    Attributes:
        describe: Where one lies; None for what cannot be captured.
        taker: Reads most of them by itself, without Python; None: none.
        make_slot: Makes what the taker knows of a plan.
        make_calls: Makes what takes the calls of one module without Python, from
            the taker, the module's key among the calls of a forward, and what says
            whether autograd is calling (-1: it is not).
        make_parameters: Makes what takes many parameters with their gradients.
        remote: What the framework does on its devices; None: nothing is taken there.
        local: What of a tensor lies on this rank; None for a tensor that is none of
            several ranks'.
        compute_row: The row, at a scale, of what cannot be described but counted all
            the same (sparse tensors); None: it cannot.
        compute_units: The counts of the rows of such a one, as units.
    """

    describe: Callable[[Any], TensorRef | None] = lambda _: None
    taker: _Taker | None = None
    make_slot: Callable[..., Any] = lambda *_, **__: None
    make_calls: Callable[[Any, object, Callable[[], int]], Any] = lambda *_: None
    make_parameters: Callable[[Any, Sequence[Any]], Any] = lambda *_: None
    remote: RemoteBackend | None = None
    local: Callable[[Any], Local | None] = lambda _: None
    compute_row: Callable[[Any, float], ComputedRow | None] = lambda *_: None
    compute_units: Callable[[Any], NDArray[Any] | None] = lambda _: None


def bytes_of(ref: TensorRef) -> int:
    """How large the values of a tensor are."""
    size = ref.item_size or np.dtype(getattr(ml_dtypes, ref.dtype, ref.dtype)).itemsize
    return size * math.prod(ref.shape)


def array_ref(value: object) -> TensorRef | None:
    """Anything that NumPy takes for an array of plain elements; None: it is not."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None  # Ragged, or no array at all.
    if array.dtype.kind in "OVc":
        return None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    is_named = array.dtype.kind in "biuf" and array.dtype.itemsize <= _LARGEST_NAMED
    text = array.dtype.name if is_named else array.dtype.str
    return TensorRef(
        array.ctypes.data,
        text,
        array.shape,
        None if array.flags.c_contiguous else array.strides,
        array.itemsize,
        array,
    )
