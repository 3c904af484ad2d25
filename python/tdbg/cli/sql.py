"""``tdbg sql``: runs asked in SQL."""

from __future__ import annotations

import csv
import math
import sys
from typing import Any

import click

from tdbg.cli import options, output
from tdbg.errors import ConfigurationError
from tdbg.query import QueryAnswer, sql

__all__ = ["command"]

# So many rows are printed; the rest is counted.
MOST_PRINTED = 200


@click.command("sql")
@click.argument("arguments", nargs=-1, required=True, metavar="[RUN...] QUERY")
@options.as_json
@click.option("--csv", "as_csv", is_flag=True, help="Print all rows as CSV.")
@click.pass_context
def command(
    ctx: click.Context, arguments: tuple[str, ...], as_json: bool, as_csv: bool
) -> None:
    """Ask runs, folders or patterns of runs (default: runs) in SQL.

    The tables are statistics, scalars, steps, findings, events and runs; "describe
    statistics" names the columns of one.
    """
    if as_json and as_csv:
        msg = "--json and --csv exclude each other"
        raise ConfigurationError(msg)
    *runs, query = arguments
    answer = sql(query, runs or "runs")
    if as_json:
        output.emit_json({"columns": answer.columns, "rows": _json_rows(answer)})
    elif as_csv:
        _print_csv(answer)
    else:
        _print(answer)
    for run, reason in answer.unreadable.items():
        click.echo(f"tdbg: could not read {run}: {output.plain(reason)}", err=True)
    if answer.unreadable:
        ctx.exit(output.EXIT_UNREADABLE)


def _json_rows(answer: QueryAnswer) -> list[dict[str, Any]]:
    return [
        {name: _plain(value) for name, value in row.items()} for row in answer.rows()
    ]


def _plain(value: Any) -> Any:
    """Return a value that JSON and CSV can hold."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _print_csv(answer: QueryAnswer) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    try:
        writer.writerow(answer.columns)
        for row in answer:
            writer.writerow([_plain(value) for value in row])
    except BrokenPipeError:
        output.discard_output()


def _print(answer: QueryAnswer) -> None:
    rows = [row for row, _ in zip(answer, range(MOST_PRINTED), strict=False)]
    right = [
        name
        for i, name in enumerate(answer.columns)
        if rows and all(_is_number(row[i]) for row in rows)
    ]
    out = output.console()
    cells = [[_cell(value) for value in row] for row in rows]
    out.print(output.table(answer.columns, cells, right=right))
    more = len(answer) - len(rows)
    if more > 0:
        out.print(f"and {more:,} more rows: --csv and --json print all")


def _is_number(value: Any) -> bool:
    return value is None or (
        isinstance(value, int | float) and not isinstance(value, bool)
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict):
        told = {name: each for name, each in value.items() if each is not None}
        return ", ".join(f"{name} {_cell(each)}" for name, each in told.items()) or "-"
    return str(_plain(value))
