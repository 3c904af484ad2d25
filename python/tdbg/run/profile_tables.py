"""The tables of a profile, each once: what their columns mean and how they are stored.

A table is rows of one NumPy structured type.  The writing side appends rows, the core
stores them in ``samples`` records beside the definition that names the columns, and
``trial.profile`` returns them as structured arrays of the same type.  docs/format.md
has the bytes.

Conventions, which hold for every column:

- ``time`` is the monotonic clock in ns (``time.monotonic_ns()``): for a sample when it
  was taken, for an interval when it ended.
- Counters of the kernel are stored as totals since boot, as unsigned integers, so that
  a lost row costs resolution and no data.  Readers subtract.
- What was not measured is NaN in a float and the largest value in an unsigned integer,
  -1 in a signed one; never 0.
- Shares are 0 to 1; durations are ns; sizes are bytes.

On disk: a column that exists keeps its name and meaning.  Add new ones at the end; a
reader takes the columns that it knows by their names.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "COLLECTIVE",
    "COLLECTIVE_KINDS",
    "DISK",
    "FINGERPRINT",
    "GPU",
    "LOADER",
    "MODEL_PHASES",
    "NETWORK",
    "NOT_MEASURED",
    "PHASE_COLUMNS",
    "PROCESS",
    "STEP",
    "SYSTEM",
    "TABLES",
    "Phase",
    "ProcessKind",
    "core_shares",
    "core_type",
    "empty",
    "measured",
    "parse_columns",
    "parse_table_name",
    "table_name",
    "written_columns",
]

#: An unsigned 64-bit integer that was not measured.
NOT_MEASURED: Final = 2**64 - 1


class Phase(enum.IntEnum):
    """A phase of a training; every moment of a step belongs to one.

    On disk: never renumber.
    """

    OTHER = 0
    """The program's own code between the phases that tdbg can tell."""
    DATA_WAIT = 1
    """Waiting for the next batch."""
    COPY = 2
    """Copying the batch to a device."""
    FORWARD = 3
    """The model's forward and the loss."""
    BACKWARD = 4
    """The backward pass."""
    COMMUNICATION = 5
    """Waiting for other ranks, not hidden behind computation."""
    OPTIMIZER = 6
    """The optimizer's step."""
    GC = 7
    """Python's garbage collector."""
    COMPILE = 8
    """A compiler of the framework."""
    CHECKPOINT = 9
    """Saving a checkpoint."""
    EVALUATION = 10
    """Forwards in evaluation mode, between two training steps."""
    CAPTURE = 11
    """tdbg itself."""
    COMPUTE = 12
    """Forward, backward and optimizer together, where a framework cannot tell them
    apart: a compiled training step, or a round of boosting."""


class ProcessKind(enum.IntEnum):
    """The kind of a process of the training.  On disk: never renumber."""

    RANK = 1
    LOADER_WORKER = 2
    OTHER = 3


#: The column of each phase in a step row: nanoseconds of the step that belong to it.
PHASE_COLUMNS: Final[Mapping[Phase, str]] = {
    phase: f"{phase.name.lower()}_ns" for phase in Phase
}

#: The phases that the model's own time lies in.  A framework that tells neither leaves
#: it in ``OTHER``: ``tdbg.run.told_phases``.
MODEL_PHASES: Final = (Phase.BACKWARD, Phase.COMPUTE)

#: One row for each step of each rank.  The phases add up to ``duration_ns``, which
#: lasts from the end of the rank's previous step: evaluation, checkpoints and waiting
#: between two training steps belong to the later one.
STEP: Final = np.dtype(
    [
        ("time", "<i8"),  # ns, monotonic; when the step ended
        ("global_step", "<i8"),
        ("mode_step", "<i8"),
        ("mode", "<i4"),  # tdbg.modes.ModeKeys
        ("micro_batches", "<i4"),  # forwards of the model in the step
        ("duration_ns", "<i8"),
        *((column, "<i8") for column in PHASE_COLUMNS.values()),
        ("samples", "<i8"),  # in the batch; -1: unknown
        ("tokens", "<i8"),  # -1: unknown, or there are none
        ("copied_bytes", "<i8"),  # from host to device; -1: unknown
        ("gpu_ns", "<i8"),  # device time of the step, by events; -1: unknown
        ("dry_borders", "<i4"),  # borders at which the device had run dry; -1: unknown
        ("borders", "<i4"),  # borders at which that was looked at; -1: unknown
    ]
)

#: One row of the whole host, and of the control group around the training.
SYSTEM: Final = np.dtype(
    [
        ("time", "<i8"),
        ("is_late", "<u4"),  # 1: more than half an interval later than due
        ("processes_running", "<u4"),
        ("processes_blocked", "<u4"),
        ("reserved", "<u4"),
        ("cpu_user", "<f4"),  # shares of all cores since the previous row
        ("cpu_system", "<f4"),
        ("cpu_iowait", "<f4"),
        ("cpu_steal", "<f4"),
        ("allowed_busy", "<f4"),  # mean share over the cores that the training may use
        ("allowed_cores", "<f4"),  # min(affinity, quota); 0.5 is half a core
        ("memory_total", "<u8"),
        ("memory_available", "<u8"),
        ("swap_in_bytes", "<u8"),  # totals
        ("swap_out_bytes", "<u8"),
        ("major_faults", "<u8"),
        # Used by the control group, without the files that it holds in memory.
        ("cgroup_memory", "<u8"),
        ("cgroup_limit", "<u8"),
        ("cgroup_oom_kills", "<u8"),
        ("cgroup_periods", "<u8"),  # totals: scheduling periods, those throttled, ns
        ("cgroup_throttled", "<u8"),
        ("cgroup_throttled_ns", "<u8"),
        ("cpu_some_ns", "<u8"),  # pressure stall totals; see PSI in the kernel's docs
        ("io_some_ns", "<u8"),
        ("io_full_ns", "<u8"),
        ("memory_some_ns", "<u8"),
        ("memory_full_ns", "<u8"),
        ("shm_used", "<u8"),  # /dev/shm
        ("shm_total", "<u8"),
        ("energy_uj", "<u8"),  # RAPL packages, total
    ]
)

#: One row of a block device; the instance is its name.
DISK: Final = np.dtype(
    [
        ("time", "<i8"),
        ("read_bytes", "<u8"),  # totals
        ("write_bytes", "<u8"),
        ("reads", "<u8"),
        ("writes", "<u8"),
        ("busy_ns", "<u8"),
    ]
)

#: One row of a network interface; the instance is its name.
NETWORK: Final = np.dtype(
    [
        ("time", "<i8"),
        ("received_bytes", "<u8"),  # totals
        ("sent_bytes", "<u8"),
        ("received_packets", "<u8"),
        ("sent_packets", "<u8"),
        ("bits_per_second", "<u8"),  # speed of the link
    ]
)

#: One row of a GPU; the instance is its UUID.
GPU: Final = np.dtype(
    [
        ("time", "<i8"),
        ("index", "<u4"),  # as NVML counts them
        ("throttle_reasons", "<u4"),  # bits of nvmlClocksEventReasons
        ("busy", "<f4"),  # share of time in which any kernel ran
        ("memory_busy", "<f4"),  # share of time in which memory was read or written
        ("sm_clock_hz", "<f4"),
        ("temperature", "<f4"),  # degrees Celsius
        ("power_watt", "<f4"),
        ("run_processes", "<u4"),  # processes of this run on the device
        ("memory_used", "<u8"),
        ("memory_total", "<u8"),
        ("energy_mj", "<u8"),  # total since the driver was loaded
    ]
)

#: One row of a process of the training.
PROCESS: Final = np.dtype(
    [
        ("time", "<i8"),
        ("pid", "<i4"),
        ("rank", "<i4"),  # of the training that it belongs to
        ("kind", "<u4"),  # ProcessKind
        ("state", "<u4"),  # ord of the kernel's letter: R, S, D, Z, T
        ("threads", "<u4"),
        ("worker", "<i4"),  # number of a loader's worker; -1: it is none
        # Totals of the main thread: on a core, and waiting for one.
        ("run_ns", "<u8"),
        ("queued_ns", "<u8"),
        ("resident_bytes", "<u8"),
        ("read_bytes", "<u8"),  # totals: from devices, and by all reads
        ("all_read_bytes", "<u8"),
        ("write_bytes", "<u8"),
        ("major_faults", "<u8"),
        ("cpu_ns", "<u8"),  # total of all threads, in whole ticks of the kernel
    ]
)

#: One row of a batch of a data loader, as its consumer gets it.
LOADER: Final = np.dtype(
    [
        ("time", "<i8"),  # when the consumer got the batch
        ("loader", "<i4"),  # number of the loader in its process
        ("worker", "<i4"),  # that fetched it; -1: the consumer's own process
        ("pid", "<i4"),  # of the worker; 0: unknown
        ("epoch", "<i4"),  # number of the iterator of this loader
        ("depth", "<i4"),  # batches ready when the consumer asked; -1: unknown
        ("capacity", "<i4"),  # batches that may be ready: workers x prefetch factor
        ("workers", "<i4"),
        ("samples", "<i4"),  # in the batch; -1: unknown
        ("wait_ns", "<i8"),  # of the consumer
        ("fetch_ns", "<i8"),  # wall time of the fetch; -1: unknown
        ("fetch_cpu_ns", "<i8"),  # processor time of the fetch; -1: unknown
        ("bytes", "<i8"),  # of the batch; -1: unknown
    ]
)

#: One row of a collective operation of a rank.
COLLECTIVE: Final = np.dtype(
    [
        ("time", "<i8"),  # when it ended
        ("global_step", "<i8"),
        ("sequence", "<i8"),  # in its group, equal on all ranks
        ("group", "<i4"),  # number of the process group
        ("kind", "<u4"),  # index in the words of the table's event
        ("duration_ns", "<i8"),  # from the call, which is the rank's arrival
        ("exposed_ns", "<i8"),  # of that, the time in which the rank waited
        ("bytes", "<i8"),
    ]
)

#: Hashes of samples, up to 16 in a row: of the first rows of a tensor that the model
#: or a loss was given.  The instance is ``input/`` or ``label/`` and the tensor's name.
FINGERPRINT: Final = np.dtype(
    [
        ("time", "<i8"),  # when the call began
        ("global_step", "<i8"),
        ("hashes", "<u8", (16,)),  # XXH64 of each sample's bytes, see docs/format.md
        ("call", "<u4"),  # number of the model's call in the step
        ("samples", "<u4"),  # in the tensor
        ("first", "<u4"),  # number of the first hash's sample
        ("row_bytes", "<u4"),  # of a sample
        ("mode", "<u2"),  # tdbg.modes.ModeKeys
        ("n", "|u1"),  # hashes in the row
        ("n_varied", "|u1"),  # of their samples, with 6 different elements or more
        ("kind", "|u1"),  # of the elements, as NumPy's letter: f, i, u or b
        ("is_whole", "|u1"),  # 1: all bytes of a sample were hashed
        ("reserved", "<u2"),
    ]
)

#: The kinds of collective operations, as PyTorch names them, in the order of the words
#: that this tdbg writes.  ``ddp_all_reduce`` is the all-reduce of gradients that
#: DistributedDataParallel makes of a backward.
COLLECTIVE_KINDS: Final = (
    *("all_reduce", "broadcast", "all_gather", "gather", "scatter", "reduce"),
    *("reduce_scatter", "all_to_all", "barrier", "send", "recv", "ddp_all_reduce"),
)

#: The tables by name; a table of cores has a type of its own for each number of cores.
TABLES: Final[Mapping[str, np.dtype[Any]]] = {
    "step": STEP,
    "system": SYSTEM,
    "disk": DISK,
    "network": NETWORK,
    "gpu": GPU,
    "process": PROCESS,
    "loader": LOADER,
    "collective": COLLECTIVE,
    "fingerprint": FINGERPRINT,
}


def core_type(n_cores: int) -> np.dtype[Any]:
    """Return the type of the table ``core``: how busy each core of the host was.

    ``busy`` is in half per cents since the previous row, 0 to 200; 255: not measured.

    Example:
        >>> core_type(4)["busy"].shape
        (4,)
    """
    return np.dtype([("time", "<i8"), ("busy", "|u1", (n_cores,))], align=False)


def table_name(table: str, instance: str = "") -> str:
    """Return the name under which the rows of a table are stored.

    Example:
        >>> table_name("step"), table_name("disk", "nvme0n1")
        ('profile/step', 'profile/disk/nvme0n1')
    """
    return f"profile/{table}/{instance}" if instance else f"profile/{table}"


def parse_table_name(name: str) -> tuple[str, str] | None:
    """Return table and instance of a name; None if it names no table of a profile.

    Example:
        >>> parse_table_name("profile/disk/nvme0n1")
        ('disk', 'nvme0n1')
    """
    prefix, _, rest = name.partition("/")
    table, _, instance = rest.partition("/")
    return (table, instance) if prefix == "profile" and table else None


def written_columns(table: np.dtype[Any]) -> str:
    """Return the columns of a table as they are stored.

    Each is ``name:type``, or ``name:type*n`` for n elements, separated by commas.

    Example:
        >>> written_columns(core_type(4))
        'time:<i8,busy:|u1*4'
    """
    return ",".join(_written(name, table[name]) for name in table.names or ())


def parse_columns(text: str) -> np.dtype[Any]:
    """Return the type whose columns are stored as *text*.

    Raises:
        ValueError: If it is not the text of a table.

    Example:
        >>> parse_columns("time:<i8,busy:|u1*4") == core_type(4)
        True
    """
    columns: list[Any] = []
    for column in text.split(","):
        name, _, kind = column.partition(":")
        kind, star, length = kind.partition("*")
        is_length = length.isdecimal() if star else True
        if not (name.isidentifier() and kind in _KINDS and is_length):
            msg = f"{column!r} is not a column; give name:type, as time:<i8"
            raise ValueError(msg)
        columns.append((name, kind, (int(length),)) if length else (name, kind))
    return np.dtype(columns)


_KINDS = {"|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f4", "<f8"}


def _written(name: str, column: np.dtype[Any]) -> str:
    if column.subdtype is None:
        return f"{name}:{column.str}"
    base, (length,) = column.subdtype
    return f"{name}:{base.str}*{length}"


def measured(column: NDArray[Any]) -> NDArray[np.float64]:
    """Return a column as numbers, with NaN where nothing was measured.

    Example:
        >>> measured(np.array([5, NOT_MEASURED], np.uint64)).tolist()
        [5.0, nan]
    """
    found = column.astype(np.float64)
    if column.dtype.kind == "u":
        found[column == np.iinfo(column.dtype).max] = np.nan
    return found


def core_shares(rows: NDArray[np.void]) -> NDArray[np.float64]:
    """Return how busy cores were, 0 to 1, by rows of the table ``core``.

    Returns:
        NaN where nothing was measured.  Shape (rows, cores).
    """
    return measured(rows["busy"]) / 200


def empty(table: np.dtype[Any]) -> NDArray[Any]:
    """Return no rows of a table."""
    return np.zeros(0, table)
