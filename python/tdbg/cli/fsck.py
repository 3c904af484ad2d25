"""``tdbg fsck``: verify every checksum of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tdbg import _core, run_directory
from tdbg.cli import options
from tdbg.cli.output import EXIT_FOUND, console, emit_json, n_bytes, plain, table
from tdbg.errors import StorageError

__all__ = ["command"]

# What these report is damage; a torn tail is only how a killed writer ends.
HARMLESS = {"torn_tail"}


@click.command("fsck")
@options.run
@options.as_json
@click.pass_context
def command(ctx: click.Context, run: str, as_json: bool) -> None:
    """Read everything in RUN and verify every checksum; change nothing."""
    opened = run_directory.open_run(run)
    writers = [
        _check(writer.path, opened.uuid)
        for writer in run_directory.writer_directories(opened)
    ]
    problems = [p for writer in writers for p in writer["problems"]]
    damaged = any(problem["kind"] not in HARMLESS for problem in problems)
    if as_json:
        emit_json({"run": run, "damaged": damaged, "writers": writers})
    else:
        _print(run, writers, problems, damaged)
    if damaged:
        ctx.exit(EXIT_FOUND)


def _check(directory: Path, run_uuid: bytes) -> dict[str, Any]:
    try:
        reader = _core.RunReader(str(directory), run_uuid)
    except StorageError as error:
        problem = _problem(directory, error, "unreadable")
        return {"writer": directory.name, "problems": [problem]}
    return {
        "writer": directory.name,
        "state": reader.liveness(),
        "steps": reader.n_steps,
        "rows": reader.n_rows,
        "tensors": reader.n_tensors,
        "events": len(reader.events()),
        "bytes": reader.n_bytes,
        "lost": sum(int(gap["records"]) for gap in reader.gaps()),
        "problems": [
            {
                "kind": problem.kind,
                "file": f"w/{directory.name}/{problem.file}",
                "offset": problem.offset,
                "length": problem.length,
                "message": problem.message,
            }
            for problem in reader.verify()
        ],
    }


def _problem(directory: Path, error: StorageError, kind: str) -> dict[str, Any]:
    return {
        "kind": error.kind or kind,
        "file": error.file or f"w/{directory.name}",
        "offset": error.offset,
        "length": None,
        "message": str(error),
    }


def _print(
    run: str,
    writers: list[dict[str, Any]],
    problems: list[dict[str, Any]],
    damaged: bool,
) -> None:
    out = console()
    numbers = ("steps", "rows", "tensors", "events", "lost", "size", "problems")
    rows = [
        (
            writer["writer"],
            writer.get("state", "?"),
            *(str(writer.get(column, "?")) for column in numbers[:-2]),
            n_bytes(writer.get("bytes", 0)),
            str(len(writer["problems"])),
        )
        for writer in writers
    ]
    out.print(table(("writer", "state", *numbers), rows, right=numbers))
    for problem in problems:
        where = f"{problem['file']} at byte {problem['offset']}"
        out.print(plain(f"{problem['kind']}: {where}: {problem['message']}"))
    out.print(plain(f"{run} is {'DAMAGED' if damaged else 'sound'}"))
