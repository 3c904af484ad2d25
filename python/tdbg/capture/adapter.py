"""What capture asks a framework: where its tensors lie, its devices, its ranks.

A framework derives from ``FrameworkAdapter``; docs/adding-a-framework.md shows how.

Thread safety: values, and what ``FrameworkAdapter`` says.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import Kind
from tdbg.config.options import KeyValueStore, SessionOptions
from tdbg.run.schema import PlacementKind

__all__ = [
    "AsyncResult",
    "ComputedRow",
    "DeviceArray",
    "DeviceBackend",
    "FrameworkAdapter",
    "Local",
    "Part",
    "TensorRef",
    "UnitSummarySpec",
    "array_ref",
    "bytes_of",
]


_INFINITY = float("inf")


class UnitSummarySpec(NamedTuple):
    """How the units of a tensor are counted: docs/statistics.md, "The unit summary".

    Attributes:
        low: Elements below it are out of range.
        high: Elements above it are out of range.
        rows_are_units: For the gradient of an embedding: its rows are the units,
            and elements other than zero are active.
        units_last: Whether the last dimension numbers the units, as where channels
            come last; otherwise it is the second one.
    """

    low: float = -_INFINITY
    high: float = _INFINITY
    rows_are_units: bool = False
    units_last: bool = False

    def axis(self, n_dimensions: int) -> int:
        """The dimension that numbers the units; REQUIRES: there is one."""
        if self.rows_are_units:
            return 0
        return n_dimensions - 1 if self.units_last else min(1, n_dimensions - 1)


class AsyncResult(Protocol):
    """A result that a device is computing or sending."""

    @property
    def n_bytes(self) -> int:
        """How much memory the result occupies until it is read."""
        ...

    def is_there(self) -> bool:
        """Whether the result has arrived; never waits.

        Raises:
            RuntimeError: If it never will arrive.
        """


class DeviceArray(AsyncResult, Protocol):
    """An array that a device is sending to the memory of the CPU."""

    @property
    def array(self) -> NDArray[Any]:
        """The array, contiguous; only to be read when ``is_there``."""


class DeviceBackend(Protocol):
    """The operations of a framework on its devices; no call waits for a device.

    A call returns None for what the device cannot do now.
    """

    def n_bytes(self, tensor: Any) -> int:
        """How large the tensor's elements are together."""

    def queue(self, tensor: Any) -> Hashable:
        """The queue of the tensor's work: its device and stream."""

    def row(self, tensor: Any, scale: Any) -> Any | None:
        """Begin to compute the tensor's statistics; the result is for ``send_rows``."""

    def send_rows(self, queue: Hashable, rows: Sequence[Any]) -> DeviceArray | None:
        """Begin to send these statistics of one queue: uint64, 12 to a row."""

    def values(self, tensor: Any) -> DeviceArray | None:
        """Begin to send the tensor's elements, as bytes."""

    def units(self, tensor: Any, spec: UnitSummarySpec) -> DeviceArray | None:
        """Begin to count the tensor's units, and to send the three rows of counts."""


# Bytes of the largest element type that goes by its name: not `longdouble`.
_LARGEST_NAMED = 8


class Part(NamedTuple):
    """Where the part that a rank holds lies in the whole of a distributed tensor.

    Attributes:
        global_shape: Shape of the whole.
        global_offset: Where the first element of the part lies in the whole.
        placements: By dimension of the mesh: kind, reduction, dimension, mesh size
            and coordinate, as docs/format.md numbers them.
    """

    global_shape: tuple[int, ...]
    global_offset: tuple[int, ...]
    placements: tuple[tuple[int, int, int, int, int], ...]

    def splits(self, dimension: int) -> bool:
        """Whether ranks hold different indices of a dimension."""
        return any(
            each[0] == PlacementKind.SHARD and each[2] == dimension
            for each in self.placements
        )


class Local(NamedTuple):
    """What a rank holds of a tensor that several ranks share.

    Attributes:
        tensor: The rank's part, a plain tensor; None if it cannot be captured.
        part: Where the part lies; None if it is the whole.
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
        on_device: Whether it lies on a device: then *owner* is the tensor itself,
            and *pointer* is not read.
        part: Where it lies in a distributed tensor; None: it is whole.
    """

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    item_size: int = 0
    owner: object = None
    on_device: bool = False
    part: Part | None = None


class ComputedRow(NamedTuple):
    """The statistics of a tensor without plain memory, computed by its framework.

    Attributes:
        dtype: NumPy's or ml_dtypes' name.
        shape: Shape of the whole tensor.
        words: The 12 fields of the core's row, as bits (uint64).
    """

    dtype: str
    shape: tuple[int, ...]
    words: NDArray[Any]


class FrameworkAdapter:
    """Everything that capture has to ask a framework; one object of each hook.

    ``describe`` and ``is_tensor`` are what every framework answers. All others have
    defaults that are right for a framework whose tensors are whole and lie in the
    memory of the CPU, on one rank.

    Thread safety: ``describe``, ``local_shard``, ``compute_row``, ``to_dense`` and
    ``compute_units`` are called by whichever thread captures; the rest by the thread
    that makes the hook or trains.

    Errors: nothing raises for a tensor that cannot be captured: it answers None.

    Attributes:
        name: The framework's, as the configuration event of a run has it.
        version: The framework's version, likewise.
        tensor_types: Exact types of tensors that the core may read by DLPack
            without asking ``describe``.
        device_backend: The framework's operations on its devices; None: tensors on
            devices are refused.
    """

    name: str = ""
    version: str = ""
    tensor_types: tuple[type, ...] = ()
    device_backend: DeviceBackend | None = None

    def quietly(self) -> contextlib.AbstractContextManager[object]:
        """Make what surrounds the user's own checks: no gradient is recorded in it."""
        return contextlib.nullcontext()

    def is_tensor(self, value: Any) -> bool:
        """Whether *value* is one of the framework's tensors."""
        del value
        return False

    def kind_of(self, module: Any) -> Kind | None:
        """Return the kind of a module or loss, which rules ask; None: of none."""
        del module
        return None

    def describe(self, tensor: Any) -> TensorRef | None:
        """Return where a tensor lies; None if it cannot be captured."""
        del tensor
        return None

    def arrays(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """Return the tensors, with arrays of NumPy in place of those that can be such.

        The core reads arrays by itself, many in one call; ``describe`` is asked for
        the rest.  Called unless there are ``tensor_types``.  An array must share the
        memory of its tensor where that lies on the CPU, and may be a copy elsewhere.
        """
        return tensors

    def local_shard(self, tensor: Any) -> Local | None:
        """Return what this rank holds of a distributed tensor; None: it is none."""
        del tensor
        return None

    def compute_row(self, tensor: Any, scale: float) -> ComputedRow | None:
        """Return the statistics of a tensor that ``describe`` refuses (a sparse one).

        Args:
            tensor: The tensor.
            scale: Multiplies its elements.
        """
        del tensor, scale
        return None

    def to_dense(self, tensor: Any) -> TensorRef | None:
        """Return such a tensor with all of its zeros, in the memory of the CPU.

        Args:
            tensor: The tensor, of a size that the memory can hold.
        """
        del tensor
        return None

    def compute_units(self, tensor: Any) -> NDArray[Any] | None:
        """Return the counts of the rows of such a tensor, with the rows as units."""
        del tensor
        return None

    def import_array(self, value: Any) -> Any:
        """Return another library's array as a tensor, if it lies on a device.

        Anything else is returned as it is.
        """
        return value

    def read_number(self, value: Any) -> float | DeviceArray | None:
        """Return a number, or one that is on its way from a device; None: it is none.

        Args:
            value: A number of Python, or a tensor of one element.
        """
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            return None

    def process_rank(self) -> tuple[int, int] | None:
        """Return this process's rank and the number of ranks.

        None where the framework does not know: then the launcher's variables count.
        """
        return None

    def rank_store(self, name: str) -> KeyValueStore | None:
        """Return a store that all ranks share; None if the framework has none.

        Args:
            name: What it is for, the same on all ranks.
        """
        del name
        return None

    def n_threads(self) -> int:
        """Return how many threads the framework's own operations use."""
        return 1

    def accelerators(self) -> tuple[str, ...]:
        """Return the names of the devices in use; () where none is, or none is known.

        It must not start a device that nobody uses yet.
        """
        return ()

    def session_opens(self, options: SessionOptions) -> None:
        """Learn how the session is opened, such as which ranks write."""
        del options


def bytes_of(ref: TensorRef) -> int:
    """The size of a tensor's elements, in bytes."""
    size = ref.item_size or np.dtype(getattr(ml_dtypes, ref.dtype, ref.dtype)).itemsize
    return size * math.prod(ref.shape)


@functools.lru_cache(maxsize=256)
def _name_of(dtype: np.dtype[Any]) -> str:
    """The name of an element type, which NumPy makes anew whenever it is asked."""
    is_named = dtype.kind in "biuf" and dtype.itemsize <= _LARGEST_NAMED
    return dtype.name if is_named or _is_small_float(dtype) else dtype.str


@functools.lru_cache(maxsize=256)
def _is_small_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is one of ml_dtypes, which NumPy calls void."""
    return hasattr(ml_dtypes, dtype.name)


def array_ref(value: object) -> TensorRef | None:
    """Where an array lies that NumPy makes of *value*; None if it makes none."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None  # Ragged, or no array at all.
    if array.dtype.kind in "OVc" and not _is_small_float(array.dtype):
        return None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return TensorRef(
        array.ctypes.data,
        _name_of(array.dtype),
        array.shape,
        None if array.flags.c_contiguous else array.strides,
        array.itemsize,
        array,
    )
