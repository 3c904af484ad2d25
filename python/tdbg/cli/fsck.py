"""``tdbg fsck``: verify every checksum of a run, and that nothing is missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tdbg._core import RunReader
from tdbg.cli import options
from tdbg.cli.accounts import state_text
from tdbg.cli.output import EXIT_FOUND, console, emit_json, n_bytes, plain, table
from tdbg.errors import StorageError
from tdbg.run.directory import WriterDirectory
from tdbg.trial import (
    HiddenSteps,
    LostRecords,
    RunPlace,
    hidden_steps,
    lost_by_writer,
    open_place,
)

__all__ = ["command"]

# The others are damage.  A torn tail is only how a killed writer ends, and where the
# end of a run is not known nothing says that it is not this one.
UNKNOWN_END = "unknown_end"
HARMLESS = {"torn_tail", UNKNOWN_END}


@click.command("fsck")
@options.run
@options.as_json
@click.pass_context
def command(ctx: click.Context, run: str, as_json: bool) -> None:
    """Read all of RUN, verify every checksum, name what is missing; change nothing."""
    place = open_place(run)
    readers: dict[WriterDirectory, RunReader] = {}
    writers = [_check(place, writer, readers) for writer in place.writers()]
    hidden = hidden_steps(place, readers)
    problems = [p for writer in writers for p in writer["problems"]]
    damaged = any(problem["kind"] not in HARMLESS for problem in problems)
    if as_json:
        emit_json(
            {
                "run": run,
                "damaged": damaged,
                "hidden": [each.to_json() for each in hidden],
                "writers": writers,
            }
        )
    else:
        _print(run, writers, problems, damaged, hidden)
    if damaged or hidden:
        ctx.exit(EXIT_FOUND)


def _check(
    place: RunPlace, writer: WriterDirectory, readers: dict[WriterDirectory, RunReader]
) -> dict[str, Any]:
    """Check the files of a writer, and keep what reads them."""
    directory = writer.path
    try:
        reader = readers[writer] = place.open(writer)
    except StorageError as error:
        problem = _problem(directory, error, "unreadable")
        return {"writer": directory.name, "problems": [problem]}
    readers[writer] = reader
    problems = [
        {
            "kind": problem.kind,
            "file": f"w/{directory.name}/{problem.file}",
            "offset": problem.offset,
            "length": problem.length,
            "message": problem.message,
        }
        for problem in reader.verify()
    ]
    if reader.end_is_unknown:
        problems.append(_unknown_end(directory))
    lost = lost_by_writer(directory.name, reader)
    return {
        "writer": directory.name,
        "state": reader.liveness(),
        "steps": reader.n_steps,
        "rows": reader.n_rows,
        "tensors": reader.n_tensors,
        "events": len(reader.events()),
        "bytes": reader.n_bytes,
        "lost": lost.records,
        "lost_records": LostRecords((lost,)).to_json(),
        "problems": problems,
    }


def _unknown_end(directory: Path) -> dict[str, Any]:
    return {
        "kind": UNKNOWN_END,
        "file": f"w/{directory.name}/COMMIT",
        "offset": 0,
        "length": 0,
        "message": "there is no valid one, and the writer did not close its last "
        "shard: more may have been written than is there",
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
    hidden: Sequence[HiddenSteps],
) -> None:
    out = console()
    numbers = ("steps", "rows", "tensors", "events", "lost", "size", "problems")
    rows = [
        (
            writer["writer"],
            _state(writer),
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
    for writer in writers:
        if lost := writer.get("lost_records", {}).get("text"):
            out.print(plain(f"{writer['writer']}: {lost}"))
    for each in hidden:
        out.print(plain(str(each)))
    out.print(plain(f"{run} is {_verdict(writers, damaged, bool(hidden))}"))


def _state(writer: dict[str, Any]) -> str:
    return (
        state_text(writer["state"], writer["lost_records"]["in_order"])
        if "state" in writer
        else "?"
    )


def _verdict(writers: list[dict[str, Any]], damaged: bool, is_hidden: bool) -> str:
    if damaged:
        return "DAMAGED"
    if is_hidden:
        return (
            "INCOMPLETE: every byte is sound, but several trainings wrote to it at "
            "the same time"
        )
    problems = [problem for writer in writers for problem in writer["problems"]]
    if any(problem["kind"] == UNKNOWN_END for problem in problems):
        return "sound so far, but its end is unknown"
    if not all(writer["lost_records"]["in_order"] for writer in writers):
        return "sound, but some records could not be written"
    return "sound"
