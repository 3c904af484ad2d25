"""Keys that are pressed in a terminal, one at a time."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Self

__all__ = ["Keys"]

# What terminals send for keys that are no characters (ECMA-48; xterm's and VT100's).
_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[C": "right",
    b"\x1bOC": "right",
    b"\x1b[D": "left",
    b"\x1bOD": "left",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\t": "tab",
    b"\x03": "q",
}
# How long the rest of a sequence may take to arrive over a slow line.
_SEQUENCE_SECONDS = 0.05


class Keys:
    """Reads keys of standard input while the block lasts; they are not echoed.

    Output is not changed; Ctrl-C still interrupts.
    """

    def __init__(self) -> None:
        self._file = sys.stdin.fileno()
        self._before: list[object] | None = None

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._file)
        tty.setcbreak(self._file)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]

    def read(self, seconds: float) -> str | None:
        """Wait that long for a key: a character or a name; None: none was pressed.

        An end of the input is ``q``.
        """
        if not self._is_ready(seconds):
            return None
        found = os.read(self._file, 1)
        if not found:
            return "q"
        deadline = time.monotonic() + _SEQUENCE_SECONDS
        while found.startswith(b"\x1b") and not _is_whole(found):
            if not self._is_ready(max(0.0, deadline - time.monotonic())):
                break
            found += os.read(self._file, 1)
        return _SEQUENCES.get(found, found.decode("utf-8", "replace"))

    def _is_ready(self, seconds: float) -> bool:
        return bool(select.select([self._file], [], [], seconds)[0])


def _is_whole(sequence: bytes) -> bool:
    """Whether an escape sequence has ended: ``ESC [`` parameters and a final byte."""
    return len(sequence) > 2 and sequence[-1:] not in b"0123456789;"
