"""Runs one worker process and takes everything down that it has started.

A program of its own, run by its path: it imports nothing of tdbg, so that it starts
at once and stays small, and nothing that a rule does can harm it.  Orphans of the
worker become its children (PR_SET_CHILD_SUBREAPER), so whatever the worker forks,
in whatever session, is found among its descendants, and killed with SIGKILL.

    python _supervisor.py LIMITS CONTROL INHERITED COMMAND...

LIMITS is a JSON object: ``memory_bytes`` (of the worker and of all its descendants
together) and ``processes``.  CONTROL is a file descriptor: when its other end is
closed, because the parent wants so or is dead, all end.  INHERITED are those that the
worker is given, with commas.

Exit codes: that of the worker; 128 + n for signal n; or one of those below.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

ENDED, TOO_MANY_PROCESSES, TOO_MUCH_MEMORY = 200, 201, 202

LOOK_SECONDS = 0.05
# Descendants that are killed fork on until all have stopped.
KILL_SECONDS = 10.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PAGE = os.sysconf("SC_PAGE_SIZE")

_prctl = ctypes.CDLL(None, use_errno=True).prctl


def main() -> int:
    limits, control = json.loads(sys.argv[1]), int(sys.argv[2])
    parent = os.getppid()
    _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Behind the back of a parent that dies: the worker goes with its supervisor.
    _prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    ended = [os.getppid() != parent]
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    inherited = tuple(int(number) for number in sys.argv[3].split(",") if number)
    with subprocess.Popen(
        sys.argv[4:],
        stdin=subprocess.DEVNULL,
        pass_fds=inherited,
        start_new_session=True,
        preexec_fn=lambda: _limit(limits["memory_bytes"]),  # noqa: PLW1509 - no threads
    ) as worker:
        for number in inherited:
            os.close(number)
        code = None
        while code is None:
            code = worker.poll()
            if code is not None:
                code = code if code >= 0 else 128 - code
            elif any(ended) or _is_closed(control):
                code = ENDED
            else:
                code = _check(limits)
        kill_descendants()
        worker.wait()
    return code


def _limit(memory_bytes: int) -> None:
    """In the worker, before its program begins."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _is_closed(control: int) -> bool:
    """Wait a moment; whether the parent has closed its end."""
    try:
        ready, _, _ = select.select([control], [], [], LOOK_SECONDS)
        return bool(ready) and os.read(control, 1) == b""
    except OSError:
        return True


def _check(limits: dict[str, int]) -> int | None:
    """The exit code for what is beyond its limit."""
    found = descendants()
    if len(found) > limits["processes"]:
        return TOO_MANY_PROCESSES
    if sum(map(_memory, found)) > limits["memory_bytes"]:
        return TOO_MUCH_MEMORY
    return None


def descendants() -> list[int]:
    """Processes below this one, the nearest first."""
    found: list[int] = []
    ahead = [os.getpid()]
    while ahead:
        children = _children(ahead.pop())
        found += children
        ahead += children
    return found


def _children(process: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):
                text = (task / "children").read_text(encoding="ascii")
                found += [int(number) for number in text.split()]
    return found


def _memory(process: int) -> int:
    """Memory that is its own, in bytes."""
    try:
        text = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()
        return PAGE * (int(text[1]) - int(text[2]))
    except (OSError, IndexError, ValueError):
        return 0


def kill_descendants() -> None:
    """Stop them all, so that none forks any more, and then kill them."""
    deadline = time.monotonic() + KILL_SECONDS
    stopped: set[int] = set()
    while time.monotonic() < deadline:
        fresh = set(descendants()) - stopped
        if not fresh:
            break
        for process in fresh:
            _send(process, signal.SIGSTOP)
        stopped |= fresh
    while time.monotonic() < deadline:
        found = descendants()
        if not found:
            return
        for process in found:
            _send(process, signal.SIGKILL)
        _reap()
        time.sleep(0.001)


def _send(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def _reap() -> None:
    """Take the exit codes of those that are dead."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    sys.exit(main())
