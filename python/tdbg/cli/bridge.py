"""``tdbg bridge``: forward a run to an experiment tracker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tdbg.bridge import ALERTS, Bridge, BridgeReport, Destination
from tdbg.cli import options
from tdbg.cli.output import console, emit_json, plain
from tdbg.cli.progress import progress_bar
from tdbg.cli.rule_options import parse_rules, rule_option
from tdbg.cli.watch import first_interrupt
from tdbg.config.quantities import plural, reach
from tdbg.trial import open_place

__all__ = ["command"]


@click.group("bridge")
def command() -> None:
    """Forward a run to an experiment tracker: losses, statistics and findings."""


_SELECTION = (
    options.regex,
    options.collection,
    click.option(
        "--statistics",
        multiple=True,
        help="A statistic to forward of each tensor, such as l2; repeatable.",
    ),
    click.option(
        "--steps",
        type=click.Choice(["training", "mode", "global"]),
        default="training",
        show_default=True,
        help="Which steps charts have as their axis.",
    ),
    rule_option,
    click.option(
        "--recorded",
        is_flag=True,
        help="Judge nothing: forward the findings that others recorded in RUN.",
    ),
)
_SENDING = (
    click.option(
        "--rate",
        type=click.FloatRange(min=0),
        default=1000.0,
        show_default=True,
        help="Most steps a second; 0: as many as the tracker takes.",
    ),
    click.option(
        "--follow", is_flag=True, help="Follow the run until its training has ended."
    ),
    click.option(
        "--wait",
        type=click.FloatRange(min=0),
        default=60.0,
        show_default=True,
        help="With --follow: seconds to wait for RUN to appear.",
    ),
    click.option(
        "--dry-run", is_flag=True, help="Count what would be sent, and send nothing."
    ),
    options.as_json,
)


def _options(project: str, join: str) -> Callable[..., Callable[..., None]]:
    """Return the options that all trackers share.

    Args:
        project: What the tracker calls a project.
        join: What tells its runs from each other.
    """
    where = (
        click.option("--project", metavar="NAME", help=f"The {project}."),
        click.option(
            "--name", metavar="NAME", help="Name of its run.  Default: RUN's own."
        ),
        click.option(
            "--join",
            metavar=join,
            help="Add to this run of the tracker, under names with tdbg/ before them.",
        ),
    )

    def add(function: Callable[..., None]) -> Callable[..., None]:
        for option in reversed((options.run, *where, *_SELECTION, *_SENDING)):
            function = option(function)
        return function

    return add


_alerts = click.option(
    "--alerts",
    type=click.Choice(ALERTS),
    default="warning",
    show_default=True,
    help="The least severity that alerts somebody.",
)


@command.command("wandb")
@_options("W&B project", "ID")
@_alerts
@click.option(
    "--offline", is_flag=True, help="Write files, which 'wandb sync' sends later."
)
def _wandb(**given: Any) -> None:
    """Forward RUN to W&B: rows, alerts, and a table of findings."""
    _forward("wandb", **given)


@command.command("mlflow")
@_options("experiment of MLflow", "ID")
@click.option(
    "--uri", metavar="URI", help="Tracking server or store, as sqlite:///mlflow.db."
)
def _mlflow(**given: Any) -> None:
    """Forward RUN to MLflow: metrics, tags, and findings as a file."""
    _forward("mlflow", **given)


@command.command("trackio")
@_options("project of Trackio", "NAME")
@_alerts
def _trackio(**given: Any) -> None:
    """Forward RUN to Trackio's local store: rows, alerts, and a table of findings."""
    _forward("trackio", **given)


def _forward(
    tracker: str,
    *,
    run: str,
    project: str | None,
    name: str | None,
    join: str | None,
    regex: tuple[str, ...],
    statistics: tuple[str, ...],
    rules: tuple[str, ...],
    recorded: bool,
    follow: bool,
    wait: float,
    as_json: bool,
    uri: str | None = None,
    offline: bool = False,
    **given: Any,
) -> None:
    if recorded and rules:
        msg = "--recorded judges nothing: leave it or --rule out"
        raise click.UsageError(msg)
    chosen = [] if recorded else parse_rules(rules)
    to = Destination(project=project, name=name, join=join, uri=uri, offline=offline)
    if follow:
        open_place(run, wait)
    bridge = Bridge(
        run,
        tracker,
        to,
        regex=list(regex) or None,
        statistics=[each for text in statistics for each in text.split(",")],
        rules=chosen,
        **given,
    )
    with progress_bar("forwarding steps") as progress, first_interrupt(bridge.stop):
        report = (bridge.follow if follow else bridge.forward)(progress)
    if as_json:
        emit_json(report.to_json())
    else:
        _print(report)


def _print(report: BridgeReport) -> None:
    out = console()
    numbers = sum(report.numbers.values())
    did = "would send" if report.dry_run else "sent"
    steps = "nothing new" if report.sent_before else "no step"
    if report.rows:
        reached = reach(report.first_step, report.last_step)
        steps = f"{plural(report.rows, 'step')} ({reached})"
    what = f"{plural(numbers, 'number')} under {plural(len(report.numbers), 'name')}"
    found = plural(report.findings, "finding")
    out.print(plain(f"{did} {steps}, {what}, and {found} of {report.run}"))
    if report.dry_run:
        for name, n in sorted(report.numbers.items()):
            out.print(plain(f"  {name}: {plural(n, 'number')}"))
    for title in report.alerts:
        out.print(plain(f"  alert: {title}"))
    out.print(plain(report.verdict))
    for note in report.notes:
        out.print(plain(f"note: {note}"))
    if not report.complete:
        out.print(plain("the training continues: the same command sends the rest"))
    if report.where:
        out.print(plain(report.where))
