"""Which lines are the program's own: what a user can change.

Thread safety: any thread.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from types import FrameType

__all__ = ["calling_line", "innermost_of_program", "is_of_library"]

# Where packages lie, Python's own library, and tdbg where it is used from its sources.
_LIBRARY = re.compile(
    r"(?:/|\A)(?:site-packages|dist-packages)/|(?:/|\A)lib(?:64)?/python3\.\d+/"
    r"|/python/tdbg/|\A<frozen |\A<string>"
)


def is_of_library(place: str) -> bool:
    """Return whether a file, or a line in it, is not the program's.

    Example:
        >>> is_of_library("/opt/lib/python3.11/site-packages/torch/_ops.py:95 call")
        True
        >>> is_of_library("/home/ada/nets/train.py:36 main")
        False
    """
    return _LIBRARY.search(place) is not None


def innermost_of_program(stack: Sequence[str]) -> str:
    """Return the innermost call of the program; "" if there is none.

    Args:
        stack: Calls as ``file:line function``, the outermost first.
    """
    return next((each for each in reversed(stack) if not is_of_library(each)), "")


def calling_line() -> tuple[str, int]:
    """Return the file and the line of the program that this thread is at.

    Returns:
        An empty file if the program has no call on the stack.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
