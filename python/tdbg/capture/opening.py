"""Opens a session: the run directory, the writer, the configuration event."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from tdbg.capture.agreement import Agreement
from tdbg.capture.budget import parse_budget
from tdbg.capture.events import CONFIGURATION, STATUS
from tdbg.capture.measuring import MeasuringSink
from tdbg.capture.policy import Policy
from tdbg.capture.process import replace_sessions
from tdbg.capture.requests import Listener, Requests
from tdbg.capture.session import Session
from tdbg.capture.sink import NullSink
from tdbg.capture.tensors import Tensors
from tdbg.capture.workers import Board, find_attempt, parse_workers
from tdbg.config import nearest
from tdbg.control import Request, RequestListener
from tdbg.errors import ConfigurationError
from tdbg.run_directory import create_run

__all__ = ["Opening", "SessionOptions", "is_disabled", "open_session"]

DISABLED_VARIABLE = "TDBG_DISABLED"
_CHOICES = {
    "on_stop": ("raise", "flag"),
    "overflow": ("block", "drop", "sample"),
    "codec": ("none", "auto", "max"),
}
MAX_THREADS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How a session writes, and what it does when it is told to stop.

    Args:
        on_stop: ``raise`` TrainingStopped at the next root forward, or only
            ``flag`` it.
        overflow: When staging memory is full: ``block`` while the writer makes
            progress, ``drop``, or ``sample``: keep the values of whole steps, and
            of as many as the disk takes (docs/backpressure.md).
        queue_bytes: Bound of staging memory; None: the core's.
        min_free_bytes: Below so much free disk space nothing is written; None:
            the core's.
        codec: How raw values are stored: "none", "auto" or "max".
        precise: Statistics of small floats as exactly as those of float64.
        threads: That reduce one large tensor, at most.
        budget: Share of the training's time that capture may cost; None: that of
            the environment (``TDBG_BUDGET``), or any.
        dry_run: Do everything but write.
        rank: Of this process among those of the training.
        world_size: How many there are.
        include_workers: The ranks that write: "one" (the first), "all", or a list.
        board: What all ranks share; None: they cannot agree on anything.
        launch: What their launcher calls this start; may be empty.

    Raises:
        ConfigurationError: If a value is bad.
    """

    on_stop: str = "raise"
    overflow: str = "block"
    queue_bytes: int | None = None
    min_free_bytes: int | None = None
    codec: str = "auto"
    precise: bool = False
    threads: int = 1
    budget: float | None = None
    dry_run: bool = False
    rank: int = 0
    world_size: int = 1
    include_workers: str | Sequence[int] = "one"
    board: Board | None = None
    launch: str = ""

    def __post_init__(self) -> None:
        for name, valid in _CHOICES.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in valid:
                msg = f"{name}: unknown {value!r}; {nearest(value, valid)}"
                raise ConfigurationError(msg)
        for name, least in (("queue_bytes", 1), ("min_free_bytes", 0)):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or value < least
            ):
                msg = f"{name} must be a number of bytes, not {value!r}"
                raise ConfigurationError(msg)
        precise: object = self.precise
        if not isinstance(precise, bool):
            msg = f"precise must be True or False, not {precise!r}"
            raise ConfigurationError(msg)
        threads: object = self.threads
        is_number = isinstance(threads, int) and not isinstance(threads, bool)
        if not is_number or not 1 <= self.threads <= MAX_THREADS:
            msg = f"threads must be from 1 to {MAX_THREADS}, not {threads!r}"
            raise ConfigurationError(msg)
        object.__setattr__(self, "budget", parse_budget(self.budget))
        if not 0 <= self.rank < self.world_size:
            msg = f"rank {self.rank} is not one of {self.world_size}"
            raise ConfigurationError(msg)
        parse_workers(self.include_workers, self.world_size)

    @property
    def workers(self) -> tuple[int, ...]:
        """The ranks that write, ascending."""
        return parse_workers(self.include_workers, self.world_size)


class Opening(NamedTuple):
    """What a hook opens.

    Attributes:
        out_dir: The run directory; may be None in a dry run.
        policy: What is wanted.
        options: How it is written.
    """

    out_dir: str | os.PathLike[str] | None
    policy: Policy
    options: SessionOptions


def is_disabled() -> bool:
    """Whether ``TDBG_DISABLED`` is set to anything but ``0``."""
    return os.environ.get(DISABLED_VARIABLE, "0") not in {"", "0"}


def open_session(
    out_dir: str | os.PathLike[str] | None,
    policy: Policy,
    options: SessionOptions,
    framework: dict[str, str],
    tensors: Tensors,
    tensor_types: tuple[type, ...],
) -> Session:
    """A session that writes to *out_dir*, which becomes a run if it is none.

    On a rank that is not to write it only counts the steps, so that the training
    stops there as well when it is asked to.

    Args:
        out_dir: The run directory; may be None in a dry run.
        policy: What is wanted.
        options: How.
        framework: Name and version, for the configuration event.
        tensors: How its tensors are read, without the core.
        tensor_types: Types of its tensors that the core may read by itself.

    Raises:
        ConfigurationError: If a value is bad.
        StorageError: If the run cannot be made or written.
    """
    raises = options.on_stop == "raise"
    if options.dry_run:
        policy.measure()
        return Session(
            MeasuringSink(options.codec),
            policy,
            raises_on_stop=raises,
            tensors=tensors,
            budget=options.budget,
        )
    if out_dir is None:
        msg = "no run directory: give out_dir, or set TDBG_OUT"
        raise ConfigurationError(msg)
    if options.rank not in options.workers:
        policy.silence()
        return Session(
            NullSink(), policy, requests=_requests(options), raises_on_stop=raises
        )
    # Loaded here, so that configurations can be made without the core.
    core = import_module("tdbg._core")
    run = create_run(Path(out_dir).expanduser())
    writes_to = run.uuid, options.rank
    replace_sessions(writes_to)
    attempt = find_attempt(run, options.rank, options.board, options.launch)
    bounds = {
        "queue_bytes": options.queue_bytes,
        "min_free_bytes": options.min_free_bytes,
    }
    sink = core.Capture(
        str(run.path),
        run_uuid=run.uuid,
        attempt_uuid=attempt.uuid,
        attempt_ordinal=attempt.ordinal,
        rank=options.rank,
        world_size=len(options.workers),  # Those that a reader is to wait for.
        overflow=options.overflow,
        codec=options.codec,
        precise=options.precise,
        threads=options.threads,
        **{name: value for name, value in bounds.items() if value is not None},
    )
    taker = core.Taker(sink, tensor_types)
    session = Session(
        sink,
        policy,
        tensors=tensors._replace(
            taker=taker if taker.can_read else None,
            make_slot=core.Slot,
            make_calls=core.CallTaker,
            make_parameters=core.ParameterList,
        ),
        requests=_requests(
            options,
            RequestListener(run.path, run.uuid, sink.generation, rank=options.rank),
        ),
        raises_on_stop=raises,
        budget=options.budget,
    )
    session.writes_to = writes_to
    session.run(
        session.write_event,
        CONFIGURATION,
        _configuration(core, policy, options, framework),
    )
    session.run(session.write_event, STATUS, {"training": "running", "reason": ""})
    return session


class _Deaf:
    """Hears nothing: what is asked of a training is asked of its writers."""

    def poll(self) -> list[Request]:
        """None."""
        return []


def _requests(options: SessionOptions, listener: Listener | None = None) -> Requests:
    """What is asked of the training, as the ranks agree on it if there are several."""
    agreement = None
    if options.world_size > 1 and options.board is not None:
        leads = options.rank == options.workers[0]
        agreement = Agreement(options.board, leads=leads)
    return Requests(listener or _Deaf(), agreement=agreement)


def _configuration(
    core: Any, policy: Policy, options: SessionOptions, framework: dict[str, str]
) -> dict[str, Any]:
    """What is told about this process: only what is named here, no environment."""
    return {
        "tdbg": core.__version__,
        "python": platform.python_version(),
        "framework": framework,
        "statistics": core.implementation(),
        "hook": {
            **policy.as_json(),
            "on_stop": options.on_stop,
            "overflow": options.overflow,
            "codec": options.codec,
            "precise": options.precise,
            "threads": options.threads,
            "budget": options.budget,
        },
        "rank": options.rank,
        "world_size": options.world_size,
        "workers": list(options.workers),
    }
