"""Output of the verbs: tables for people, JSON for programs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tdbg.config.messages import printable

__all__ = [
    "EXIT_FAILED",
    "EXIT_FOUND",
    "EXIT_INTERRUPTED",
    "EXIT_UNREADABLE",
    "console",
    "discard_output",
    "emit_json",
    "emit_json_line",
    "flush",
    "n_bytes",
    "number",
    "plain",
    "print_table",
    "shape",
    "shortened",
    "table",
]

EXIT_FOUND = 1
EXIT_UNREADABLE = 3
EXIT_FAILED = 4
EXIT_INTERRUPTED = 130

# Wider than any line.
UNBOUNDED = 10_000
SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


class _Console(Console):
    """A console whose reader may close the pipe without effect on the verb.

    What no terminal shows has no spaces at the ends of lines.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as printed:
            super().print(*objects, **options)
        lines = printed.get().split("\n")
        try:
            self.file.write("\n".join(line.rstrip(" ") for line in lines))
            self.file.flush()  # Whoever reads it sees what happens as it happens.
        except BrokenPipeError:
            discard_output()

    def on_broken_pipe(self) -> None:
        discard_output()


def discard_output() -> None:
    """Discard all further output: its reader (head, less) has closed the pipe."""
    with contextlib.suppress(OSError, ValueError):  # No file, as in a test.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def flush() -> None:
    """Flush standard output, unless its reader has closed it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def console(*, stderr: bool = False) -> Console:
    """Make the console for people.

    A terminal cuts what is too wide for it; a file or another program gets all of it.
    """
    out = _Console(stderr=stderr, highlight=False)
    if not out.is_terminal:
        out.width = UNBOUNDED
    return out


def plain(text: str) -> Text:
    """Make *text* safe to print: no markup, no control characters.

    Names of tensors and messages of rules come from files, which may hold anything.
    """
    return Text(printable(text))


# Width of a column of sentences in a narrow terminal.
LEAST_SENTENCE = 24


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Collection[str] = (),
    last_wraps: bool = False,
) -> Table:
    """Make a table without lines; the columns in *right* hold numbers.

    Where the screen is too narrow the first column gives way, in the middle of what it
    holds: the ends of names tell them apart.  No number is cut.

    Args:
        columns: The heads of the columns.
        rows: The cells of each row.
        right: Columns of numbers.
        last_wraps: Whether the last column holds sentences, which go on in further
            lines where the screen is too narrow.
    """
    cells = [[plain(c) if isinstance(c, str) else c for c in row] for row in rows]
    result = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        widest = max((cell_len(row[i].plain) for row in cells), default=0)
        wraps = last_wraps and i == len(columns) - 1
        if wraps:
            widest = min(widest, LEAST_SENTENCE)
        result.add_column(
            column,
            justify="right" if column in right else "left",
            min_width=max(widest, len(column)) if i else 8,
            # Only what may wrap gives way; names do not wrap all the same.
            no_wrap=i > 0 and not wraps,
        )
    for first, *others in cells:
        result.add_row(_Name(first.plain), *others)
    return result


@dataclass(frozen=True, slots=True)
class _Name:
    """A name that is shortened in the middle where the screen is too narrow."""

    text: str

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shortened(self.text, options.max_width), no_wrap=True)

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        width = cell_len(self.text)
        return Measurement(min(8, width), width).with_maximum(options.max_width)


def shortened(text: str, width: int) -> str:
    """Shorten a text in the middle to at most *width* cells.

    >>> shortened("encoder.layers.0.self_attn.in_proj_weight", 24)
    'encoder…f_attn.in_proj_weight'
    """
    if cell_len(text) <= width:
        return text
    head, tail = set_cell_size(text, (width - 1) // 3).rstrip(), text
    while cell_len(tail) > width - 1 - cell_len(head):
        tail = tail[1:]
    return f"{head}\N{HORIZONTAL ELLIPSIS}{tail}"


# Rich measures and wraps every cell: of so many rows that is no table any more.
MANY_ROWS = 1000


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    out: Console,
    *,
    right: Collection[str] = (),
) -> None:
    """Print what ``table`` makes; of very many rows as quickly as they can be put."""
    if len(rows) <= MANY_ROWS:
        out.print(table(columns, rows, right=right))
        return
    cells = [columns, *([_printable(cell) for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    others = sum(width + 2 for width in widths[1:])
    widths[0] = max(8, min(widths[0], out.width - others - 2))
    for row in cells:
        fitted = [shortened(row[0], widths[0]), *row[1:]]
        line = "  ".join(
            " " * (width - cell_len(cell)) + cell
            if column in right
            else cell + " " * (width - cell_len(cell))
            for column, cell, width in zip(columns, fitted, widths, strict=True)
        )
        _write(line.rstrip())


def _printable(text: str) -> str:
    return text if text.isprintable() else printable(text)


def number(value: float) -> str:
    """Write a number in at most three significant digits: 0.0123, -4.5e-09."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}"


def n_bytes(n: float) -> str:
    """Write a number of bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


def shape(extents: tuple[int, ...]) -> str:
    """Write a shape as 32x1x3x3; that of a scalar is empty."""
    return "x".join(str(extent) for extent in extents)


def emit_json(document: Any) -> None:
    """Print one indented JSON document."""
    _write(json.dumps(_encodable(document), indent=2))


def emit_json_line(document: Any) -> None:
    """Print one JSON document on a line of its own, at once."""
    _write(json.dumps(_encodable(document)))
    flush()


def _write(line: str) -> None:
    try:
        sys.stdout.write(f"{line}\n")
    except BrokenPipeError:
        discard_output()


def _encodable(value: Any) -> Any:
    """Make *value* valid JSON: NaN and infinities become strings."""
    if isinstance(value, dict):
        return {str(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    if hasattr(value, "item"):  # A NumPy scalar.
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
