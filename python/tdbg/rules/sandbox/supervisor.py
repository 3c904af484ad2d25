"""Runs one worker process, and ends it with everything that it has started.

This is a program of its own, run by its path.  It imports nothing of tdbg, so that it
starts at once, stays small, and no rule can harm it.  Orphans of the worker become
children of this process (PR_SET_CHILD_SUBREAPER).  So all that the worker forks, in
whatever session, is found among the descendants, and killed with SIGKILL.

    python supervisor.py LIMITS CONTROL INHERITED COMMAND...

LIMITS is a JSON object: ``memory_bytes`` (of the worker and its descendants together)
and ``processes``.  CONTROL is a file descriptor: all processes end when its other end
is closed, on purpose or because the parent died.  INHERITED lists the file descriptors
that the worker inherits, separated by commas.

Exit codes: that of the worker; 128 + n for signal n; or one of the codes below.
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

CHECK_SECONDS = 0.05
# Descendants go on forking until all are stopped: the time for that.
KILL_SECONDS = 10.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PAGE = os.sysconf("SC_PAGE_SIZE")

_prctl = ctypes.CDLL(None, use_errno=True).prctl


def main() -> int:
    """Start the worker, enforce its limits, and end it with its descendants."""
    limits, control = json.loads(sys.argv[1]), int(sys.argv[2])
    parent = os.getppid()
    _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The supervisor ends with its parent, and the worker with its supervisor.
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
    """Limit the worker; runs in its process, before its program."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _is_closed(control: int) -> bool:
    """Wait a moment; return whether the parent has closed its end."""
    try:
        ready, _, _ = select.select([control], [], [], CHECK_SECONDS)
        return bool(ready) and os.read(control, 1) == b""
    except OSError:
        return True


def _check(limits: dict[str, int]) -> int | None:
    """Return the exit code of an exceeded limit."""
    found = descendants()
    if len(found) > limits["processes"]:
        return TOO_MANY_PROCESSES
    if sum(map(_memory, found)) > limits["memory_bytes"]:
        return TOO_MUCH_MEMORY
    return None


def descendants() -> list[int]:
    """Return the descendants of this process, children first."""
    found: list[int] = []
    queue = [os.getpid()]
    while queue:
        children = _children(queue.pop())
        found += children
        queue += children
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
    """Memory that the process does not share, in bytes."""
    try:
        text = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()
        return PAGE * (int(text[1]) - int(text[2]))
    except (OSError, IndexError, ValueError):
        return 0


def kill_descendants() -> None:
    """Stop all descendants, so that none forks any more, and then kill them."""
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
    """Collect the exit codes of dead children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    sys.exit(main())
