"""``tdbg gc``: remove from runs what a retention does not keep."""

from __future__ import annotations

from typing import Any

import click

from tdbg.cli import options
from tdbg.cli.output import console, emit_json, n_bytes, plain
from tdbg.config.quantities import plural, reach
from tdbg.config.retention import Retention
from tdbg.errors import ConfigurationError
from tdbg.run.json_values import mapping_of
from tdbg.run.removal import CollectReport, collect
from tdbg.trial import create_trial

__all__ = ["command"]


@click.command("gc")
@options.runs
@click.option(
    "--values",
    metavar="WHICH",
    help='Raw values to keep: "last 1000", "every 100", both with a comma, or "none".',
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    help="Size of each run, such as 50GB: the oldest values go first, then the oldest "
    "steps.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@options.as_json
def command(
    runs: tuple[str, ...],
    values: str | None,
    max_bytes: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove old data from RUNs, finished or live.

    Without --values and --max-bytes, each run's own retention applies.  Statistics and
    events stay, unless --max-bytes leaves no room for the oldest statistics.
    """
    given = None
    if values is not None or max_bytes is not None:
        given = Retention(values=values, max_bytes=max_bytes)
    asked = [(run, given or _own(run)) for run in runs]
    reports = [collect(run, kept, dry_run=dry_run) for run, kept in asked]
    if as_json:
        emit_json({"runs": [report.to_json() for report in reports]})
        return
    for report in reports:
        _print(report)


def _own(run: str) -> Retention:
    """Return the retention that the training of a run had.

    Raises:
        ConfigurationError: If it had none.
    """
    hook = mapping_of(create_trial(run).configuration().get("hook"))
    found: Any = hook.get("retention")
    if not found:
        msg = (
            f"{run} was written without a retention: say what to keep, with "
            '--values "last 1000" or --max-bytes 50GB'
        )
        raise ConfigurationError(msg)
    return Retention(**mapping_of(found))


def _print(report: CollectReport) -> None:
    out = console()
    verb = "would go" if report.is_dry else "went"
    for each in report.shards:
        what = "values" if each.values_only else "all but events"
        steps = reach(each.first_step, each.last_step)
        where = f"shard {each.shard} of {each.writer}"
        out.print(
            plain(f"{what} of steps {steps}, {where}: {n_bytes(each.n_bytes)} {verb}")
        )
    freed, n = n_bytes(report.before - report.after), len(report.shards)
    out.print(
        plain(
            f"{report.run}: {freed} of {n_bytes(report.before)} {verb}, "
            f"from {plural(n, 'shard')}"
        )
    )
