"""Ends a process of pytest in which a test hangs: the program of ``hang_guard``.

It reads lines of JSON from its standard input: what runs, after how many seconds it
hears SIGALRM, and after how many it is ended; or null, when it is over.  What is ended
is named, has its stacks written by faulthandler, and is killed with all that it has
started.

Only time in which it could have run counts: on a busy machine a process may wait for a
processor most of the time, and hangs no more than before.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path

# How long a process may take to write its stacks.
STACKS_SECONDS = 30.0
# A loop without end waits for a processor, too: this part of the time counts anyway.
LEAST_SHARE = 0.1
# How often is looked who waits for a processor.
LOOK_SECONDS = 5.0


def main() -> None:
    """Watch a process until it ends, or has to be ended."""
    if os.fork():
        return
    pid = int(sys.argv[1])
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    stopwatch, rest = None, b""
    while True:
        wait = None if stopwatch is None else stopwatch.next_look()
        ready, _, _ = select.select([process, 0], [], [], wait)
        if process in ready:
            return
        if ready:
            read = os.read(0, 1 << 16)
            if not read:
                return
            *lines, rest = (rest + read).split(b"\n")
            if lines:
                told = json.loads(lines[-1])
                stopwatch = None if told is None else Stopwatch(pid, *told)
        elif stopwatch is not None:
            stopwatch.look()
            if stopwatch.rings():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGALRM)
            if stopwatch.is_over():
                what, seconds = stopwatch.what, stopwatch.limit
                text = f"has not ended within {seconds:g} s; its process is killed"
                os.write(2, f"\n{what} {text}\n".encode())
                end(pid, process)
                return


class Stopwatch:
    """The time in which a process and those below it could have run.

    Args:
        pid: The process.
        what: What runs.
        alarm: After so many seconds it rings, once.
        limit: After so many it is over.
    """

    def __init__(self, pid: int, what: str, alarm: float, limit: float) -> None:
        self.what, self.limit = what, limit
        self._pid, self._alarm = pid, alarm
        self._seconds, self._has_rung = 0.0, False
        self._looked = time.monotonic()
        # Most tests have ended before they are looked at, which takes a moment.
        self._delays: dict[int, int] | None = None

    def next_look(self) -> float:
        """In how many seconds to look."""
        next_end = self.limit if self._has_rung else min(self._alarm, self.limit)
        return min(max(0.0, next_end - self._seconds), LOOK_SECONDS)

    def look(self) -> None:
        """Count the time since the last look."""
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        before, self._delays = self._delays, delays(self._pid)
        waited = 0.0
        if before is not None:
            since = (ns - before.get(task, ns) for task, ns in self._delays.items())
            waited = max(since, default=0) / 1e9
        self._seconds += max(passed - waited, LEAST_SHARE * passed)

    def rings(self) -> bool:
        """Whether it is time for the alarm, which it is once."""
        is_due = self._seconds >= self._alarm and not self._has_rung
        self._has_rung |= is_due
        return is_due

    def is_over(self) -> bool:
        """Whether it has run for as long as it may."""
        return self._seconds >= self.limit


def delays(pid: int) -> dict[int, int]:
    """How long each thread of these processes has waited for a processor, in ns."""
    found = {}
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found[int(task.name)] = int((task / "schedstat").read_text().split()[1])
    return found


def end(pid: int, process: int) -> None:
    """Have a process write the stacks of its threads, and kill it and its children."""
    below = descendants(pid)
    resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    # Python has faulthandler write all stacks at this signal, wherever it stands.
    for number in (signal.SIGABRT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, number)
        if select.select([process], [], [], STACKS_SECONDS)[0]:
            break
    for child in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    found: list[int] = []
    ahead = [pid]
    while ahead:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{ahead.pop()}/task").iterdir():
                children = [*map(int, (task / "children").read_text().split())]
                found += children
                ahead += children
    return found


if __name__ == "__main__":
    main()
