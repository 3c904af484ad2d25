"""Runs a rule from outside of tdbg in a process of its own.

Such a rule may raise, crash, hang, leak, fork or print without end: the engine, the
other rules and the training are not affected.  The process reads the run by itself
and sends findings as lines of JSON.  It is killed, with all its descendants, when it
makes no progress or exceeds its limits.  It is restarted a few times, from the first
step on; then the rule's status is ``Error`` with the reason.  Findings that a restart
repeats count once.

This contains accidents, not attacks: the rule has the rights of the user.

Thread safety: none; owned by the engine.

Errors: errors of a process end up in the status of its rule.
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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tdbg.rules.rule import Rule
from tdbg.rules.runner import RuleRunner, RuleStatus, Status
from tdbg.rules.sandbox import supervisor
from tdbg.rules.sandbox.transport import describe
from tdbg.run.findings import Finding

__all__ = ["Limits", "Process", "SandboxedRule"]


# How long a process may take to start, which includes what the rule imports.
START_SECONDS = 60.0
# Longest line of an answer, and the most that one call reads, in bytes.
MAX_LINE = 1 << 18
MAX_BYTES = 1 << 22
# How much of the printed output one call reads, and how much of its end is kept.
OUTPUT_BYTES, TAIL_BYTES = 1 << 16, 2000
WAIT_SECONDS = 0.05
# The most that counts as waiting between two calls of `messages`: during a longer
# pause an answer may have come that nobody read.
ATTENTION_SECONDS = 1.0
# Findings of one rule, at most.
MAX_EPISODES = 10_000
# Lets the worker import the same tdbg as this process.
PREAMBLE = "import sys; sys.path.insert(0, sys.argv[1]); "
REASONS = {
    supervisor.TOO_MANY_PROCESSES: "it started more than {processes} processes",
    supervisor.TOO_MUCH_MEMORY: "it used more than {megabytes} MB",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the process of a rule may use.

    Attributes:
        seconds: Time for one window of steps.
        memory_bytes: Memory of the process and its descendants together.
        processes: How many processes it may start.
        restarts: How often it is started again.
    """

    seconds: float = 30.0
    memory_bytes: int = 4 << 30
    processes: int = 64
    restarts: int = 3


class Process:
    """A supervisor process, its worker process, and the pipes to them.

    Args:
        program: Python code of the worker.  Its last two arguments are the file
            descriptors to read commands from and to write answers to.
        task: The first line that the worker reads.
        limits: What the worker may use.

    Attributes:
        is_busy: Whether the last command is not done yet.
    """

    def __init__(self, program: str, task: Mapping[str, Any], limits: Limits) -> None:
        self._limits = limits
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        control, self._control = os.pipe()
        self._output, output = os.pipe()
        root = str(Path(__file__).parents[3])
        worker = [sys.executable, "-c", PREAMBLE + program, root]
        of_all = {"memory_bytes": limits.memory_bytes, "processes": limits.processes}
        command = [sys.executable, "-I", "-S", str(Path(supervisor.__file__))]
        self._process = subprocess.Popen(
            [
                *(*command, json.dumps(of_all), str(control)),
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
        self._last_read = time.monotonic()
        self._waited = 0.0
        # Ends the processes even if nobody calls `close`.
        ends = self._commands, self._control
        self._release = weakref.finalize(
            self, _abandon, self._process, (self._answers, self._output), ends
        )
        self._write(json.dumps(task))

    def send(self, command: str) -> None:
        """Send a command; the process is busy until it has answered."""
        self.is_busy = True
        self._waited = 0.0
        self._write(command)

    def wait(self) -> None:
        """Wait for an answer or output, but not long."""
        with contextlib.suppress(OSError, ValueError):
            select.select([self._answers, self._output], [], [], WAIT_SECONDS)

    def messages(self) -> list[Mapping[str, Any]]:
        """Return the answers that have arrived.

        Raises:
            ValueError: If they are not what a worker sends.
        """
        self._read_output()
        now = time.monotonic()
        self._waited += min(now - self._last_read, ATTENTION_SECONDS)
        self._last_read = now
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
        """Whether the process has ended."""
        return self._process.poll() is not None

    def trouble(self, *, ended: bool) -> str:
        """Return why the process must be replaced, or ""."""
        if ended:
            return self._reason(self._process.returncode)
        seconds = self._limits.seconds
        if not self._has_answered:
            seconds = max(seconds, START_SECONDS)
        if self.is_busy and self._waited > seconds:
            return f"it made no progress for {seconds:g} s"
        return ""

    def tail(self) -> str:
        """The end of what the process printed."""
        return self._tail.decode(errors="replace").strip()

    def close(self) -> None:
        """End the process and all its descendants."""
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

    def _write(self, line: str) -> None:
        data = line.encode() + b"\n"
        # If the process has ended, `trouble` sees its exit code.
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
    """Close the pipes that the process reads from, and wait for its end."""
    _close(ends)
    try:
        process.wait(supervisor.KILL_SECONDS + 1.0)
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


class SandboxedRule(RuleRunner):
    """Runs a rule in a process of its own.

    Args:
        rule: The rule.
        run: The run's directory.
        on_status: Called whenever the status has changed.
        program: Python code of the process; see ``Process``.
        limits: What the process may use.
        max_window: Largest number of steps in a window; None: what fits in memory.

    Raises:
        ConfigurationError: If another process could not make the same rule.
    """

    def __init__(
        self,
        rule: Rule,
        run: str,
        on_status: Callable[[RuleStatus], None],
        program: str,
        *,
        limits: Limits,
        max_window: int | None = None,
    ) -> None:
        super().__init__(rule, on_status)
        self._missing, self._is_asked = "", True
        self._program = program
        self._limits = limits
        self._task = {
            "rule": describe(rule),
            "run": str(Path(run).absolute()),
            "path": sys.path,
            "max_window": max_window,
        }
        self._n_starts = 0
        self._process: Process | None = None
        self._next_command: str | None = None
        self._seen: set[tuple[str, str, int, str]] = set()
        self._episodes: dict[tuple[str, str, int], Finding] = {}

    @property
    def findings(self) -> list[Finding]:
        """One finding for every episode, in its current state."""
        return list(self._episodes.values())

    def poll(self, command: str | None, *, wait: bool = False) -> list[Finding]:
        """Send a command to the process and return the findings that have arrived.

        A busy process gets the command once it is done with the one before, whose
        answer may be older than the steps that the caller has seen.

        Args:
            command: "poll" (judge new steps), "idle" (call ``on_idle`` as well) or
                "finish" (explain why nothing was found); None: only read.
            wait: Whether to return only when the command is done or the rule failed.

        Returns:
            Episodes that began, got worse or ended.
        """
        found: list[Finding] = []
        self._next_command = command or self._next_command
        while not self.has_failed:
            process = self._running()
            found += self._receive(process)
            if self._process is not process:
                continue  # The process was restarted, or the rule has failed.
            if not process.is_busy:
                if self._next_command is None:
                    return found
                process.send(self._next_command)
                self._next_command = None
            if not wait:
                return found
            process.wait()
        return found

    def finish(self, message: str = "", *, applies: bool = True) -> None:
        """Set the final status; end the process."""
        if self._status is Status.IN_PROGRESS and self._process is not None:
            self.poll("finish", wait=True)
        self.close()
        super().finish(message or self._missing, applies=applies and self._is_asked)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _running(self) -> Process:
        if self._process is None:
            self._n_starts += 1
            self._process = Process(self._program, self._task, self._limits)
            self._process.send("poll")
            if self._next_command == "poll":
                self._next_command = None
        return self._process

    def _receive(self, process: Process) -> list[Finding]:
        found: list[Finding] = []
        # Checked first, so that all answers from before its end are read below.
        ended = process.has_ended()
        try:
            for message in process.messages():
                found += self._handle(message)
            trouble = process.trouble(ended=ended)
        except (ValueError, KeyError, TypeError) as error:
            trouble = f"its answer is invalid: {error}"
        if trouble and not self.has_failed:
            self.close()
            if self._n_starts > self._limits.restarts:
                times = f" ({self._n_starts} times)" if self._n_starts > 1 else ""
                tail = process.tail()
                printed = f"; it printed: {tail}" if tail else ""
                self._set_status(Status.ERROR, f"{trouble}{times}{printed}")
        return found

    def _handle(self, message: Mapping[str, Any]) -> list[Finding]:
        if "episode" in message:
            finding = self._finding(message["episode"])
            key = (finding.tensor, finding.mode.name, finding.first_step)
            self._episodes[key] = finding
            if len(self._episodes) > MAX_EPISODES:
                self.close()
                msg = f"it found more than {MAX_EPISODES} episodes"
                self._set_status(Status.ERROR, msg)
        elif "status" in message:
            self.close()
            text = str(message.get("message", ""))
            if text.startswith("MemoryError"):
                text += f"; its process may use {self._limits.memory_bytes >> 20} MB"
            self._set_status(Status.ERROR, text)
        elif "finding" in message:
            finding = self._finding(message["finding"])
            name, mode = finding.tensor, finding.mode.name
            key_of_event = (name, mode, finding.step, finding.phase)
            if key_of_event not in self._seen:
                self._seen.add(key_of_event)
                self._episodes[name, mode, finding.first_step] = finding
                self._count_begun(int(finding.phase == "begin"))
                return [finding]
        elif "done" in message:
            self.n_judged = int(message.get("judged", 0))
            self._missing = str(message.get("missing", ""))
            self._is_asked = message.get("applies") is not False
        return []

    def _finding(self, document: Mapping[str, Any]) -> Finding:
        # A rule cannot report findings under the name of another.
        return replace(Finding.from_json(document), rule=self.rule.name)
