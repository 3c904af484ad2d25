"""A pool of processes that judge many runs and stream events to their parent.

``concurrent.futures`` does not fit: one process that dies breaks its whole pool, and a
process that follows trainings judges several runs at once.

Thread safety: none.

Errors: a process that dies is replaced, and its runs are reported as ``unreadable``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import re
import signal
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

from tdbg.actions import Action, ActionSpec, make
from tdbg.cli.accounts import exit_code
from tdbg.cli.rule_options import GONE, asked_to_stop
from tdbg.rules import Engine, Report, parse_rules
from tdbg.run.findings import Severity
from tdbg.trial import create_trial
from tdbg.view import diagnosis_of_report, view_of

__all__ = ["Pool", "Task", "serve"]


# Seconds between two reports of a run's progress.
PROGRESS_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """How every run is judged.

    Attributes:
        rules: The rules, as on the command line.
        follow: Judge until the training ends, not only what is there now.
        record: Whether findings are written into the run.
        actions: Taken about findings.
    """

    rules: tuple[str, ...] = ()
    follow: bool = False
    record: bool = True
    actions: tuple[ActionSpec, ...] = ()


def serve(connection: Connection, task: Task) -> None:
    """Judge the runs that the parent sends, until it sends None or closes the pipe."""
    # Ctrl-C reaches the whole process group; the parent decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = _Worker(connection, task)
    with contextlib.suppress(EOFError, OSError):
        while (run := connection.recv()) is not None:
            worker.begin(run)
    worker.stop()


class _Worker:
    """Judges runs, and sends events to the parent."""

    def __init__(self, connection: Connection, task: Task) -> None:
        self._connection = connection
        self._task = task
        self._sending = threading.Lock()
        self._engines: dict[str, Engine] = {}
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def begin(self, run: str) -> None:
        """Judge a run: at once, or in a thread if it is followed."""
        if not self._task.follow:
            self._judge(run)
            return
        thread = threading.Thread(target=self._judge, args=(run,), name=run)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Stop judging, and send the reports."""
        self._stopped = True
        for engine in list(self._engines.values()):
            engine.stop()
        for thread in self._threads:
            thread.join()

    def _judge(self, run: str) -> None:
        try:
            report = self._report(run)
            view = view_of(create_trial(run), diagnosis_of_report(report))
            document = {**report.to_json(), **view.to_json()}
            self._send("ended", run, code=exit_code(view.diagnosis), report=document)
        except Exception as error:  # One run must not end the worker.
            self._send("unreadable", run, error=str(error) or type(error).__name__)

    def _report(self, run: str) -> Report:
        task = self._task
        actions = tuple(_made(spec, run) for spec in task.actions)
        engine = Engine(run, parse_rules(task.rules), actions, record=task.record)
        self._engines[run] = engine
        if self._stopped:
            engine.stop()
        last = 0.0

        def report_progress() -> None:
            nonlocal last
            if time.monotonic() - last >= PROGRESS_SECONDS:
                last = time.monotonic()
                self._send_progress(run, engine)

        engine.on_poll = engine.on_window = report_progress
        if task.follow:
            stopping = engine.state in GONE
            for found in engine.follow():
                documents = [finding.to_json() for finding in found]
                self._send("findings", run, findings=documents)
                if not stopping and asked_to_stop(actions):
                    stopping = True
                    self._send("stopping", run)
        else:
            engine.poll()
            engine.poll_idle()
        report = engine.finish()
        del self._engines[run]
        self._send_progress(run, engine)
        return report

    def _send_progress(self, run: str, engine: Engine) -> None:
        report = engine.report()
        worst = max((finding.severity for finding in report.findings), default=None)
        self._send(
            "progress",
            run,
            state=engine.state,
            steps=report.n_steps,
            last_step=report.last_step,
            problems=len(diagnosis_of_report(report).at_fault),
            worst=None if worst is None else Severity(worst).label,
        )

    def _send(self, event: str, run: str, **content: Any) -> None:
        # A parent that is gone ends the process by the other end of the pipe.
        with self._sending, contextlib.suppress(OSError):
            self._connection.send({"event": event, "run": run, **content})


def _made(spec: ActionSpec, run: str) -> Action:
    """Make the action of one run; an action that writes a file gets one for each."""
    path = spec.parameters.get("path")
    if spec.name == "prometheus" and isinstance(path, str):
        stem, dot, suffix = path.rpartition(".")
        own = f"{stem}-{re.sub(r'[^A-Za-z0-9_]+', '-', run).strip('-')}{dot}{suffix}"
        spec = dataclasses.replace(spec, parameters={**spec.parameters, "path": own})
    return make(spec, run)


# How long processes may take to end once asked.
END_SECONDS = 10.0
DONE = frozenset({"ended", "unreadable"})


@dataclass(slots=True)
class _Process:
    """A worker process, and the runs that it has not finished."""

    process: BaseProcess
    connection: Connection
    runs: set[str] = field(default_factory=set)


class Pool:
    """A pool whose processes are started when there is work for them.

    Args:
        jobs: The most processes.
        task: How every run is judged.
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
        """The number of unfinished runs."""
        return len(self._waiting) + sum(len(each.runs) for each in self._processes)

    def add(self, run: str) -> None:
        """Queue a run to be judged."""
        self._waiting.append(run)
        self._distribute()

    def events(self, seconds: float) -> list[dict[str, Any]]:
        """Events that have arrived; waits at most so many seconds for the first."""
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
        """Let workers report what they follow as it stands; start no further run."""
        self._waiting.clear()
        for each in self._processes:
            with contextlib.suppress(OSError):
                each.connection.send(None)

    def close(self) -> None:
        """End all processes."""
        self.stop()
        deadline = time.monotonic() + END_SECONDS
        for each in self._processes:
            # Drain the pipe: a worker that blocks on a full one would not end.
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
            with contextlib.suppress(OSError):  # A dead process is noticed in events().
                each.connection.send(run)

    def _next(self) -> _Process | None:
        """The process that takes the next run; None: all are busy."""
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
