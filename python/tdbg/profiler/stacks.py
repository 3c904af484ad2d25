"""Answers ``tdbg stacks``: where this process is.

``faulthandler`` writes the stacks from a handler in C, for a signal that the core sends
to its own process when somebody asks (cpp/base/dump_listener.h).  So a process answers
although its main thread sits in C code, waits for the interpreter's lock, or holds it.

Thread safety: any thread.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from tdbg.run.stacks import (
    FOLDER,
    FORMAT,
    boot_id,
    process_namespace,
    process_start,
)

if TYPE_CHECKING:
    from tdbg._core import StepClock
    from tdbg.capture.session import Session
    from tdbg.config.profiler import ProfilerConfig

__all__ = ["StackAnswers", "StackSite", "start"]

# Real-time signals that nothing else is known to use; the first that is free is taken.
_FIRST_SIGNAL = signal.SIGRTMIN + 11
_N_SIGNALS = 4
_package = str(Path(__file__).resolve().parent.parent)


class StackSite(NamedTuple):
    """Where a process answers, and as whom; may be sent to other processes.

    Attributes:
        run: The directory of the run.
        rank: The rank of the training.
        kind: ``rank`` or ``worker``.
        worker: Number of a loader's worker.
        loader: Number of the loader in its process.
        parent: Number of a worker's rank's process.
    """

    run: str
    rank: int
    kind: str = "rank"
    worker: int = -1
    loader: int = -1
    parent: int = 0


class _Dump(NamedTuple):
    """The signal that makes this process write its stacks, and where it writes."""

    pid: int
    number: int
    file: IO[bytes] | None


class StackAnswers:
    """Answers for this process until it is closed.

    Args:
        site: As whom.
        interval: Seconds between two looks for a question.
        clock: Knows the phase and the step; None: nothing does.
    """

    def __init__(
        self, site: StackSite, interval: float = 1.0, clock: StepClock | None = None
    ) -> None:
        dump = _dump_of_process()
        pid = os.getpid()
        identity = {
            "format": FORMAT,
            **site._asdict(),
            "pid": pid,
            "start": process_start(pid)[1],
            "boot_id": boot_id(),
            "namespace": process_namespace(),
            "host": socket.gethostname(),
            "main_thread": f"{threading.main_thread().ident or 0:x}",
            "package": f"{_package}{os.sep}",
            "started_ns": time.time_ns(),
        }
        host = boot_id()[:8] or socket.gethostname()[:32]
        core = import_module("tdbg._core")
        self._listener: Any = core.DumpListener(
            str(Path(site.run) / "ctl" / FOLDER),
            f"{site.kind}-{site.rank}-{host}-{pid}",
            json.dumps(identity),
            dump.number,
            -1 if dump.file is None else dump.file.fileno(),
            interval,
            clock if isinstance(clock, core.StepClock) else None,
        )

    def close(self) -> None:
        """Answer no longer, and take this process off the list."""
        self._listener = None

    def forked(self) -> None:
        """Let go of what the parent goes on to use."""
        self._listener = None


def start(session: Session, _: ProfilerConfig) -> StackAnswers | None:
    """Answer for a rank."""
    if session.place is None:
        return None
    site = StackSite(str(session.place.run), session.place.rank)
    return StackAnswers(site, clock=session.clock)


_lock = threading.Lock()
_dumps: list[_Dump] = []


def _dump_of_process() -> _Dump:
    """Return the one of this process, which lasts until the process ends.

    A signal that is under way when its handler goes would end the process.
    """
    with _lock:
        if not _dumps or _dumps[-1].pid != os.getpid():
            _dumps[:] = [_new_dump()]
        _handle_again(_dumps[-1])
        return _dumps[-1]


def _handle_again(dump: _Dump) -> None:
    """Set the handler again where the program has put back what was there before.

    Lightning does so for all signals when a fit ends.
    """
    if dump.number and import_module("tdbg._core").is_signal_free(dump.number):
        faulthandler.unregister(dump.number)
        _register(dump.number, dump.file)


def _register(number: int, file: Any) -> None:
    faulthandler.register(number, file=file, all_threads=True, chain=False)


def _new_dump() -> _Dump:
    core = import_module("tdbg._core")
    inherited = {dump.number for dump in _dumps}
    for number in range(_FIRST_SIGNAL, _FIRST_SIGNAL + _N_SIGNALS):
        if number > signal.SIGRTMAX:
            break
        if number in inherited or core.is_signal_free(number):
            file = _file_in_memory()
            _register(number, file)
            return _Dump(os.getpid(), number, file)
    return _Dump(os.getpid(), 0, None)


def _file_in_memory() -> IO[bytes]:
    with contextlib.suppress(AttributeError, OSError):
        return open(os.memfd_create("tdbg-stacks"), "r+b", buffering=0)  # noqa: PTH123
    return tempfile.TemporaryFile(buffering=0)


def _release_lock() -> None:
    global _lock  # noqa: PLW0603 - it may be held by a thread that is not here
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_release_lock)
