"""The process in which a rule of somebody else judges: started, listened to, ended.

Thread safety: none; owned by its ``Isolated``.

Errors: ``trouble`` says what is wrong with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tdbg
from tdbg.rules.isolation import _supervisor

__all__ = ["Limits", "Process"]

# How long a process may take to start, which includes what the rule imports.
START_SECONDS = 60.0
# Of a line, and of what is taken in at once.
MAX_LINE = 1 << 18
MAX_BYTES = 1 << 22
# What a process prints is read so much at a time, and so much of its end is kept.
OUTPUT_BYTES, TAIL_BYTES = 1 << 16, 2000
WAIT_SECONDS = 0.05
# So much at most counts as waiting between two looks: in a longer pause nobody has
# looked whether anything had come.
ATTENTION_SECONDS = 1.0
PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from tdbg.rules.engine.worker import main; main()"
)
REASONS = {
    _supervisor.TOO_MANY_PROCESSES: "it started more than {processes} processes",
    _supervisor.TOO_MUCH_MEMORY: "it used more than {megabytes} MB",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the process of a rule may take.

    Attributes:
        seconds: For one window of steps.
        memory_bytes: Of all its processes together.
        processes: That it may start.
        restarts: How often it is started again.
    """

    seconds: float = 30.0
    memory_bytes: int = 4 << 30
    processes: int = 64
    restarts: int = 3


class Process:
    """The supervisor, its worker, and the pipes to them.

    Args:
        task: What the worker is to do; see ``worker``.
        limits: What it may take.

    Attributes:
        is_busy: Whether it has not yet answered what it was asked.
    """

    def __init__(self, task: Mapping[str, Any], limits: Limits) -> None:
        self._limits = limits
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        control, self._control = os.pipe()
        self._output, output = os.pipe()
        worker = [sys.executable, "-c", PROGRAM, str(Path(tdbg.__file__).parents[1])]
        of_all = {"memory_bytes": limits.memory_bytes, "processes": limits.processes}
        supervisor = [sys.executable, "-I", "-S", str(Path(_supervisor.__file__))]
        self._process = subprocess.Popen(
            [
                *(*supervisor, json.dumps(of_all), str(control)),
                f"{commands},{answers}",
                *(*worker, str(commands), str(answers)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(commands, answers, control),
            start_new_session=True,
        )
        for descriptor in (commands, answers, control, output):
            os.close(descriptor)
        for descriptor in (self._answers, self._output):
            os.set_blocking(descriptor, False)
        self._tail = b""
        self._rest = b""
        self.is_busy = False
        self._has_answered = False
        self._looked = time.monotonic()
        self._waited = 0.0
        # Whoever forgets to close it leaves no process behind.
        ends = self._commands, self._control
        self._release = weakref.finalize(
            self, _abandon, self._process, (self._answers, self._output), ends
        )
        self._send(json.dumps(task))

    def ask(self, command: str) -> None:
        """Have it do something; it is busy until it has answered."""
        self.is_busy = True
        self._waited = 0.0
        self._send(command)

    def wait(self) -> None:
        """Until something comes, or for a moment."""
        with contextlib.suppress(OSError, ValueError):
            select.select([self._answers, self._output], [], [], WAIT_SECONDS)

    def messages(self) -> list[Mapping[str, Any]]:
        """What has come.

        Raises:
            ValueError: If it is not what a worker sends.
        """
        self._read_output()
        now = time.monotonic()
        self._waited += min(now - self._looked, ATTENTION_SECONDS)
        self._looked = now
        found: list[Mapping[str, Any]] = []
        for line in self._lines():
            message = json.loads(line)
            if not isinstance(message, dict):
                msg = f"{line[:80]!r}"
                raise ValueError(msg)
            if "beat" in message or "done" in message:
                self._waited, self._has_answered = 0.0, True
            if "done" in message:
                self.is_busy = False
            found.append(message)
        return found

    def has_ended(self) -> bool:
        """Whether it is no more."""
        return self._process.poll() is not None

    def trouble(self, *, ended: bool) -> str:
        """Why it is of no use any more, or ""."""
        if ended:
            return self._reason(self._process.returncode)
        seconds = self._limits.seconds
        if not self._has_answered:
            seconds = max(seconds, START_SECONDS)
        if self.is_busy and self._waited > seconds:
            return f"it made no progress for {seconds:g} s"
        return ""

    def tail(self) -> str:
        """The last of what it printed."""
        return self._tail.decode(errors="replace").strip()

    def close(self) -> None:
        """Take it down, with all that it has started."""
        self._release.detach()
        _end(self._process, (self._commands, self._control))
        self._read_output()
        _close((self._answers, self._output))

    def _reason(self, code: int) -> str:
        if code in REASONS:
            return REASONS[code].format(
                processes=self._limits.processes,
                megabytes=self._limits.memory_bytes >> 20,
            )
        if code > 128 and code - 128 in set(signal.Signals):
            return f"its process was killed by {signal.Signals(code - 128).name}"
        return f"its process ended with exit code {code}"

    def _send(self, line: str) -> None:
        data = line.encode() + b"\n"
        # A process that has ended is noticed by its exit code.
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._commands, data) :]

    def _lines(self) -> list[bytes]:
        read = b""
        while len(read) < MAX_BYTES:
            try:
                more = os.read(self._answers, 1 << 16)
            except BlockingIOError:
                break
            if not more:
                break
            read += more
        *lines, self._rest = (self._rest + read).split(b"\n")
        if len(self._rest) > MAX_LINE:
            msg = "a line without end"
            raise ValueError(msg)
        return lines

    def _read_output(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._tail += os.read(self._output, OUTPUT_BYTES)
        self._tail = self._tail[-TAIL_BYTES:]


def _end(process: subprocess.Popen[bytes], ends: Iterable[int]) -> None:
    """Close the ends of the pipes that it listens to, and see it go."""
    _close(ends)
    try:
        process.wait(_supervisor.KILL_SECONDS + 1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _abandon(
    process: subprocess.Popen[bytes], ours: Iterable[int], ends: Iterable[int]
) -> None:
    _end(process, ends)
    _close(ours)
