"""``tdbg report``: a run, or two beside each other, as one HTML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from tdbg.cli import options
from tdbg.cli.accounts import exit_if_unread
from tdbg.cli.output import EXIT_UNREADABLE, console, emit_json, n_bytes, plain
from tdbg.cli.pricing import price_options, pricing_of
from tdbg.config.messages import printable
from tdbg.errors import TdbgError
from tdbg.trial import create_trial

if TYPE_CHECKING:
    from tdbg.rules import Report


__all__ = [
    "command",
    "exit_code_with",
    "print_report",
    "refuse_report_of_many",
    "report_judged",
    "report_option",
]

MOST_RUNS = 2
# Of the names of runs, what the name of a file takes over: no path, and no option.
NOT_IN_NAMES = re.compile(r"[^\w.-]+")


def _place(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Refuse a file in a folder that is not there: judging may take days."""
    if value is not None and not Path(value).absolute().parent.is_dir():
        msg = f"{value}: there is no folder {Path(value).parent}"
        raise click.BadParameter(msg, ctx, parameter)
    return value


report_option = click.option(
    "--report",
    "report_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    callback=_place,
    help="Also write an HTML report: see tdbg report.",
)


@click.command("report")
@options.runs
@click.option(
    "-o",
    "--out",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    callback=_place,
    help="The file.  Default: NAME-report.html, in this folder.",
)
@click.option(
    "--profile",
    is_flag=True,
    help="Only where the time went, and what to change: one RUN.",
)
@price_options
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    runs: tuple[str, ...],
    out: str | None,
    profile: bool,
    price: float | None,
    prices: str | None,
    machine: str | None,
    as_json: bool,
) -> None:
    """Write RUN as one HTML file: what is wrong, what to do, and the evidence.

    If you give two RUNs, you see them side by side.  The file needs nothing else: it
    opens from disk, prints, has no script and makes no request.

    The report shows the findings that the run holds.  If no rules have judged the run,
    all rules judge it for the report, which writes nothing into the run.

    With --price, or --prices and --on, it also says what the run has cost.
    """
    pricing = pricing_of(price, prices, machine)
    _refuse_many(len(runs), {"--profile": profile, "a price": pricing is not None})
    from tdbg.report import write, write_comparison

    trials = [create_trial(run) for run in runs]
    names = [NOT_IN_NAMES.sub("-", trial.name).strip("-.") or "run" for trial in trials]
    path = out or f"{'-'.join(names)}-{'profile' if profile else 'report'}.html"
    if len(trials) == 1:
        written = write(trials[0], path, profile=profile, pricing=pricing)
    else:
        written = write_comparison(trials[0], trials[1], path)
    if as_json:
        emit_json({"runs": list(runs), **written.to_json()})
    else:
        out_console = console()
        for run, verdict in zip(runs, written.verdicts, strict=True):
            begin = f"{run}: " if len(runs) > 1 else ""
            out_console.print(plain(f"{begin}{verdict.sentence}"))
        print_report(written.to_json(), out_console)
    exit_if_unread(ctx, [each for trial in trials for each in trial.problems()])


def _refuse_many(n: int, of_one: Mapping[str, bool]) -> None:
    """Refuse more runs than a report covers, and than what was asked for covers."""
    if n > MOST_RUNS:
        msg = f"a report covers one run or two, not {n}"
        raise click.UsageError(msg)
    for what, is_asked in of_one.items():
        if is_asked and n > 1:
            msg = f"{what} covers one run, not {n}"
            raise click.UsageError(msg)


def refuse_report_of_many(file: str | None) -> None:
    """Refuse a report of several runs that are judged at once.

    Raises:
        UsageError: If a file was named.
    """
    if file is not None:
        msg = "--report covers one run: name one, or use tdbg report for each"
        raise click.UsageError(msg)


def report_judged(run: str, file: str | None, judged: Report) -> dict[str, Any]:
    """Write the report of a run that has just been judged.

    Returns:
        What was written, for JSON; with ``error`` if it could not be, since that takes
        nothing from the judgement; empty if no file was named.
    """
    if file is None:
        return {}
    from tdbg.report import write

    try:
        return write(create_trial(run), file, judged=judged).to_json()
    except TdbgError as error:
        return {"file": file, "error": str(error)}


def print_report(written: Mapping[str, Any], out: Console) -> None:
    """Print where a report is, or why it is not; nothing if there was to be none."""
    if "error" in written:
        click.echo(f"tdbg: {printable(written['error'])}", err=True)
    elif written:
        size = n_bytes(written["bytes"])
        out.print(plain(f"report: {size} written to {written['file']}"))


def exit_code_with(written: Mapping[str, Any], code: int) -> int:
    """The exit code of a judgement beside its report, which may have failed."""
    return code or (EXIT_UNREADABLE if "error" in written else 0)
