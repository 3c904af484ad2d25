"""Many runs judged at once: a table for people, documents for programs.

Implements docs/cli.md, "Many runs".
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import click
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tdbg.cli.accounts import state_text
from tdbg.cli.output import (
    EXIT_FAILED,
    EXIT_FOUND,
    EXIT_UNREADABLE,
    SEVERITY_STYLES,
    console,
    emit_json,
    emit_json_line,
    plain,
    table,
)
from tdbg.cli.rule_options import (
    STOPPING,
    parse_rules,
    print_findings,
    print_interrupted,
)
from tdbg.cli.sweep_workers import Pool, Task
from tdbg.config.quantities import plural
from tdbg.errors import NotARun
from tdbg.run.directory import RUN_FILE
from tdbg.view import UNREADABLE, RunRow

__all__ = ["RunFinder", "is_many", "jobs_option", "judge_many"]


def is_many(arguments: Sequence[str]) -> bool:
    """Whether the arguments may mean more than one run."""
    return len(arguments) > 1 or _is_pattern(arguments[0])


class RunFinder:
    """Finds runs, and returns each once.

    Args:
        arguments: Directories, and patterns that match directories of runs.
        wait: Seconds to wait for a directory that does not exist yet.

    Attributes:
        patterns: The arguments that are patterns.
    """

    def __init__(self, arguments: Sequence[str], wait: float = 0.0) -> None:
        self.patterns = [each for each in arguments if _is_pattern(each)]
        self._missing = [each for each in arguments if not _is_pattern(each)]
        self._deadline = time.monotonic() + wait
        self._known: set[str] = set()

    @property
    def n_missing(self) -> int:
        """The number of directories that do not exist yet."""
        return len(self._missing)

    def find_new(self) -> list[str]:
        """Runs that have appeared since the last call."""
        found: list[str] = []
        for run in self._named():
            key = os.path.abspath(run)  # noqa: PTH100 - keep symbolic links
            if key not in self._known:
                self._known.add(key)
                found.append(run)
        return found

    def _named(self) -> Iterator[str]:
        is_overdue = time.monotonic() >= self._deadline
        there = [each for each in self._missing if is_overdue or _is_run(each)]
        self._missing = [each for each in self._missing if each not in there]
        yield from there
        for pattern in self.patterns:
            for found in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207
                if _is_run(found):
                    yield found.rstrip("/")


def _is_run(path: str) -> bool:
    try:
        return (Path(path) / RUN_FILE).exists()
    except OSError:
        return True  # It may be a run: reading it will show why it cannot be read.


def _is_pattern(argument: str) -> bool:
    return glob.has_magic(argument) and not Path(argument).exists()


POLL_SECONDS = 0.2
# How long workers may take to report after Ctrl-C.
LAST_SECONDS = 60.0

jobs_option = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=lambda: os.cpu_count() or 1,
    show_default="number of cores",
    help="Largest number of processes that judge many runs.",
)


@dataclass(slots=True)
class _Row:
    """The row of a run in the table."""

    run: str
    state: str = "waiting"
    steps: int = 0
    last_step: int = -1
    problems: int = 0
    worst: str | None = None
    code: int = 0
    error: str = ""
    is_stopping: bool = False
    report: dict[str, Any] | None = None

    @property
    def shown(self) -> str:
        """The state of the training, which shows a stop that was requested."""
        if not self.is_stopping or self.state == UNREADABLE:
            if self.report is None:
                return self.state
            return state_text(self.state, self.report["lost_records"]["in_order"])
        return "stopped" if self.state == "closed" else "stopping"


def judge_many(
    arguments: Sequence[str],
    task: Task,
    jobs: int,
    *,
    wait: float,
    as_json: bool,
    in_full: bool = False,
) -> int:
    """Judge the runs that *arguments* name, and print the results.

    Args:
        arguments: Directories and patterns.
        task: How each run is judged.
        jobs: Largest number of processes.
        wait: Seconds to wait for runs that do not exist yet, if runs are followed,
            and for further runs once all have ended.
        as_json: Print JSON instead of tables.
        in_full: Print what follows from another finding in full.

    Returns:
        1 if any run has warnings or errors, else 4 if a rule failed, else 3 if any
        cannot be read, else 0.

    Raises:
        NotARun: If no run is there.
        ConfigurationError: If a rule cannot be made.
    """
    rules = [rule.name for rule in parse_rules(task.rules)]
    finder = RunFinder(arguments, wait if task.follow else 0.0)
    sweep = _Sweep(task, rules, as_json=as_json, in_full=in_full)
    with Pool(jobs, task) as pool, sweep:
        news = time.monotonic()
        try:
            while True:
                for run in finder.find_new():
                    # Queued first: an announced run is judged even after Ctrl-C.
                    pool.add(run)
                    sweep.begin(run)
                for event in pool.events(POLL_SECONDS):
                    sweep.take(event)
                if pool.n_open or finder.n_missing:
                    news = time.monotonic()
                    sweep.seconds_left = 0.0
                    continue
                may_come = task.follow and finder.patterns
                sweep.seconds_left = wait - (time.monotonic() - news)
                if not may_come or sweep.seconds_left <= 0.0:
                    break
        except KeyboardInterrupt:
            deadline = time.monotonic() + LAST_SECONDS
            pool.stop()
            sweep.interrupt()
            while pool.n_open and time.monotonic() < deadline:
                for event in pool.events(POLL_SECONDS):
                    sweep.take(event)
    if not sweep.rows:
        msg = f"no run matches {', '.join(finder.patterns)}"
        raise NotARun(msg, file=finder.patterns[0], kind="missing")
    sweep.conclude()
    return sweep.exit_code


class _Sweep:
    """The rows of the runs, and how they are printed."""

    def __init__(
        self, task: Task, rules: list[str], *, as_json: bool, in_full: bool
    ) -> None:
        self.rows: dict[str, _Row] = {}
        # Seconds left to wait for further runs; 0: some are still being judged.
        self.seconds_left = 0.0
        self._task, self._rules = task, rules
        self._as_json, self._in_full = as_json, in_full
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
        """1 if one is sick, else 4 if a rule failed, 3 if one cannot be read, or 0."""
        codes = {row.code for row in self.rows.values()}
        ranked = (EXIT_FOUND, EXIT_FAILED, EXIT_UNREADABLE)
        return next((code for code in ranked if code in codes), 0)

    def begin(self, run: str) -> None:
        """Add a row for a run that has appeared."""
        self.rows[run] = _Row(run)
        if self._as_json and self._task.follow:
            emit_json_line({"event": "watching", "run": run, "rules": self._rules})

    def take(self, event: dict[str, Any]) -> None:
        """Take in an event of a worker."""
        row = self.rows[event["run"]]
        kind = event["event"]
        if kind == "progress":
            row.state = event["state"]
            row.steps, row.last_step = event["steps"], event["last_step"]
            row.problems, row.worst = event["problems"], event["worst"]
        elif kind == "findings":
            self._print_findings(row, event["findings"])
        elif kind == "ended":
            row.report, row.code = event["report"], event["code"]
        elif kind == "stopping":
            row.is_stopping = True
            if self._as_json:
                emit_json_line({"event": kind, "run": row.run})
            else:
                self._out.print(plain(f"{row.run}: {STOPPING}"))
        else:
            row.state, row.error = UNREADABLE, event["error"]
            row.code = EXIT_UNREADABLE
        if self._as_json and self._task.follow:
            if kind == "ended":
                report = {**event["report"], "run": row.run, "state": row.state}
                emit_json_line({"event": kind, **report})
            elif kind == "unreadable":
                emit_json_line({"event": kind, "run": row.run, "error": row.error})

    def interrupt(self) -> None:
        """Say what Ctrl-C has stopped, and what it has not."""
        if self._task.follow and not self._as_json:
            print_interrupted(self._out)

    def conclude(self) -> None:
        """Print the results of all runs."""
        rows = list(self.rows.values())
        if self._as_json:
            if not self._task.follow:
                emit_json({"runs": [_document(row) for row in rows]})
            return
        for row in rows:
            if row.error:
                self._out.print(plain(f"{row.run}: {row.error}"))
            if row.report is not None:
                self._print_report(row, row.report)
        self.seconds_left = 0.0
        # Last, so that it stands above the prompt.
        self._out.print(self._table())
        sick = sum(row.code in (EXIT_FOUND, EXIT_FAILED) for row in rows)
        unreadable = sum(bool(row.error) for row in rows)
        text = f"{plural(len(rows), 'run')} judged: {sick or 'none'} with problems"
        self._out.print(f"{text}, {unreadable} unreadable" if unreadable else text)

    def _print_findings(self, row: _Row, findings: list[dict[str, Any]]) -> None:
        if self._as_json:
            for finding in findings:
                emit_json_line({"event": "finding", "run": row.run, **finding})
        else:
            self._out.print(plain(row.run), style="bold")
            print_findings(findings, self._out, in_full=self._in_full, live=True)

    def _print_report(self, row: _Row, report: dict[str, Any]) -> None:
        if report["findings"] and not self._task.follow:
            self._out.print(plain(row.run), style="bold")
            print_findings(report["findings"], self._out, in_full=self._in_full)
        for status in report["statuses"]:
            if status["status"] == "Error":
                text = f"{row.run}: {status['rule']} failed: {status['message']}"
                self._out.print(plain(text))
        if lost := report["lost_records"]["text"]:
            self._out.print(plain(f"{row.run}: {lost}"))
        for note in report["notes"]:
            self._out.print(plain(f"{row.run}: note: {note}"))

    def _table(self) -> Table:
        numbers = ("steps judged", "last step", "problems")
        drawn = table(
            ("run", "state", *numbers, "worst"),
            [
                (
                    row.run,
                    row.shown,
                    str(row.steps),
                    "-" if row.last_step < 0 else str(row.last_step),
                    str(row.problems),
                    Text(row.worst or "-", SEVERITY_STYLES.get(row.worst or "", "")),
                )
                for row in self.rows.values()
            ],
            right=numbers,
        )
        if self.seconds_left > 0.0:
            what = "all have ended" if self.rows else "no run yet"
            drawn.caption = f"{what}; waiting {self.seconds_left:.0f} s for more runs"
            drawn.caption_justify = "left"
        return drawn


def _document(row: _Row) -> dict[str, Any]:
    if row.report is None:
        return {"run": row.run, **RunRow(None, row.error).to_json()}
    return {**row.report, "run": row.run, "state": row.state}
