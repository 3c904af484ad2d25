"""``tdbg watch``: judge a run while it trains, and stop it if asked to."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from tdbg.actions import Action, close_all
from tdbg.cli import options
from tdbg.cli.accounts import exit_code, exit_if_unread, print_accounts
from tdbg.cli.check import conclude
from tdbg.cli.output import console, emit_json_line, plain
from tdbg.cli.report import (
    exit_code_with,
    print_report,
    refuse_report_of_many,
    report_judged,
    report_option,
)
from tdbg.cli.rule_options import (
    ENDS,
    GONE,
    STOPPING,
    ActionOptions,
    action_options,
    all_option,
    are_named,
    asked_to_stop,
    coverage_of,
    invariants_option,
    parse_rules,
    print_coverage,
    print_findings,
    print_interrupted,
    rule_option,
    with_invariants,
)
from tdbg.cli.sweep import is_many, jobs_option, judge_many
from tdbg.cli.sweep_workers import Task
from tdbg.config.quantities import plural
from tdbg.errors import NotARun
from tdbg.rules import Engine, Report
from tdbg.run.findings import Finding
from tdbg.trial import create_trial, open_place
from tdbg.view import RunView, diagnosis_of_report, view_of

__all__ = ["command", "first_interrupt"]


@click.command("watch")
@options.runs
@rule_option
@invariants_option
@all_option
@action_options
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait for RUN to appear, or for a pattern's next run after all "
    "have ended.",
)
@report_option
@jobs_option
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    runs: tuple[str, ...],
    rules: tuple[str, ...],
    invariants: tuple[str, ...],
    in_full: bool,
    actions: ActionOptions,
    wait: float,
    report_file: str | None,
    jobs: int,
    as_json: bool,
) -> None:
    """Judge each RUN while it trains, until all trainings have ended.

    RUN may be a quoted pattern such as 'runs/*'; tdbg also judges runs that appear
    later.

    With --json, each line is a document whose "event" is "watching", "finding",
    "stopping" or "ended". With many runs it may also be "unreadable", and each
    document names its "run".
    """
    asked = with_invariants(rules, invariants)
    chosen = parse_rules(asked)
    if is_many(runs):
        refuse_report_of_many(report_file)
        # Actions that cannot be made are refused before any process starts.
        close_all(actions.make(runs[0], chosen, checks_only=True), 0.1)
        task = Task(rules=asked, follow=True, actions=actions.specs(chosen))
        ctx.exit(
            judge_many(runs, task, jobs, wait=wait, as_json=as_json, in_full=in_full)
        )
    (run,) = runs
    acting = actions.make(run, chosen)
    printer = _Printer(run, as_json=as_json, in_full=in_full)
    try:
        open_place(run)
    except NotARun as error:
        if wait <= 0 or error.kind != "missing":
            raise
        printer.print_waiting(wait)
        open_place(run, wait)
    engine = Engine(run, chosen, acting)
    # A training that has ended cannot be stopped.
    stopping = () if engine.state in GONE else acting
    with first_interrupt(engine.stop):
        printer.print_start([rule.name for rule in chosen])
        for found in engine.follow():
            printer.print_findings(found, stopping)
    if engine.is_stopped:
        printer.print_stopped()
    state = engine.state
    report = engine.finish()
    written = report_judged(run, report_file, report)
    trial = create_trial(run)
    view = view_of(trial, diagnosis_of_report(report))
    coverage = coverage_of(chosen, trial.tensor_names()) if invariants else []
    printer.print_end(report, view, state, written, coverage, named=are_named(rules))
    code = exit_code_with(written, exit_code(view.diagnosis))
    exit_if_unread(ctx, engine.problems(), code)


class _Printer:
    """Prints the events of one run: text for people, or JSON."""

    def __init__(self, run: str, *, as_json: bool, in_full: bool) -> None:
        self._run = run
        self._in_full = in_full
        self._as_json = as_json
        self._out = console()
        self._stopping = False

    def print_waiting(self, seconds: float) -> None:
        """Print that the run does not exist yet."""
        if not self._as_json:
            text = f"waiting up to {seconds:g} s for {self._run} to appear"
            self._out.print(plain(text))

    def print_start(self, rules: list[str]) -> None:
        """Print that judging starts."""
        if self._as_json:
            emit_json_line({"event": "watching", "run": self._run, "rules": rules})
            return
        what = f"watching {self._run} with {plural(len(rules), 'rule')}"
        self._out.print(plain(f"{what}; Ctrl-C ends watching, not the training"))

    def print_findings(
        self, found: Sequence[Finding], actions: Sequence[Action]
    ) -> None:
        """Print findings, and whether an action has requested a stop."""
        findings = [finding.to_json() for finding in found]
        if self._as_json:
            for finding in findings:
                emit_json_line({"event": "finding", **finding})
        else:
            print_findings(findings, self._out, in_full=self._in_full, live=True)
        if self._stopping or not asked_to_stop(actions):
            return
        self._stopping = True
        if self._as_json:
            emit_json_line({"event": "stopping", "run": self._run})
        else:
            self._out.print(STOPPING)

    def print_stopped(self) -> None:
        """Print what Ctrl-C has stopped, and what it has not."""
        if not self._as_json:
            print_interrupted(self._out)

    def print_end(
        self,
        report: Report,
        view: RunView,
        state: str,
        written: dict[str, Any],
        coverage: list[dict[str, Any]],
        *,
        named: bool,
    ) -> None:
        """Print how the rules and the training ended, and what capture cost."""
        if self._as_json:
            document = {**report.to_json(), **view.to_json(), "state": state}
            if written:
                document["report"] = written
            if coverage:
                document["invariants"] = coverage
            emit_json_line({"event": "ended", **document})
            return
        conclude(report, named=named)
        print_coverage(coverage, self._out)
        if state in ENDS:
            self._out.print(f"the training {ENDS[state]}")
        print_accounts(view, self._out)
        print_report(written, self._out)


@contextmanager
def first_interrupt(call: Callable[[], None]) -> Iterator[None]:
    """Make the first Ctrl-C call *call*, and raise nothing; a second one raises.

    ``KeyboardInterrupt`` comes out of whatever is running: half of a poll, or the
    callback of a weak reference, where Python reports it and goes on.

    Args:
        call: May be called between any two instructions of the main thread, so it
            must take no lock.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not is_main or before is not signal.default_int_handler:
        yield  # Somebody else handles it, or nobody is to.
        return

    def interrupted(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        call()

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
