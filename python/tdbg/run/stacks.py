"""Where the processes of a run are: asks them, and reads what they answer.

Implements docs/format.md, "Stacks".  Whoever asks writes a file in the run's ``ctl/``;
each rank and each loader worker answers by itself (``tdbg._core.DumpListener``), from
a thread that needs no interpreter, so a process that hangs answers, too.  Nobody is
signalled from outside.
"""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tdbg.config.messages import printable, whole_number
from tdbg.errors import ConfigurationError, StorageError
from tdbg.run.directory import Run, open_run, read_small_file
from tdbg.run.json_values import load_json
from tdbg.run.profile_tables import Phase

__all__ = [
    "Frame",
    "ProcessStack",
    "ThreadStack",
    "ask_for_stacks",
    "boot_id",
    "process_namespace",
    "process_start",
]

FOLDER = "stacks"
ASK = "ask"
FORMAT = "tdbg-stacks 1"
MAX_PROCESSES = 100_000
# A dump of 100 threads, each with 100 frames.
MAX_DUMP_BYTES = 2 << 20
_PAUSE_SECONDS = 0.05
# A process that was only just started has introduced itself by then.
_FIRST_SECONDS = 1.3
# A process that is stopped, or has died, is not waited for any longer.
_SILENT_SECONDS = 1.0

_THREAD = re.compile(
    r"(?:Current thread|Thread) 0x([0-9a-fA-F]{1,32})(?: \[.*\])?"
    r" \(most recent call first\):"
)
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')
_STATE = re.compile(r"state phase=(-?\d{1,3})(?: step=(-?\d{1,18}))?")


class Frame(NamedTuple):
    """A call of a stack.

    Attributes:
        file: The file of the code.
        line: The line that is executed; 0: unknown.
        function: The name of the function.
    """

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The stack of a thread.

    Attributes:
        ident: As ``threading.get_ident()`` names the thread in its process.
        is_main: Whether it is the main thread.
        frames: Its calls, the innermost first.
    """

    ident: int
    is_main: bool
    frames: tuple[Frame, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "ident": self.ident,
            "is_main": self.is_main,
            "frames": [frame._asdict() for frame in self.frames],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStack:
    """Where one process of a run is.

    Attributes:
        kind: ``rank`` or ``worker``, of a data loader.
        rank: The rank of the training, which a worker shares.
        worker: Number of the worker in its loader; -1: a rank.
        loader: Number of the loader in its process; -1: a rank.
        pid: Number of the process on its own machine.
        parent: Of a worker, the number of its rank's process; else 0.
        host: Name of its machine.
        state: ``answered``, or why there is no answer: ``stopped`` (by a signal),
            ``silent`` (it lives), ``taken`` (the program handles the signal),
            ``closed`` (the program has closed tdbg's file), ``dead`` (the process is
            gone, though it has not said so), or ``unseen`` (it cannot be looked at
            from here: another machine or container).
        phase: What the training did; None: unknown.
        step: The global step that was under way; None: unknown.
        threads: The stacks, of the main thread first.
        own_folder: Where the process has tdbg's package; its calls are not the
            program's.
        started_ns: When it was introduced, in ns since 1970.
    """

    kind: str
    rank: int
    worker: int
    loader: int
    pid: int
    parent: int
    host: str
    state: str
    started_ns: int
    phase: Phase | None = None
    step: int | None = None
    threads: tuple[ThreadStack, ...] = ()
    own_folder: str = ""

    @property
    def name(self) -> str:
        """Return "rank 3", or "worker 0 of rank 3"."""
        if self.kind == "rank":
            return f"rank {self.rank}"
        loader = f" of loader {self.loader}" if self.loader > 0 else ""
        return f"worker {self.worker}{loader} of rank {self.rank}"

    @property
    def main_frames(self) -> tuple[Frame, ...]:
        """Return the calls of the main thread, the innermost first."""
        for thread in self.threads:
            if thread.is_main:
                return thread.frames
        return ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "kind": self.kind,
            "rank": self.rank,
            "worker": self.worker,
            "loader": self.loader,
            "pid": self.pid,
            "host": self.host,
            "state": self.state,
            "phase": None if self.phase is None else self.phase.name.lower(),
            "step": self.step,
            "threads": [thread.to_json() for thread in self.threads],
        }


def ask_for_stacks(
    run_directory: str | os.PathLike[str], timeout: float = 5.0
) -> tuple[ProcessStack, ...]:
    """Ask all processes of a run where they are.

    Processes look for questions once a second.  The call returns as soon as all that
    can answer have.

    Args:
        run_directory: The run.
        timeout: How long to wait for those that do not answer, in seconds.

    Returns:
        The ranks in order, each followed by its loader workers; empty if no process
        of the run can be asked: the training has ended, or it was started with an
        older tdbg or without the profiler.

    Raises:
        NotARun: If the directory is no run.
        ConfigurationError: If another user owns the run.
        StorageError: If the question cannot be written.
    """
    run = open_run(run_directory)
    folder = run.path / "ctl" / FOLDER
    began = time.monotonic()
    while not folder.is_dir():  # Processes make it.
        if time.monotonic() - began >= min(timeout, _FIRST_SECONDS):
            return ()
        time.sleep(_PAUSE_SECONDS)
    question = _ask(run, folder)
    while True:
        found = [
            _answer(folder, name, identity, question)
            for name, identity in _identities(folder)
        ]
        waited = time.monotonic() - began
        if waited >= timeout or not _is_waited_for(found, waited):
            return _in_order(found)
        time.sleep(_PAUSE_SECONDS)


def _is_waited_for(found: list[ProcessStack], waited: float) -> bool:
    """Whether somebody may answer yet."""
    if not found:
        return waited < _FIRST_SECONDS
    hopeless = {"dead"} if waited < _SILENT_SECONDS else {"dead", "stopped"}
    return any(
        each.state in {"silent", "stopped", "unseen"} - hopeless for each in found
    )


def _ask(run: Run, folder: Path) -> str:
    owner = run.path.stat().st_uid
    if os.geteuid() not in {owner, 0}:
        msg = f"{run.path} belongs to uid {owner}, and only its owner may ask"
        raise ConfigurationError(msg)
    question = uuid.uuid4().hex
    try:
        fresh = folder / f".{question}"
        fresh.write_text(question)
        if owner != os.geteuid():
            os.chown(fresh, owner, -1)
        fresh.replace(folder / ASK)
    except OSError as error:
        raise StorageError.of(error, "write a question to", folder) from error
    return question


def _identities(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Find the processes that have introduced themselves, by the names of files."""
    try:
        names = sorted(
            entry.name.removesuffix(".json")
            for _, entry in zip(range(MAX_PROCESSES), os.scandir(folder), strict=False)
            if entry.name.endswith(".json")
        )
    except OSError:
        return
    for name in names:
        try:
            content = load_json(read_small_file(folder / f"{name}.json"))
        except (OSError, ValueError):
            continue  # It has just ended.
        if isinstance(content, Mapping) and content.get("format") == FORMAT:
            yield name, content


def _answer(
    folder: Path, name: str, identity: Mapping[str, Any], question: str
) -> ProcessStack:
    process = _process(identity)
    try:
        text = read_small_file(folder / f"{name}.txt", limit=MAX_DUMP_BYTES)
    except OSError:
        return process
    lines = text.decode(errors="replace").split("\n")
    if lines[0] != f"{FORMAT} {question}":
        return process
    state = _STATE.fullmatch(next((x for x in lines if x.startswith("state ")), ""))
    if state is not None:
        step = None if state[2] is None else int(state[2])
        process = replace(process, phase=_phase(int(state[1])), step=step)
    for word in ("taken", "closed", "silent"):
        if word in lines[:4]:
            return replace(process, state=word)
    main = _text(identity, "main_thread")
    return replace(process, state="answered", threads=_threads(lines, main))


def _process(identity: Mapping[str, Any]) -> ProcessStack:
    """Return the process as far as the kernel knows it."""
    pid = _number(identity, "pid", 0)
    states = {"T": "stopped", "t": "stopped", "": "dead", None: "unseen"}
    return ProcessStack(
        kind="worker" if identity.get("kind") == "worker" else "rank",
        rank=_number(identity, "rank", 0),
        worker=_number(identity, "worker", -1),
        loader=_number(identity, "loader", -1),
        pid=pid,
        parent=_number(identity, "parent", 0),
        host=_text(identity, "host"),
        state=states.get(_kernel_state(identity, pid), "silent"),
        started_ns=_number(identity, "started_ns", 0),
        own_folder=_text(identity, "package"),
    )


def _kernel_state(identity: Mapping[str, Any], pid: int) -> str | None:
    """Return the letter of a process's state; "": it is gone; None: unknown."""
    is_here = (
        identity.get("boot_id") == boot_id() != ""
        and identity.get("namespace") == process_namespace()
    )
    if not is_here:
        return None
    state, start = process_start(pid)
    return state if start == identity.get("start") and state not in "ZX" else ""


def process_start(pid: int) -> tuple[str, int]:
    """Return the letter of a process's state and its start in ticks since boot.

    Returns:
        An empty letter if there is no such process.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = text.rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return "", 0


def boot_id() -> str:
    """Return the identity of this machine since it was started; "": unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_namespace() -> str:
    """Return what tells in which container numbers of processes are counted."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        return socket.gethostname()


def _threads(lines: list[str], main: str) -> tuple[ThreadStack, ...]:
    """Read what faulthandler has written; the main thread comes first."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in lines:
        if (thread := _THREAD.fullmatch(line)) is not None:
            threads.append((thread[1], []))
        elif threads and (frame := _FRAME.fullmatch(line)) is not None:
            number = int(frame[2]) if frame[2].isdecimal() else 0
            texts = printable(frame[1]), printable(frame[3])
            threads[-1][1].append(Frame(texts[0], number, texts[1]))
    read = [
        ThreadStack(int(ident, 16), ident.lstrip("0") == main, tuple(frames))
        for ident, frames in threads
    ]
    return tuple(sorted(read, key=lambda thread: not thread.is_main))


def _in_order(found: list[ProcessStack]) -> tuple[ProcessStack, ...]:
    """Leave out what is of an earlier start of the training; sort the rest."""
    newest: dict[int, ProcessStack] = {}
    for each in sorted(found, key=lambda each: (each.state != "dead", each.started_ns)):
        if each.kind == "rank":
            newest[each.rank] = each
    kept = [
        each
        for each in found
        if each.kind == "worker"
        and each.rank in newest
        and each.parent == newest[each.rank].pid
        and each.host == newest[each.rank].host
    ]
    kept += newest.values()
    return tuple(
        sorted(kept, key=lambda each: (each.rank, each.loader, each.worker, each.pid))
    )


def _phase(number: int) -> Phase | None:
    return Phase(number) if number in Phase.__members__.values() else None


def _number(content: Mapping[str, Any], name: str, default: int) -> int:
    number = whole_number(content.get(name), -1, 1 << 62)
    return default if number is None else number


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    return printable(value[:4096]) if isinstance(value, str) else ""
