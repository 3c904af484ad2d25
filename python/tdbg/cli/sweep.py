"""Many runs judged at once: a table for people, documents for programs.

Implements docs/cli.md, "Many runs".
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import click
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tdbg.cli.acting import STOPPING
from tdbg.cli.findings import parse_rules, print_findings
from tdbg.cli.output import (
    EXIT_FOUND,
    EXIT_UNREADABLE,
    SEVERITY_STYLES,
    console,
    emit_json,
    emit_json_line,
    plain,
    table,
)
from tdbg.cli.sweep_places import Places
from tdbg.cli.sweep_pool import Pool
from tdbg.cli.sweep_worker import Task
from tdbg.errors import NotARun

__all__ = ["jobs_option", "judge_many"]

LOOK_SECONDS = 0.2
# How long runs may take to say how they stand after Ctrl-C.
LAST_SECONDS = 15.0

jobs_option = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=lambda: os.cpu_count() or 1,
    show_default="number of cores",
    help="Processes that judge, where there are many runs.",
)


@dataclass(slots=True)
class _Row:
    """What is known of a run."""

    run: str
    state: str = "waiting"
    steps: int = 0
    last_step: int = -1
    findings: int = 0
    worst: str | None = None
    healthy: bool = True
    error: str = ""
    is_stopping: bool = False
    report: dict[str, Any] | None = None

    @property
    def shown(self) -> str:
        """The state, and whether a stop that was asked for has led to it."""
        if not self.is_stopping or self.state == "unreadable":
            return self.state
        return "stopped" if self.state == "closed" else "stopping"


def judge_many(
    arguments: Sequence[str], task: Task, jobs: int, *, wait: float, as_json: bool
) -> int:
    """Judge the runs that *arguments* name, and tell what comes of it.

    Args:
        arguments: Directories and patterns.
        task: What is done with each.
        jobs: Processes, at most.
        wait: Seconds to wait for runs that are not there, if they are followed, and
            for more of them once all have ended.
        as_json: For programs.

    Returns:
        The exit code: that of findings if any run has some, else that of what cannot
        be read if any cannot, else 0.

    Raises:
        NotARun: If no run is there.
        ConfigurationError: If a rule cannot be made.
    """
    rules = [rule.name for rule in parse_rules(task.rules)]
    places = Places(arguments, wait if task.follow else 0.0)
    sweep = _Sweep(task, rules, as_json=as_json)
    with Pool(jobs, task) as pool, sweep:
        news = time.monotonic()
        try:
            while True:
                for run in places.look():
                    sweep.begin(run)
                    pool.add(run)
                for event in pool.events(LOOK_SECONDS):
                    sweep.take(event)
                if pool.n_open or places.n_missing:
                    news = time.monotonic()
                    sweep.waits = 0.0
                    continue
                may_come = task.follow and places.patterns
                sweep.waits = wait - (time.monotonic() - news)
                if not may_come or sweep.waits <= 0.0:
                    break
        except KeyboardInterrupt:
            deadline = time.monotonic() + LAST_SECONDS
            pool.stop()
            while pool.n_open and time.monotonic() < deadline:
                for event in pool.events(LOOK_SECONDS):
                    sweep.take(event)
    if not sweep.rows:
        msg = f"no run matches {', '.join(places.patterns)}"
        raise NotARun(msg, file=places.patterns[0], kind="missing")
    sweep.conclude()
    return sweep.exit_code


class _Sweep:
    """The runs as they stand, and how that is told."""

    def __init__(self, task: Task, rules: list[str], *, as_json: bool) -> None:
        self.rows: dict[str, _Row] = {}
        # For so many seconds more for further runs; 0: these have not all ended.
        self.waits = 0.0
        self._task, self._rules, self._as_json = task, rules, as_json
        self._out = console()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if not self._as_json and self._out.is_terminal:
            self._live = Live(
                console=self._out,
                get_renderable=self._table,
                refresh_per_second=5,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def exit_code(self) -> int:
        """1 if any run is sick, else 3 if any cannot be read, else 0."""
        if any(not row.healthy for row in self.rows.values()):
            return EXIT_FOUND
        if any(row.error for row in self.rows.values()):
            return EXIT_UNREADABLE
        return 0

    def begin(self, run: str) -> None:
        """A run is there."""
        self.rows[run] = _Row(run)
        if self._as_json and self._task.follow:
            emit_json_line({"event": "watching", "run": run, "rules": self._rules})

    def take(self, event: dict[str, Any]) -> None:
        """Something has come of a run."""
        row = self.rows[event["run"]]
        kind = event["event"]
        if kind == "progress":
            row.state = event["state"]
            row.steps, row.last_step = event["steps"], event["last_step"]
            row.findings, row.worst = event["findings"], event["worst"]
        elif kind == "findings":
            self._tell_findings(row, event["findings"])
        elif kind == "ended":
            row.report, row.healthy = event["report"], event["healthy"]
        elif kind == "stopping":
            row.is_stopping = True
            if self._as_json:
                emit_json_line({"event": kind, "run": row.run})
            else:
                self._out.print(plain(f"{row.run}: {STOPPING}"))
        else:
            row.state, row.error = "unreadable", event["error"]
        if self._as_json and self._task.follow:
            if kind == "ended":
                report = {**event["report"], "run": row.run, "state": row.state}
                emit_json_line({"event": kind, **report})
            elif kind == "unreadable":
                emit_json_line({"event": kind, "run": row.run, "error": row.error})

    def conclude(self) -> None:
        """All is judged: tell what has come of it."""
        rows = list(self.rows.values())
        if self._as_json:
            if not self._task.follow:
                emit_json({"runs": [_document(row) for row in rows]})
            return
        for row in rows:
            if row.error:
                self._out.print(plain(f"{row.run}: {row.error}"))
            if row.report is not None:
                self._tell_report(row, row.report)
        self.waits = 0.0
        # Last, where the eye is when all is done.
        self._out.print(self._table())
        sick = sum(not row.healthy for row in rows)
        unreadable = sum(bool(row.error) for row in rows)
        text = f"{len(rows)} runs judged: {sick or 'none'} sick"
        self._out.print(f"{text}, {unreadable} unreadable" if unreadable else text)

    def _tell_findings(self, row: _Row, findings: list[dict[str, Any]]) -> None:
        if self._as_json:
            for finding in findings:
                emit_json_line({"event": "finding", "run": row.run, **finding})
        else:
            self._out.print(plain(row.run), style="bold")
            print_findings(findings, self._out)

    def _tell_report(self, row: _Row, report: dict[str, Any]) -> None:
        if report["findings"] and not self._task.follow:
            self._out.print(plain(row.run), style="bold")
            print_findings(report["findings"], self._out)
        for status in report["statuses"]:
            if status["status"] == "Error":
                text = f"{row.run}: {status['rule']} failed: {status['message']}"
                self._out.print(plain(text))
        for note in report["notes"]:
            self._out.print(plain(f"{row.run}: note: {note}"))

    def _table(self) -> Table:
        numbers = ("steps", "last step", "findings")
        drawn = table(
            ("run", "state", *numbers, "worst"),
            [
                (
                    row.run,
                    row.shown,
                    str(row.steps),
                    "-" if row.last_step < 0 else str(row.last_step),
                    str(row.findings),
                    Text(row.worst or "-", SEVERITY_STYLES.get(row.worst or "", "")),
                )
                for row in self.rows.values()
            ],
            right=numbers,
        )
        if self.waits > 0.0:
            what = "all have ended" if self.rows else "no run yet"
            drawn.caption = f"{what}; waiting {self.waits:.0f} s for others"
            drawn.caption_justify = "left"
        return drawn


def _document(row: _Row) -> dict[str, Any]:
    if row.report is None:
        return {"run": row.run, "error": row.error}
    return {**row.report, "run": row.run, "state": row.state}
