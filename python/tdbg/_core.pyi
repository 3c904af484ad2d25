"""The C++ core: capture, storage and statistics.  Internal to tdbg."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict, type_check_only

import numpy as np
from numpy.typing import NDArray

from tdbg._core_batch import *  # noqa: F403
from tdbg._core_records import *  # noqa: F403
from tdbg._core_records import Definition, EnvelopeGrid, Event, Problem
from tdbg._core_sampler import *  # noqa: F403
from tdbg._core_signals import *  # noqa: F403
from tdbg._core_steps import *  # noqa: F403
from tdbg._core_taps import *  # noqa: F403

__version__: str

def schema() -> dict[str, dict[str, int]]:
    """Return the numbers that Python shares with the core, by group and name.

    On disk (docs/format.md; never renumbered): RecordType, WriterRole, TensorRole,
    PlacementKind, EventKind, StepFlag, RowFlag, GapReason, GapContent (bits of a gap's
    `what`), EndReason, ExtremeClass, Codec, WriterState.  CaptureFlag: what to capture
    of a tensor, the flags of BatchCapture.take.  Size: lengths and limits in bytes,
    and the largest number of dimensions.
    """

# Structured dtypes of the tables below, as the core lays them out.
ROW_DTYPE: np.dtype[np.void]
"""step i8, definition u4, call u2, micro_batch u2, flags u4, position u4, and the
fields of tdbg.stats.row_fields: counts u8, extremes u8 (bits of a float64, int64 or
uint64, by the definition's dtype), the others f8."""
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
"""first_step i8, last_step i8, records u8, bytes u8, reason u4, what u4,
first_sequence u8, end_sequence u8."""
HOLE_DTYPE: np.dtype[np.void]
"""first_sequence u8, end_sequence u8."""
SEGMENT_DTYPE: np.dtype[np.void]
"""step i8, start u8, n_rows u8, signature u8 (start is the number of its first row)."""

def instances_of(objects: list[Any], kinds: set[type]) -> list[Any]:
    """Return the objects whose type is one of these, in their order."""

def implementation() -> str:
    """Name of the statistics kernels in use; tdbg.errors.ConfigurationError for a bad
    TDBG_FORCE_IMPLEMENTATION."""

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
    """Histogram of an array of any strides: ascending keys, and a count for each;
    TypeError, naming the dtype, for what has no statistics."""

def count_units(array: Any, axis: int, low: float, high: float) -> NDArray[np.uint64]:
    """Counts (3, units): active, out of range, all."""

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
        self, values: Any, out: Any, dtype: str, role: int = 1, backlog: float = 0.0
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
        keep_last: int | None = None,
        keep_every: int = 0,
        max_bytes: int = 0,
        shard_age: float = 0.0,
        spool_bytes: int = 0,
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
        rows_are_units: bool = False,
        units_last: bool = False,
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
    def spans(self, step: int, rows: NDArray[np.void]) -> bool:
        """Rows of SPAN_DTYPE, in one record; their step is the argument's."""

    def samples(self, name: str, columns: str, rows: Any) -> bool:
        """Rows of a table, in one record: a contiguous buffer of whole rows.

        *columns* is what tdbg.run.profile_tables.written_columns returns; ValueError
        for anything else, and for rows that are not whole.  Any thread may call it.
        """

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
        wall_ns: int = 0,
    ) -> bool:
        """wall_ns: when it ended, in ns since 1970 UTC; 0: now."""

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

    def lost_tensors(self) -> dict[str, tuple[list[tuple[str, int, int]], int]]:
        """Return of which tensors records were lost, by reason.

        Returns:
            For each reason the name, the number of records and the first step of each
            of the first tensors, and how many more there are.
        """

    def losses(self) -> dict[str, tuple[int, int, int]]:
        """Why: (records, bytes, what), for each reason that there was.

        Reasons: queue_full, disk_nearly_full, io_error, larger_than_queue, refused,
        stalled, sampled, device_error, retention.  what: bits 1 rows, 2 tensors,
        4 scalars, 8 steps, 16 events, 32 spans, 64 histograms, 128 samples.
        """

    def counters(self) -> dict[str, int]:
        """The fields of the Counters struct by name; state as its number.

        silence_ms: for how long the writer thread has shown no life, with something
        queued.  steps_kept, steps_left_out: under overflow="sample", of the steps
        with raw values.
        """

def apply_retention(
    directories: list[str],
    newest_step: int,
    *,
    keep_last: int | None,
    keep_every: int,
    max_bytes: int,
    is_dry: bool,
    is_live: bool,
) -> tuple[list[dict[str, Any]], int]:
    """Remove old data of writers, oldest first; see cpp/writer/retention.h.

    Returns what was removed (``directory``, ``shard``, ``bytes``, ``values_only``,
    ``first_step``, ``last_step``, ``records``), and the bytes that remain.  Raises
    tdbg.errors.StorageError.
    """

def look_at_writer(
    directory: str, files: RemoteFiles | None = None
) -> dict[str, Any] | None:
    """Who writes in a writer's directory, by its commit page; None without a valid one.

    ``state`` (as ``RunReader.liveness``), ``pid``, ``process_start``, ``boot_id``,
    ``host``, ``counter`` of the slot, ``heartbeat_ns`` of CLOCK_BOOTTIME.
    """

@type_check_only
class DefinitionColumns(TypedDict):
    """What definitions are: arrays, and the lists that they count in."""

    id: NDArray[np.uint32]
    role: NDArray[np.uint16]
    dtype: NDArray[np.uint32]
    shape: NDArray[np.uint32]  # Of the whole, where it is a part.
    n_elements: NDArray[np.uint64]  # Of the part.
    is_placed: NDArray[np.uint8]  # Whether it has placements.
    dtypes: list[str]
    shapes: list[tuple[int, ...]]

class RemoteFiles:
    """Files of a writer in an object store; see cpp/reader/remote_files.h.

    Safe to share between threads.

    Args:
        fetch: Called with (name, offset, length) of some ranges; returns the bytes of
            each.  One RunReader at a time calls it.
    """

    def __init__(
        self, fetch: Callable[[list[tuple[str, int, int]]], list[bytes]]
    ) -> None: ...
    def add(self, name: str, size: int, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Tell of a file, and of bytes of it at some offsets."""

    def tell(self, commit_page: bytes, state: str, is_whole: bool) -> None:
        """Tell how the writer is, and whether all that it wrote is there.

        state: running, stalled, closed, dead or unknown.
        """

    @property
    def n_bytes(self) -> int: ...

class RunReader:
    """Reader of one writer directory; see cpp/reader/run_reader.h.

    Safe to share between threads.  Raises tdbg.errors.StorageError and its
    subclasses.
    """

    def __init__(
        self,
        directory: str,
        run_uuid: bytes | None = None,
        use_caches: bool = True,
        map_files: bool = False,
        max_tensor_bytes: int = ...,
        cached_bytes: int = ...,
        threads: int = 0,
        files: RemoteFiles | None = None,
    ) -> None:
        """With use_caches off every record is checked at once; map_files: whether
        sealed shards are mapped; threads: as many decode a large tensor, 0: one for
        each processor, and at most 4; files: where the directory is in a store, which
        then need be no path: whatever their fetch raises, a question raises."""

    def was_replaced(self) -> bool:
        """Whether retention has replaced shards: another reader knows what is there."""

    def poll(self) -> bool: ...
    def definitions(self, start: int = 0) -> list[Definition]: ...
    def steps(self, start: int = 0, stop: int | None = None) -> NDArray[np.void]: ...
    @property
    def n_rows(self) -> int: ...
    def rows(self, start: int = 0, stop: int | None = None) -> NDArray[np.void]: ...
    def column(
        self,
        definitions: Sequence[int],
        start: int | None = None,
        stop: int | None = None,
    ) -> NDArray[np.void]:
        """Rows of these definitions with start <= step < stop, by step in a shard."""

    def gather_rows(
        self,
        definitions: NDArray[np.uint32],
        steps: NDArray[np.int64],
        fields: Sequence[int],
    ) -> tuple[
        NDArray[np.uint32],
        NDArray[np.uint64],
        NDArray[np.bool_],
        NDArray[np.uint32],
        list[NDArray[np.uint64]],
    ]:
        """Fields of the rows of these definitions at these steps, each contiguous.

        Rows of one definition follow each other: returns the definition and the
        length of each such stretch, and whether its steps ascend, each once; of each
        row the place of its step in *steps*, which are to ascend; and the bits of each
        field, by its number in ``FIELDS``.
        """

    def segments(
        self, start: int | None = None, stop: int | None = None
    ) -> NDArray[np.void]:
        """Which rows each `rows` record with start <= step < stop has."""

    def signature(self, number: int) -> NDArray[np.uint32]:
        """The definitions of the rows of a segment."""

    def add_to_envelope(
        self,
        grid: EnvelopeGrid,
        definitions: NDArray[np.uint32],
        names: NDArray[np.uint32],
        start: int,
        stop: int,
        mode: int | None = None,
        n_shards: int | None = None,
    ) -> int:
        """Add what the last of the first *n_shards* shards have of these definitions.

        Returns how many shards remain."""

    def cell_buckets(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Of each sealed shard the steps of a bucket of cells, and its rows."""

    def find_tensors(
        self,
        start: int | None = None,
        stop: int | None = None,
        definitions: Sequence[int] | None = None,
    ) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
        """Entries of tensors() with start <= step < stop, and their places in it."""

    def find_scalars(
        self,
        start: int | None = None,
        stop: int | None = None,
        definitions: Sequence[int] | None = None,
    ) -> tuple[NDArray[np.void], NDArray[np.uint64]]: ...
    def saved_steps(
        self,
        start: int | None = None,
        stop: int | None = None,
        definitions: Sequence[int] | None = None,
        *,
        rows: bool = True,
        tensors: bool = True,
        scalars: bool = True,
    ) -> NDArray[np.int64]:
        """The steps ``start <= step < stop`` that have some of these, ascending."""

    def find_steps(
        self, start: int | None = None, stop: int | None = None
    ) -> NDArray[np.void]:
        """The records of the steps ``start <= step < stop``, in their order."""

    def count_steps(self, start: int | None = None, stop: int | None = None) -> int:
        """How many they are."""

    def read_samples(
        self,
        definition: int,
        start: int | None = None,
        stop: int | None = None,
        after: int = 0,
    ) -> tuple[NDArray[np.uint8], int]:
        """Rows of a table, in their records' order, as bytes of its columns.

        Of the records that may have rows with start <= time < stop, and whose
        sequence is above *after*: all their rows.  Returns the sequence of the last
        record, too.
        """

    def recorded_steps(self) -> tuple[int, int] | None:
        """The lowest and the highest step that was ended."""

    def has_data(self, step: int) -> bool:
        """Whether there is a row, a tensor or a scalar of this step."""

    def definition(self, id: int) -> Definition | None:
        """The last definition of this id."""

    def definition_columns(
        self, ids: NDArray[np.uint32] | None = None
    ) -> DefinitionColumns:
        """These definitions; None: of each id the first, in the order they came."""

    def definition_names(self) -> tuple[list[str], NDArray[np.uint32]]:
        """The names, each once, and which of them each of all definitions has."""

    def ids_of(self, name: str) -> list[int]: ...
    def ids_of_names(
        self, names: list[str]
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """The ids of all these names, and of each the place of its name."""

    def names(self) -> list[str]:
        """Names of all definitions but those of spans and tables, each once."""

    @property
    def n_definitions(self) -> int: ...
    @property
    def n_names(self) -> int: ...
    @property
    def n_steps(self) -> int: ...
    @property
    def n_held(self) -> int:
        """Bytes of tables that are in memory: of what grows, and what was asked for."""

    @property
    def n_tensors(self) -> int: ...
    @property
    def n_scalars(self) -> int: ...
    def verify(self) -> list[Problem]:
        """Everything that is wrong: walks all records and decodes all values."""

    def tensors(self, start: int = 0) -> NDArray[np.void]: ...
    def expect_tensors(self, indices: Sequence[int]) -> None:
        """Tell which tensors are read next: a store gives them all at once."""

    def read_tensor(self, index: int) -> NDArray[np.uint8]:
        """Raw bytes in C order, read-only; the caller views them as dtype, shape."""

    def scalars(self, start: int = 0) -> NDArray[np.void]: ...
    def events(self, start: int = 0) -> list[Event]: ...
    def spans(self, start: int = 0) -> NDArray[np.void]: ...
    def gaps(self, start: int = 0) -> NDArray[np.void]: ...
    def histograms(self, start: int = 0) -> NDArray[np.void]: ...
    def read_histogram(
        self, index: int
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint64]]:
        """Keys and counts of ``histograms()[index]``."""

    def problems(self, start: int = 0) -> list[Problem]: ...
    def holes(self) -> NDArray[np.void]:
        """Sequences of records that were written and cannot be read; no gaps()."""

    @property
    def end_is_unknown(self) -> bool:
        """Whether nothing tells where the records end."""

    def identity(self) -> dict[str, Any]:
        """role, rank, ..., run, attempt (bytes), attempt_ordinal, created_ns."""

    def liveness(self) -> str:
        """unknown, running, stalled, closed or dead."""

    def commit(self) -> dict[str, int] | None: ...
    @property
    def n_bytes(self) -> int: ...
