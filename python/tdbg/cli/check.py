"""``tdbg check``: judge a run with rules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click
from rich.console import Console

from tdbg.cli import options
from tdbg.cli.accounts import exit_code, exit_if_unread, print_accounts
from tdbg.cli.output import console, emit_json, plain
from tdbg.cli.report import (
    exit_code_with,
    print_report,
    refuse_report_of_many,
    report_judged,
    report_option,
)
from tdbg.cli.rule_options import (
    all_option,
    are_named,
    coverage_of,
    invariants_option,
    parse_rules,
    print_coverage,
    print_findings,
    print_statuses,
    rule_option,
    with_invariants,
)
from tdbg.cli.sweep import is_many, jobs_option, judge_many
from tdbg.cli.sweep_workers import Task
from tdbg.rules import Engine, Report
from tdbg.trial import create_trial
from tdbg.view import diagnosis_of_report, view_of

__all__ = ["command", "conclude"]


@click.command("check")
@options.runs
@rule_option
@invariants_option
@all_option
@click.option(
    "--record/--no-record",
    default=True,
    show_default=True,
    help="Write findings and statuses into the run.",
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
    record: bool,
    report_file: str | None,
    jobs: int,
    as_json: bool,
) -> None:
    """Judge what each RUN holds now; exit with 1 if a rule finds something wrong.

    Warnings and errors count, even if they have recovered. Findings of severity info do
    not.

    RUN may be a quoted pattern such as 'runs/*'.
    """
    asked = with_invariants(rules, invariants)
    if is_many(runs):
        refuse_report_of_many(report_file)
        task = Task(rules=asked, record=record)
        ctx.exit(
            judge_many(runs, task, jobs, wait=0.0, as_json=as_json, in_full=in_full)
        )
    (run,) = runs
    chosen = parse_rules(asked)
    engine = Engine(run, chosen, record=record)
    with _progress(engine, console(stderr=True)):
        engine.poll()
        engine.poll_idle()
        report = engine.finish()
    written = report_judged(run, report_file, report)
    trial = create_trial(run)
    view = view_of(trial, diagnosis_of_report(report))
    coverage = coverage_of(chosen, trial.tensor_names()) if invariants else []
    if as_json:
        document = {**report.to_json(), **view.to_json()}
        document |= {"invariants": coverage} if invariants else {}
        emit_json({**document, "report": written} if written else document)
    else:
        out = console()
        documents = [finding.to_json() for finding in report.findings]
        print_findings(documents, out, in_full=in_full)
        conclude(report, named=are_named(rules))
        print_coverage(coverage, out)
        print_accounts(view, out)
        print_report(written, out)
    code = exit_code_with(written, exit_code(view.diagnosis))
    exit_if_unread(ctx, engine.problems(), code)


@contextlib.contextmanager
def _progress(engine: Engine, out: Console) -> Iterator[None]:
    """Show on a terminal how many steps have been judged."""
    if not out.is_terminal:
        yield
        return
    with out.status(plain(f"judging {engine.run}")) as shown:

        def update() -> None:
            shown.update(plain(f"judging {engine.run}: {engine.report().judged}"))

        engine.on_window = update
        yield


def conclude(report: Report, *, named: bool) -> None:
    """Print how each rule ended and on how many steps; *named*: rules were named."""
    out = console()
    statuses = [status.to_json() for status in report.statuses]
    n = report.n_steps + report.n_evaluated
    if n or not report.healthy:
        print_statuses(statuses, out, named=named)
    for note in report.notes:
        out.print(plain(f"note: {note}"))
    if n:
        out.print(f"judged {report.judged}")
    else:
        out.print("no step to judge: nothing has been captured yet")
