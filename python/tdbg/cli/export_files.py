"""``tdbg export safetensors|npz|parquet|zarr``: values and rows as files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tdbg.cli import options
from tdbg.cli.output import console, emit_json, n_bytes, plain
from tdbg.cli.progress import progress_bar
from tdbg.config.quantities import plural, reach
from tdbg.export import (
    PARQUET_TABLES,
    FilesReport,
    export_npz,
    export_parquet,
    export_safetensors,
    export_zarr,
)

__all__ = ["COMMANDS"]


def _with(*given: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add arguments and options, in the order in which help shows them."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(given):
            function = option(function)
        return function

    return add


_selection = _with(
    click.option(
        "--names", multiple=True, metavar="NAME", help="Only this tensor; repeatable."
    ),
    options.regex,
    options.collection,
    options.mode,
)
_file = click.option(
    "--out", type=click.Path(dir_okay=False), required=True, help="The file to write."
)
_folder = click.option(
    "--out", type=click.Path(file_okay=False), required=True, help="The folder to make."
)
_step = click.option(
    "--step", type=int, help="The step; by default the last one with values."
)
_force = click.option("--force", is_flag=True, help="Replace what exists there.")


def range_option(what: str) -> Callable[..., Any]:
    """Return the option of a range of steps."""
    return click.option(
        "--steps", callback=_range, metavar="FIRST:LAST", help=f"Only these {what}."
    )


def _range(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int | None, int | None]:
    """Return the first step and the one after the last."""
    if value is None:
        return None, None
    first, colon, last = value.partition(":")
    try:
        start = int(first) if first else None
        end = int(last) if last else start if not colon else None
    except ValueError:
        msg = f"{value!r} is no range of steps: give FIRST:LAST, such as 100:200"
        raise click.BadParameter(msg, ctx, parameter) from None
    return start, None if end is None else end + 1


@click.command("safetensors")
@_with(options.run, _file, _step, _selection, _force, options.as_json)
def _safetensors(**given: Any) -> None:
    """Write RUN's raw values of one step as safetensors, element types as they are."""
    _export(export_safetensors, **given)


@click.command("npz")
@_with(options.run, _file, _step, _selection, _force, options.as_json)
def _npz(**given: Any) -> None:
    """Write RUN's raw values of one step for numpy.load; bfloat16 becomes float32."""
    _export(export_npz, **given)


@click.command("parquet")
@_with(
    options.run,
    _file,
    click.option(
        "--table",
        type=click.Choice(PARQUET_TABLES),
        default="statistics",
        show_default=True,
        help="Which rows.",
    ),
    _selection,
    range_option("global steps, both included; either may be left out"),
    _force,
    options.as_json,
)
def _parquet(steps: tuple[int | None, int | None], **given: Any) -> None:
    """Write rows of RUN as a Parquet file."""
    _export(export_parquet, start=steps[0], end=steps[1], **given)


@click.command("zarr")
@_with(
    options.run,
    _folder,
    _selection,
    range_option("steps, both included; either may be left out"),
    _force,
    options.as_json,
)
def _zarr(steps: tuple[int | None, int | None], **given: Any) -> None:
    """Write RUN's raw values over steps as a Zarr store."""
    _export(export_zarr, start=steps[0], end=steps[1], **given)


def _export(
    export: Callable[..., FilesReport],
    *,
    run: str,
    out: str,
    names: tuple[str, ...],
    regex: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> None:
    with progress_bar("exporting") as progress:
        report = export(
            run,
            out,
            names=list(names) or None,
            regex=list(regex) or None,
            progress=progress,
            **given,
        )
    if as_json:
        emit_json(report.to_json())
        return
    _print(report)


def _print(report: FilesReport) -> None:
    what = plural(report.rows, "row") if report.rows else ""
    if report.tensors and report.steps:
        noun = "step" if report.first_step == report.last_step else "steps"
        steps = reach(report.first_step, report.last_step)
        what = f"{plural(report.tensors, 'tensor')} at {noun} {steps}"
    out = console()
    size = n_bytes(report.n_bytes)
    out.print(plain(f"{what or 'no rows'} of {report.run} in {report.out}, {size}"))
    for name, why in report.left_out.items():
        out.print(plain(f"left out of {name}: {why}"))
    if lost := report.lost_records.get("text"):
        out.print(plain(lost))
    if not report.complete:
        out.print(plain("the training continues: export again to see the rest"))


COMMANDS = (_safetensors, _npz, _parquet, _zarr)
