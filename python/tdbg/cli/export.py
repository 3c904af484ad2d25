"""``tdbg export``: write a run as files of other tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tdbg.cli import options
from tdbg.cli.export_files import COMMANDS
from tdbg.cli.output import console, emit_json, plain
from tdbg.cli.progress import progress_bar
from tdbg.config.quantities import plural
from tdbg.export import (
    ExportReport,
    TimelineReport,
    export_chrome,
    export_perfetto,
    export_tensorboard,
    follow_tensorboard,
)

__all__ = ["command"]


@click.group("export")
def command() -> None:
    """Write a run as files of other tools."""


for _each in COMMANDS:
    command.add_command(_each)


@command.command("tensorboard")
@options.run
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    help="Folder for the files.  Default: tensorboard in RUN.",
)
@options.regex
@options.collection
@click.option(
    "--statistics",
    multiple=True,
    help="A statistic to show of each tensor, such as l2; repeatable.",
)
@click.option(
    "--histograms",
    type=click.Choice(["all", "stored", "none"]),
    default="all",
    show_default=True,
    help="Stored histograms and those of raw values, stored ones only, or none.",
)
@click.option(
    "--steps",
    type=click.Choice(["training", "mode", "global"]),
    default="training",
    show_default=True,
    help="Place evaluation at its training step, count each mode's steps, or count "
    "steps over all modes.",
)
@click.option(
    "--follow", is_flag=True, help="Follow the run until the training has ended."
)
@options.as_json
def _tensorboard(
    run: str,
    out: str | None,
    regex: tuple[str, ...],
    collection: str | None,
    statistics: tuple[str, ...],
    histograms: str,
    steps: str,
    follow: bool,
    as_json: bool,
) -> None:
    """Write RUN's losses, scalars and histograms for TensorBoard.

    Each mode becomes a run of TensorBoard.  An earlier export of RUN to the same
    folder is replaced.
    """
    selection: dict[str, Any] = {
        "regex": list(regex) or None,
        "collection": collection,
        "statistics": [name for text in statistics for name in text.split(",")],
        "histograms": histograms,
        "steps": steps,
    }
    report = None
    with progress_bar("exporting") as progress:
        if not follow:
            report = export_tensorboard(run, out, progress=progress, **selection)
        else:
            try:
                for report in follow_tensorboard(
                    run, out, progress=progress, **selection
                ):
                    progress(report.steps, 0)
            except KeyboardInterrupt:
                pass
    if as_json:
        emit_json({} if report is None else report.to_json())
    elif report is not None:
        _print(report)


def _timeline_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that the exports of a timeline share."""
    for option in reversed(
        (
            options.run,
            click.option(
                "--out",
                type=click.Path(dir_okay=False),
                required=True,
                help="The file; an earlier one is replaced.",
            ),
            click.option(
                "--steps",
                callback=_steps,
                metavar="FIRST:LAST",
                help="Only these global steps, both included; either may be left out.",
            ),
            options.regex,
            click.option(
                "--statistics",
                multiple=True,
                help="A statistic of tensors to draw, such as l2; repeatable.",
            ),
            options.as_json,
        )
    ):
        function = option(function)
    return function


def _steps(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int | None, int | None] | None:
    if value is None:
        return None
    first, colon, last = value.partition(":")
    try:
        start = int(first) if first else None
        end = start if not colon else int(last) if last else None
    except ValueError:
        msg = f"{value!r} is no range of steps: give FIRST:LAST, such as 100:200"
        raise click.BadParameter(msg, ctx, parameter) from None
    return start, end


@command.command("perfetto")
@_timeline_options
def _perfetto(run: str, **chosen: Any) -> None:
    """Write RUN's timeline as a Perfetto trace.

    Drop the file into https://ui.perfetto.dev, which reads it in your browser.
    """
    _timeline(export_perfetto, run, **chosen)


@command.command("chrome")
@_timeline_options
def _chrome(run: str, **chosen: Any) -> None:
    """Write RUN's timeline as Chrome's JSON trace, of at most 200,000 events."""
    _timeline(export_chrome, run, **chosen)


def _timeline(
    export: Callable[..., TimelineReport],
    run: str,
    out: str,
    steps: tuple[int | None, int | None] | None,
    regex: tuple[str, ...],
    statistics: tuple[str, ...],
    as_json: bool,
) -> None:
    report = export(
        run,
        out,
        steps=steps,
        regex=list(regex) or None,
        statistics=[name for text in statistics for name in text.split(",")],
    )
    if as_json:
        emit_json(report.to_json())
        return
    what = f"{plural(report.slices, 'slice')} and {plural(report.counters, 'counter')}"
    out_to = console()
    out_to.print(plain(f"{what} of {report.run} in {report.out}"))
    if lost := report.lost_records["text"]:
        out_to.print(plain(lost))
    if not report.complete:
        out_to.print(plain("the training continues: export again to see the rest"))


def _print(report: ExportReport) -> None:
    out = console()
    out.print(
        plain(
            f"{plural(report.steps, 'step')}, {plural(report.scalars, 'number')} and "
            f"{plural(report.histograms, 'histogram')} of {report.run}"
        )
    )
    if report.unreadable:
        out.print(
            plain(
                f"{plural(report.unreadable, 'histogram')} could not be read: "
                f"tdbg fsck {report.run} says why"
            )
        )
    if lost := report.lost_records["text"]:
        out.print(plain(lost))
    if not report.complete:
        out.print(plain("the training continues; use --follow to export the rest"))
    out.print(plain(f"tensorboard --logdir {report.out}"))
