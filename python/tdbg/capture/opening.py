"""Opens a session: the run directory, the writer, the configuration event."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tdbg.capture.adapter import FrameworkAdapter
from tdbg.capture.budget import seconds_of, share_of
from tdbg.capture.dry_run import MeasuringWriter
from tdbg.capture.events import write_event
from tdbg.capture.policy import Policy
from tdbg.capture.process import after_close, replace_sessions
from tdbg.capture.ranks import AttemptId, Consensus, WriterIdentity, find_attempt
from tdbg.capture.recorder import Recorder
from tdbg.capture.replica_check import RankGroup
from tdbg.capture.replicas import worker_rank
from tdbg.capture.requests import Requests
from tdbg.capture.session import RankPlace, Session
from tdbg.capture.writer import NullWriter
from tdbg.config.options import AUTO, SessionOptions
from tdbg.config.profiler import ProfilerConfig
from tdbg.errors import ConfigurationError, RunInUse, StorageError
from tdbg.remote import Shipping, check_url, is_url, scrub, spool_of
from tdbg.run.aside import Unanswered, call_aside
from tdbg.run.directory import Run, create_run
from tdbg.run.in_use import refuse_if_in_use
from tdbg.run.requests import RequestListener
from tdbg.run.schema import EventKind

__all__ = ["SessionSpec", "open_session", "program_start_ns", "refuse_unfit"]

# How long a hook waits, while it is made, for a file system that does not answer; the
# core's writer waits as long.
OPENING_SECONDS = 30.0

_Result = TypeVar("_Result")


class SessionSpec(NamedTuple):
    """What a hook asks a session for.

    Attributes:
        out_dir: The run directory; may be None in a dry run.
        policy: What is captured.
        options: How it is written.
        joins: The start of the training that this process takes part in, where another
            process has begun it; None: this one begins it, or finds it.
        profiler: What is recorded about its time; None: nothing.
    """

    out_dir: str | os.PathLike[str] | None
    policy: Policy
    options: SessionOptions
    joins: AttemptId | None = None
    profiler: ProfilerConfig | None = None


def open_session(spec: SessionSpec, adapter: FrameworkAdapter) -> Session:
    """Open a session that writes to the run directory, and make the run if need be.

    On a rank that does not write, the session only counts the steps, so that the
    training stops there as well if it is asked to.

    Args:
        spec: What is captured, where, and how it is written.
        adapter: Reads the framework's tensors.

    Raises:
        ConfigurationError: If a value is bad.
        RunInUse: If another process that lives writes to the run as this rank.
        StorageError: If the run cannot be made or written.
    """
    out_dir, policy, options = spec[:3]
    adapter.session_opens(options)
    raises = options.on_stop == "raise"
    if options.dry_run:
        policy.measure()
        return Session(
            MeasuringWriter(options.codec),
            policy,
            raises_on_stop=raises,
            adapter=adapter,
            budget=_budget(options),
        )
    if out_dir is None:
        msg = "no run directory: give out_dir, or set TDBG_OUT"
        raise ConfigurationError(msg)
    if options.rank not in options.workers:
        policy.disable()
        session = Session(
            NullWriter(), policy, requests=_requests(options), raises_on_stop=raises
        )
        session.place = RankPlace(_place(out_dir), options.rank)
        session.ranks = _ranks(options)
        return session
    refuse_unfit(out_dir, options.retention, options.spool_bytes)
    if isinstance(out_dir, str) and is_url(out_dir):
        return _open_shipped_session(spec, out_dir, adapter)
    return _open_writing_session(spec, Path(out_dir).expanduser(), adapter)


def refuse_unfit(
    out_dir: str | os.PathLike[str] | None, retention: Any, spool_bytes: int | None
) -> None:
    """Refuse settings that cannot be obeyed where the run is to be.

    Raises:
        ConfigurationError: If old values are not to be kept in a store, where what was
            sent stays, or if what waits to be sent has a bound, and nothing is sent.
    """
    is_shipped = is_url(out_dir)
    if is_shipped and retention is not None:
        msg = f"retention is for runs in a directory, not for {scrub(out_dir)}"
        raise ConfigurationError(msg)
    if not is_shipped and spool_bytes is not None:
        msg = f"spool_bytes is for a run at a URL, not in a directory: {out_dir}"
        raise ConfigurationError(msg)


def _open_shipped_session(
    spec: SessionSpec, url: str, adapter: FrameworkAdapter
) -> Session:
    """Open a session that writes to the spool of a URL."""
    shipping = Shipping(url)
    try:
        bounds = shipping.bounds(spec.options.spool_bytes)
        session = _open_writing_session(spec, shipping.path, adapter, bounds)
    except BaseException:
        shipping.leave()
        raise
    session.listen(closed=shipping.leave)
    after_close(shipping.end)
    return session


def _open_writing_session(
    spec: SessionSpec,
    directory: Path,
    adapter: FrameworkAdapter,
    shipped: Mapping[str, float] | None = None,
) -> Session:
    _, policy, options, joins, profiler = spec
    bounds = _bounds(options) if shipped is None else {**_bounds(options), **shipped}
    # Loaded here, so that configurations can be made without the core.
    core = import_module("tdbg._core")
    run = _answered(lambda: create_run(directory), directory)
    replace_sessions(run.uuid, options.rank, directory)
    attempt = joins or _answered(lambda: _new_attempt(run, options), directory)
    n_workers = len(options.workers)
    writer = _open_writer(run, attempt, options, options.rank, n_workers, bounds)
    if joins is None:
        _answered(lambda: _yield_to_earlier(run, options, writer), directory)
    batch_capture = core.BatchCapture(writer, adapter.tensor_types)
    session = Session(
        writer,
        policy,
        adapter=adapter,
        batch_capture=batch_capture,
        requests=_requests(
            options,
            RequestListener(run.path, run.uuid, writer.generation, rank=options.rank),
        ),
        raises_on_stop=options.on_stop == "raise",
        budget=_budget(options),
    )
    session.writes_as = WriterIdentity(run.uuid, options.rank, attempt)
    session.place = RankPlace(run.path, options.rank)
    session.ranks = _ranks(options)
    session.may_probe = bool(options.probes)
    configuration = _configuration(core, policy, options, adapter)
    if profiler is not None:
        configuration["profiler"] = profiler.to_json()
    session.run(session.write_event, EventKind.CONFIGURATION, configuration)
    session.run(
        session.write_event, EventKind.STATUS, {"training": "running", "reason": ""}
    )

    def open_replica(number: int, n: int) -> Recorder:
        size = options.world_size
        workers = [
            worker_rank(i, rank, size) for i in range(n) for rank in options.workers
        ]
        rank = worker_rank(number, options.rank, size)
        opened = _open_writer(run, attempt, options, rank, len(workers), bounds)
        batch_capture = core.BatchCapture(opened, adapter.tensor_types)
        recorder = Recorder(opened, policy, adapter, batch_capture)
        own = {"rank": rank, "world_size": n * size, "workers": workers}
        write_event(recorder, EventKind.CONFIGURATION, {**configuration, **own})
        return recorder

    session.replicas.open_recorder = open_replica
    return session


def _place(path: str | os.PathLike[str]) -> Path:
    if isinstance(path, str) and is_url(path):
        return spool_of(check_url(path))
    return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100 - keeps links


_ADVICE_FOR_RANKS = (
    " If both are ranks of one training, set RANK and WORLD_SIZE, or create the hook "
    "after init_process_group."
)


def _new_attempt(run: Run, options: SessionOptions) -> AttemptId:
    """The identity of this start, where no other living one has this rank.

    Raises:
        RunInUse: If another one has.
    """
    refuse_if_in_use(run, options.rank, _advice(options))
    return find_attempt(run, options.rank, options.rank_store, options.launch)


def _yield_to_earlier(run: Run, options: SessionOptions, writer: Any) -> None:
    """Take this writer back if another process was faster to make one.

    Raises:
        RunInUse: If one was.
    """
    try:
        refuse_if_in_use(run, options.rank, _advice(options), below=writer.generation)
    except RunInUse:
        writer.close(OPENING_SECONDS)
        made = run.path / "w" / f"train-{options.rank}-{writer.generation}"
        shutil.rmtree(made, ignore_errors=True)
        raise


def _advice(options: SessionOptions) -> str:
    return _ADVICE_FOR_RANKS if options.world_size == 1 else ""


def _open_writer(
    run: Run,
    attempt: AttemptId,
    options: SessionOptions,
    rank: int,
    world_size: int,
    bounds: Mapping[str, float],
) -> Any:
    """Open the core's writer of a worker.

    Args:
        run: The run.
        attempt: The start of the training.
        options: How it writes.
        rank: Of the worker.
        world_size: How many workers a reader waits for.
        bounds: Of its memory and its files.

    Raises:
        StorageError: If it cannot write.
    """
    return import_module("tdbg._core").Capture(
        str(run.path),
        run_uuid=run.uuid,
        attempt_uuid=attempt.uuid,
        attempt_ordinal=attempt.ordinal,
        rank=rank,
        world_size=world_size,
        overflow=options.overflow,
        codec=options.codec,
        precise=options.precise,
        threads=options.threads,
        **_retention(options),
        **bounds,
    )


def _retention(options: SessionOptions) -> dict[str, Any]:
    """Return what a writer of several keeps, as the core's arguments."""
    kept = options.retention
    if kept is None:
        return {}
    return {
        "keep_last": kept.last,
        "keep_every": kept.every,
        "max_bytes": kept.share(len(options.workers)),
    }


def _bounds(options: SessionOptions) -> dict[str, int]:
    """The bounds of a writer that were given; of the others, the core has its own."""
    bounds = {
        "queue_bytes": options.queue_bytes,
        "min_free_bytes": options.min_free_bytes,
    }
    return {name: value for name, value in bounds.items() if value is not None}


def _budget(options: SessionOptions) -> float | str | None:
    """The budget that this rank keeps; None: none, or the first rank keeps it for all.

    Each rank measures its own cost, and by that they would capture different steps.
    AUTO is off where ranks have no store by which the first could tell the others.
    """
    if options.world_size > 1 and not options.dry_run:
        if options.rank_store is None:
            return None if options.budget == AUTO else options.budget
        if options.rank != options.workers[0]:
            return None
    return options.budget


def _answered(function: Callable[[], _Result], directory: Path) -> _Result:
    """What the function returns, which asks the file system of a directory.

    Raises:
        StorageError: If that does not answer.
    """
    try:
        return call_aside(function, OPENING_SECONDS)
    except Unanswered:
        msg = f"the file system of {directory} does not answer"
        raise StorageError(msg, file=str(directory), kind="io") from None


def _requests(
    options: SessionOptions, listener: RequestListener | None = None
) -> Requests:
    """Make the requests of this rank; several ranks agree on when to obey."""
    agreement = None
    if options.world_size > 1 and options.rank_store is not None:
        leads = options.rank == options.workers[0]
        agreement = Consensus(options.rank_store, leads=leads)
    return Requests(listener, agreement=agreement)


def _ranks(options: SessionOptions) -> RankGroup | None:
    if options.world_size == 1 or options.rank_store is None:
        return None
    leads = options.rank == options.workers[0]
    return RankGroup(options.rank_store, options.rank, options.world_size, leads)


def _configuration(
    core: Any, policy: Policy, options: SessionOptions, adapter: FrameworkAdapter
) -> dict[str, Any]:
    """Make the configuration event; it never holds the environment."""
    return {
        "tdbg": core.__version__,
        "python": platform.python_version(),
        "framework": {"name": adapter.name, "version": adapter.version},
        "statistics": core.implementation(),
        "hardware": hardware(adapter.accelerators()),
        "hook": {
            **policy.as_json(),
            "on_stop": options.on_stop,
            "overflow": options.overflow,
            "codec": options.codec,
            "retention": options.retention and options.retention.as_json(),
            "precise": options.precise,
            "threads": options.threads,
            "budget": share_of(_budget(options)),
            "budget_seconds": seconds_of(_budget(options)),
        },
        "rank": options.rank,
        "world_size": options.world_size,
        "workers": list(options.workers),
        "program_start_ns": program_start_ns(),
    }


CPU_INFO = Path("/proc/cpuinfo")
# The name of the first core stands at the beginning of the file.
HEAD_BYTES = 4096


def hardware(accelerators: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return facts about the machine, of those that are known.

    Args:
        accelerators: Names of the devices that the framework uses.

    Returns:
        ``system`` and ``machine`` (such as Linux, x86_64), ``cpu`` (its model),
        ``cores`` (those that this process may use), ``memory`` (of the machine, in
        bytes), ``accelerators``.

    Example:
        >>> hardware()["cores"] > 0
        True
    """
    found: dict[str, Any] = {
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": _cores(),
        "memory": _memory(),
        "accelerators": list(accelerators),
    }
    return {name: value for name, value in found.items() if value}


def _cpu_model() -> str:
    try:
        with CPU_INFO.open(errors="replace") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return ""
    for line in head.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return ""


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0


def _memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


PROCESS_INFO = Path("/proc/self/stat")
# Of the fields behind the name of the process: when it began, in ticks since boot.
_START = 19
# Processes that have opened a run: another run does not begin where they began.
_used_by: set[int] = set()


def program_start_ns() -> int | None:
    """Return when this process began, on the monotonic clock; None: not known.

    Nor does it say anything where the process did not begin for this training: in a
    notebook or an interactive session, and once the process has opened a run.
    """
    is_first = os.getpid() not in _used_by
    _used_by.add(os.getpid())
    return _start_ns() if is_first and _is_program() else None


def _is_program() -> bool:
    """Return whether the process runs a program from its beginning to its end."""
    main = sys.modules.get("__main__")
    has_program = hasattr(main, "__file__") or getattr(main, "__spec__", None)
    is_asked = (
        hasattr(sys, "ps1") or sys.flags.interactive or "ipykernel" in sys.modules
    )
    return bool(has_program) and not is_asked


def _start_ns() -> int | None:
    try:
        fields = PROCESS_INFO.read_bytes().rpartition(b")")[2].split()
        since_boot_ns = int(fields[_START]) * 10**9 // os.sysconf("SC_CLK_TCK")
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - since_boot_ns
    except (AttributeError, OSError, ValueError, IndexError):
        return None  # Not Linux.
    return time.monotonic_ns() - age_ns if age_ns >= 0 else None
