"""The sampler of the machine: which process of a node has it, and whom it follows.

Implements docs/profiler-system.md.  The core samples, in threads that know nothing of
Python; here it is started, and told which processes belong to the training.

Thread safety: any thread may call ``follow_process``.

Errors: none; a sampler that cannot start says why in an event of the run.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tdbg.capture.session import Session
from tdbg.config.profiler import ProfilerConfig
from tdbg.errors import TdbgError
from tdbg.profiler.part import write_off
from tdbg.run.profile_tables import ProcessKind
from tdbg.run.stacks import boot_id

if TYPE_CHECKING:
    from tdbg._core import SystemSampler

__all__ = ["SystemPart", "follow_process", "node_file", "start"]

# Whoever may write there: the core takes no file of another user.
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


class SystemPart:
    """Samples the machine for one session, unless another process of the node does.

    Args:
        session: The session of a rank, which writes a run.
        interval: Seconds between two samples.

    Attributes:
        sampler: The core's sampler.

    Raises:
        TdbgError: If it cannot be started.
    """

    def __init__(self, session: Session, interval: float) -> None:
        identity = session.writes_as
        if identity is None:
            msg = "the session writes no run"
            raise TdbgError(msg)
        self._rank = identity.rank
        self._session = weakref.ref(session)
        self.sampler: SystemSampler = import_module("tdbg._core").SystemSampler(
            session.writer, interval, node_file(identity.run)
        )
        self.sampler.add_process(os.getpid(), self._rank, ProcessKind.RANK)
        _parts[session] = self

    def follow(self, pid: int, kind: ProcessKind, worker: int) -> None:
        """Follow a process of this rank, as ``follow_process``."""
        self.sampler.add_process(pid, self._rank, kind, worker)

    def change(self, settings: ProfilerConfig) -> None:
        """Sample at another interval from now on."""
        self.sampler.set_interval(settings.system_interval)

    def close(self) -> None:
        """Take a last sample, and leave the node to others."""
        self.sampler.close()
        session = self._session()
        if session is not None:
            _parts.pop(session, None)


_parts: weakref.WeakKeyDictionary[Session, SystemPart] = weakref.WeakKeyDictionary()


def start(session: Session, settings: ProfilerConfig) -> SystemPart | None:
    """Start the sampler of a session of a rank, which writes a run."""
    try:
        return SystemPart(session, settings.system_interval)
    except TdbgError as error:
        write_off(session, "system", error)
        return None


def follow_process(
    session: Session,
    pid: int,
    *,
    kind: ProcessKind = ProcessKind.LOADER_WORKER,
    worker: int = -1,
) -> None:
    """Sample a process of the training until it ends, whichever rank samples the node.

    Nothing happens if the session has no sampler, or there is no such process.

    Args:
        session: The session of the rank that it belongs to.
        pid: The process.
        kind: What it is.
        worker: The number of a loader's worker; -1: it is none.
    """
    part = _parts.get(session)
    if part is not None:
        part.follow(pid, kind, worker)


def node_file(run: bytes) -> str:
    """Return the path of the file that the processes of a run share on this node.

    It is in memory where that can be written, and else among temporary files.
    """
    in_memory = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    folder = SHARED_MEMORY if in_memory else Path(tempfile.gettempdir())
    return str(folder / f"tdbg-{run.hex()}-{boot_id()}.sampler")
