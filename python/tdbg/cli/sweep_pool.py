"""Processes that judge many runs, and what comes of it.

Thread safety: none.

Errors: a process that ends is noticed; its runs are told as ``unreadable``, and others
take its place.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

from tdbg.cli.sweep_worker import Task, serve

__all__ = ["Pool"]

# How long processes may take to end, when they were asked to.
END_SECONDS = 10.0
DONE = frozenset({"ended", "unreadable"})


@dataclass(slots=True)
class _Process:
    """One of them, and the runs that it has not done."""

    process: BaseProcess
    connection: Connection
    runs: set[str] = field(default_factory=set)


class Pool:
    """At most so many processes, started when there is something to do.

    Args:
        jobs: How many.
        task: What is done with every run.
    """

    def __init__(self, jobs: int, task: Task) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._jobs, self._task = jobs, task
        self._processes: list[_Process] = []
        self._waiting: deque[str] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def n_open(self) -> int:
        """How many runs are not done."""
        return len(self._waiting) + sum(len(each.runs) for each in self._processes)

    def add(self, run: str) -> None:
        """Have a run judged."""
        self._waiting.append(run)
        self._distribute()

    def events(self, seconds: float) -> list[dict[str, Any]]:
        """What has come; waits so long for something."""
        by_connection = {each.connection: each for each in self._processes}
        if not by_connection:
            time.sleep(seconds)
            return []
        found: list[dict[str, Any]] = []
        for ready in multiprocessing.connection.wait(list(by_connection), seconds):
            each = by_connection[ready]  # type: ignore[index]
            found += self._receive(each)
        self._distribute()
        return found

    def stop(self) -> None:
        """Have all runs that are followed told as they stand; begin no other."""
        self._waiting.clear()
        for each in self._processes:
            with contextlib.suppress(OSError):
                each.connection.send(None)

    def close(self) -> None:
        """End all processes."""
        self.stop()
        deadline = time.monotonic() + END_SECONDS
        for each in self._processes:
            # What it still says is read, so that it does not wait for room.
            with contextlib.suppress(EOFError, OSError):
                while each.connection.poll(max(0.0, deadline - time.monotonic())):
                    each.connection.recv()
            each.connection.close()
            each.process.join(max(0.1, deadline - time.monotonic()))
            if each.process.is_alive():
                each.process.kill()
                each.process.join()
        self._processes.clear()

    def _distribute(self) -> None:
        while self._waiting:
            each = self._next()
            if each is None:
                return
            run = self._waiting.popleft()
            each.runs.add(run)
            with contextlib.suppress(OSError):  # That it has ended is noticed anyway.
                each.connection.send(run)

    def _next(self) -> _Process | None:
        """Who takes the next run; None: all have enough to do."""
        idle = [each for each in self._processes if not each.runs]
        if idle:
            return idle[0]
        if len(self._processes) < self._jobs:
            return self._start()
        if not self._task.follow:
            return None
        return min(self._processes, key=lambda each: len(each.runs))

    def _start(self) -> _Process:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=serve, args=(theirs, self._task), daemon=True
        )
        process.start()
        theirs.close()
        made = _Process(process, ours)
        self._processes.append(made)
        return made

    def _receive(self, each: _Process) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        try:
            while True:
                event = each.connection.recv()
                if event["event"] in DONE:
                    each.runs.discard(event["run"])
                found.append(event)
                if not each.connection.poll():
                    return found
        except (EOFError, OSError):
            self._processes.remove(each)
            each.connection.close()
            each.process.join()
            why = f"the process that judged it ended with {each.process.exitcode}"
            return found + [
                {"event": "unreadable", "run": run, "error": why}
                for run in sorted(each.runs)
            ]
