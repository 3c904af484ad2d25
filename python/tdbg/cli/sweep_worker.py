"""A process that judges runs for ``tdbg check RUN...`` and ``tdbg watch 'runs/*'``.

It is told of runs by a pipe and answers by it, in dictionaries whose ``event`` is
``progress``, ``findings``, ``stopping``, ``ended`` or ``unreadable`` and whose ``run``
says of which.
Runs that are followed have a thread each; others are judged one after another.

Errors: what is wrong with one run is its ``unreadable``, and ends no other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tdbg.actions import Action, ActionSpec, make
from tdbg.cli.acting import GONE, asked_to_stop
from tdbg.findings import Severity
from tdbg.rules import Engine
from tdbg.rules.asking import parse_rules
from tdbg.trial import create_trial

__all__ = ["Task", "serve"]

# So often the progress of a run is told.
PROGRESS_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is done with every run.

    Attributes:
        rules: As the command line gives them.
        follow: Until the training ends, or what is there now.
        record: Whether findings are written into the run.
        actions: Taken about findings.
    """

    rules: tuple[str, ...] = ()
    follow: bool = False
    record: bool = True
    actions: tuple[ActionSpec, ...] = ()


def serve(connection: Connection, task: Task) -> None:
    """Judge the runs that come, until "stop" does or the other end is closed."""
    # Ctrl-C reaches the whole group: what is to be done then the parent says.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = _Worker(connection, task)
    with contextlib.suppress(EOFError, OSError):
        while (run := connection.recv()) is not None:
            worker.begin(run)
    worker.stop()


class _Worker:
    """Judges, and tells."""

    def __init__(self, connection: Connection, task: Task) -> None:
        self._connection = connection
        self._task = task
        self._sending = threading.Lock()
        self._engines: dict[str, Engine] = {}
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def begin(self, run: str) -> None:
        """Judge a run: now, or beside others."""
        if not self._task.follow:
            self._judge(run)
            return
        thread = threading.Thread(target=self._judge, args=(run,), name=run)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Judge no more, and tell what has come of it."""
        self._stopped = True
        for engine in list(self._engines.values()):
            engine.stop()
        for thread in self._threads:
            thread.join()

    def _judge(self, run: str) -> None:
        try:
            report, healthy = self._report(run)
            document = {**report, "cost": create_trial(run).overhead().to_json()}
            self._send("ended", run, healthy=healthy, report=document)
        except Exception as error:  # Whatever it is, the others go on.
            self._send("unreadable", run, error=str(error) or type(error).__name__)

    def _report(self, run: str) -> tuple[dict[str, Any], bool]:
        task = self._task
        actions = tuple(_made(spec, run) for spec in task.actions)
        engine = Engine(run, parse_rules(task.rules), actions, record=task.record)
        self._engines[run] = engine
        if self._stopped:
            engine.stop()
        engine.on_look = engine.on_window = _Progress(self, run, engine).tell
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
            engine.ask_silence()
        report = engine.finish()
        del self._engines[run]
        self.send_progress(run, engine)
        return report.to_json(), report.healthy

    def send_progress(self, run: str, engine: Engine) -> None:
        """Say how far a run has come."""
        report = engine.report()
        worst = max((finding.severity for finding in report.findings), default=None)
        self._send(
            "progress",
            run,
            state=engine.state,
            steps=report.n_steps,
            last_step=report.last_step,
            findings=len(report.findings),
            worst=None if worst is None else Severity(worst).label,
        )

    def _send(self, event: str, run: str, **content: Any) -> None:
        # A parent that is gone ends the process by the other end of the pipe.
        with self._sending, contextlib.suppress(OSError):
            self._connection.send({"event": event, "run": run, **content})


class _Progress:
    """Tells of one run, not too often, and only what is new."""

    def __init__(self, worker: _Worker, run: str, engine: Engine) -> None:
        self._worker, self._run, self._engine = worker, run, engine
        self._told = 0.0

    def tell(self) -> None:
        """Say how far it has come, unless it was said just now."""
        now = time.monotonic()
        if now - self._told >= PROGRESS_SECONDS:
            self._told = now
            self._worker.send_progress(self._run, self._engine)


def _made(spec: ActionSpec, run: str) -> Action:
    """The action for one run; those that write a file get one for each."""
    path = spec.parameters.get("path")
    if spec.name == "prometheus" and isinstance(path, str):
        stem, dot, suffix = path.rpartition(".")
        own = f"{stem}-{re.sub(r'[^A-Za-z0-9_]+', '-', run).strip('-')}{dot}{suffix}"
        spec = dataclasses.replace(spec, parameters={**spec.parameters, "path": own})
    return make(spec, run)
