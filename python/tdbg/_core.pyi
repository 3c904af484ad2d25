"""The C++ core: capture, storage and statistics.  Internal to tdbg."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg._core_reader import Definition as Definition
from tdbg._core_reader import Event as Event
from tdbg._core_reader import Problem as Problem
from tdbg._core_reader import RunReader as RunReader

__version__: str

# Structured dtypes of the tables below, as the core lays them out.
ROW_DTYPE: np.dtype[np.void]
"""step i8, definition u4, call u2, micro_batch u2, flags u4, position u4, count u8,
nan u8, positive_infinity u8, negative_infinity u8, zero u8, min u8, max u8 (bits of a
float64, int64 or uint64, by the definition's dtype), abs_min f8, mean f8, m2 f8, l1 f8,
l2 f8."""
STEP_DTYPE: np.dtype[np.void]
"""step i8, mode u4, flags u4, mode_step i8, wall_ns i8, monotonic_ns i8, offered u8,
written u8, dropped u8, failed u8, micro_batches u4, capture_ns i8, duration_ns i8,
sequence u8 (4 bytes of padding behind micro_batches)."""
TENSOR_DTYPE: np.dtype[np.void]
"""step i8, sequence u8, offset u8, payload_length u8, definition u4, shard u4,
call u2, micro_batch u2, position u4."""
SCALAR_DTYPE: np.dtype[np.void]
"""step i8, definition u4, flags u4, wall_ns i8, value f8."""
SPAN_DTYPE: np.dtype[np.void]
"""step i8, definition u4, flags u4, start_ns i8, duration_ns i8, thread u8, depth u4,
value i8 (packed)."""
GAP_DTYPE: np.dtype[np.void]
"""first_step i8, last_step i8, records u8, bytes u8, reason u4, what u4."""
SEGMENT_DTYPE: np.dtype[np.void]
"""step i8, start u8, n_rows u8, signature u8 (start is the number of its first row)."""

def implementation() -> str:
    """Name of the statistics kernels in use.

    Raises tdbg.errors.ConfigurationError for a bad TDBG_FORCE_IMPLEMENTATION.
    """

def implementations() -> list[str]:
    """Names of those this processor can run, best last."""

def reduce(
    array: Any, scale: float = 1.0, precise: bool = False, threads: int = 1,
    implementation: str = "",
) -> NDArray[np.void]:  # fmt: skip
    """Row (ROW_DTYPE, no dimensions) of any strides; TypeError: without statistics.

    precise: floats within 1e-12.  implementation: by name, else the one in use."""

def count_bins(
    array: Any, scale: float = 1.0
) -> tuple[NDArray[np.uint16], NDArray[np.uint64]]:
    """Histogram of an array of any strides: ascending keys, and a count for each.

    Raises TypeError, naming the dtype, for what has no statistics.
    """

def count_units(array: Any, axis: int, low: float, high: float) -> NDArray[np.uint64]:
    """Counts (3, units): active, beyond, all."""

def masked_crc32c(data: bytes) -> int: ...

class TensorCodec:
    """What the writer makes of tensors, without a writer: to measure and to test.

    encode() writes the payload of a `tensor` record (docs/format.md) into the front
    of *out* and returns its length; the call that does so n-th counts as record n,
    to which a later difference may refer.  *values* and *out* are contiguous
    buffers; raises tdbg.errors.ConfigurationError where *out* is too small.
    """

    def __init__(self, codec: str = "auto", previous_bytes: int = ...) -> None: ...
    def encode(
        self,
        values: Any,
        out: Any,
        dtype: str,
        role: int = 1,
        backlog: float = 0.0,
    ) -> int: ...
    def begin_shard(self) -> None:
        """Make the next tensor of each name a key frame."""

    @property
    def previous_bytes(self) -> int:
        """Memory of the values that are kept to be differences to."""

def decode_tensor(payload: Any, item_size: int, out: Any, base: Any = b"") -> None:
    """Decode a payload of encode() into *out*, of exactly the raw length.

    *base* has the values of the record that it is a difference to.  Raises
    tdbg.errors.StorageError for what is damaged.
    """

class Capture:
    """The writer of one process, with the statistics kernels in front of it.

    The constructor raises tdbg.errors.ConfigurationError or StorageError, flush()
    StorageError, define() ConfigurationError for what cannot be stored; arguments
    of a wrong type raise TypeError.  The rest never raises: what cannot be captured
    is counted.  Calls and micro-batches beyond 65535 count as 65535.  dtype is a
    name ("float32", "bfloat16", "float8_e4m3fn", ...) or any other NumPy dtype.str
    ("<M8[ns]") with item_size.  Strides are in bytes, None: contiguous.  Pointers
    are addresses of CPU memory.
    """

    def __init__(
        self,
        run_directory: str,
        *,
        run_uuid: bytes,
        attempt_uuid: bytes,
        attempt_ordinal: int = 0,
        role: str = "train",
        rank: int = 0,
        world_size: int = 1,
        queue_bytes: int = ...,
        shard_bytes: int = ...,
        min_free_bytes: int = ...,
        overflow: str = "block",
        codec: str = "auto",
        flush_interval: float = 0.2,
        precise: bool = False,
        threads: int = 1,
    ) -> None: ...
    @property
    def directory(self) -> str: ...
    @property
    def generation(self) -> int: ...
    def define(
        self,
        name: str,
        role: int,
        dtype: str = "",
        shape: Sequence[int] = (),
        *,
        item_size: int = 0,
        flags: int = 0,
        aliases: Sequence[str] = (),
        global_shape: Sequence[int] = (),
        global_offset: Sequence[int] = (),
        placements: Sequence[tuple[int, int, int, int, int]] = (),
    ) -> int:
        """Id of the definition; placements are (kind, reduction, dimension, mesh
        size, coordinate)."""

    def statistics(
        self,
        step: int,
        ids: Sequence[int],
        pointers: Sequence[int],
        strides: Sequence[Sequence[int] | None] | None = None,
        *,
        call: int = 0,
        micro_batch: int = 0,
        scale: float = 1.0,
    ) -> None:
        """Reduce these tensors now, in one call (the GIL is released)."""

    def values(
        self,
        step: int,
        id: int,
        pointer: int,
        strides: Sequence[int] | None = None,
        *,
        call: int = 0,
        micro_batch: int = 0,
    ) -> bool: ...
    def count_histogram(
        self,
        step: int,
        id: int,
        pointer: int,
        strides: Sequence[int] | None = None,
        *,
        call: int = 0,
        micro_batch: int = 0,
        scale: float = 1.0,
    ) -> bool: ...
    def unit_summary(
        self,
        step: int,
        unit_id: int,
        id: int,
        pointer: int,
        strides: Sequence[int] | None = None,
        *,
        call: int = 0,
        micro_batch: int = 0,
        low: float = ...,
        high: float = ...,
        of_rows: bool = False,
    ) -> bool: ...
    def add_rows(
        self,
        step: int,
        ids: Sequence[int],
        calls: Sequence[int],
        micro_batches: Sequence[int],
        flags: Sequence[int],
        words: NDArray[np.uint64],
    ) -> None:
        """Rows that somebody else computed: of each the 12 fields of the core's
        Summary as bits; flags other than 0 say that a factor was applied."""

    def scalar(self, step: int, id: int, value: float, wall_ns: int) -> bool: ...
    def event(self, step: int, kind: int, severity: int, json: bytes) -> bool: ...
    def span(
        self,
        step: int,
        id: int,
        start_ns: int,
        duration_ns: int,
        *,
        thread: int = 0,
        depth: int = 0,
        value: int = 0,
    ) -> bool: ...
    def histogram(
        self,
        step: int,
        id: int,
        keys: NDArray[np.uint16],
        counts: NDArray[np.uint64],
        *,
        call: int = 0,
        micro_batch: int = 0,
    ) -> bool: ...
    def refuse(self, step: int, n_records: int = 1, n_bytes: int = 0) -> None: ...
    def end_step(
        self,
        step: int,
        mode: int,
        mode_step: int,
        *,
        flags: int = 0,
        micro_batches: int = 1,
        capture_ns: int = 0,
        duration_ns: int = 0,
    ) -> bool: ...
    def flush(self, durable: bool = False, timeout: float = 30.0) -> None: ...
    def close(self, timeout: float = 5.0) -> bool:
        """True when everything was written; never raises."""

    @property
    def n_lost(self) -> int:
        """Records dropped or failed so far, without those that were refused for
        what they are.  Takes no lock."""

    def device_state(self, device: int) -> dict[str, Any]:
        """What became of a CUDA device: whether its kernels are used, why not, and
        counts."""

    def graph_id(self, device: int, stream: int) -> int:
        """Of the graph that the stream is recorded into; 0: none."""

    def graph_replayed(self, graph: int, step: int, device: int, stream: int) -> bool:
        """The rows of this replay belong to the step."""

    def losses(self) -> dict[str, tuple[int, int, int]]:
        """Why: (records, bytes, what), for each reason that there was.

        Reasons: queue_full, disk_nearly_full, io_error, larger_than_queue, refused,
        stalled, sampled, device_error.  what: bits 1 rows, 2 tensors, 4 scalars,
        8 steps, 16 events, 32 spans, 64 histograms.
        """

    def counters(self) -> dict[str, int]:
        """The fields of the Counters struct by name; state as its number.

        silence_ms: for how long the writer thread has shown no life, with something
        queued.  steps_kept, steps_left_out: under overflow="sample", of the steps
        with raw values.
        """

class Slot:
    """A name before its definitions, for a Taker; `units` names its unit summary."""

    def __init__(
        self,
        name: str,
        role: int,
        aliases: Sequence[str] = (),
        units: str = "",
        global_shape: Sequence[int] = (),
        global_offset: Sequence[int] = (),
        placements: Sequence[tuple[int, int, int, int, int]] = (),
        *,
        low: float = ...,
        high: float = ...,
        of_rows: bool = False,
    ) -> None: ...
    raw_limit: int  # Bytes of a value that is kept where LIMITED_VALUES are wanted.
    @property
    def too_large(self) -> int: ...  # Bytes of the largest one that was not; 0: none.

class Taker:
    """Takes tensors of these types, read by DLPack's C exchange API, into a Capture."""

    WANTED: dict[str, int]  # The flags of tdbg.capture.wants, by name.

    def __init__(self, capture: Capture, types: tuple[type, ...]) -> None: ...
    @property
    def can_read(self) -> bool: ...  # Whether any of the types has the API.
    @property
    def n_repeated(self) -> int: ...  # Rows copied, of memory reduced before.
    @property
    def n_too_large(self) -> int: ...  # Values over the limits of their slots.
    @property
    def spent_ns(self) -> int: ...  # In CallTaker.take, of this taker.
    @property
    def devices(self) -> set[int]: ...  # Of CUDA, of which there were tensors.
    def begin_forward(
        self, context: Any, calls: Any, wants: Any, step: int, micro_batch: int
    ) -> None: ...
    def end_forward(self) -> None: ...
    def begin_values(
        self, step: int, slots: list[Slot], tensors: list[Any]
    ) -> list[int]:
        """Begin to copy the values of those that lie on a device with kernels.

        Returns their indices.  Until ``fence`` their memory must live and stay as it
        is.
        """

    def fence(self) -> None: ...  # Current streams wait for the copies begun.
    def take(self, *arguments: Any) -> list[int] | None:
        """By position: step, slots, tensors, wanted, call, micro_batch, scale, reuses.

        wanted: 1 row, 2 value, 4 value if a single number, 8 histogram, 16 units.
        scale: a float, or a tensor of one float32 on a CUDA device that divides.
        reuses: copy the row of memory reduced before in this step and micro-batch,
        and unwritten since.  Returns the indices of what it cannot read, or None.
        """

class CallTaker:
    """Takes the calls of a module; cpp/bindings/call_taker.h has the contract."""

    def __init__(self, taker: Taker, key: object, backward_id: Any) -> None: ...
    def prepare(
        self, wants: Any, input: Any, of_input: int, output: Any, of_output: int
    ) -> None: ...
    def take(self, *arguments: Any) -> bool:
        """By position: args, kwargs and output, or None for what a hook is not given.
        Whether it was taken; otherwise nothing was, and nothing counted."""

class ParameterList:
    """Parameters with their gradients, as cpp/bindings/parameter_list.h has it."""

    def __init__(self, taker: Taker, entries: Iterable[Any]) -> None: ...
    def take(self, step: int) -> list[tuple[int, Any]] | None: ...
    def found(self) -> list[int]: ...
