"""Tells apart the places of a program from which one thing is called.

One loss module may serve several purposes, as in a GAN: what is called from another
line is a loss of its own.  Places are numbered mode by mode, in the order of their
first calls, so that the loss of training and that of evaluation have the same number.

Thread safety: the training's thread.
"""

from __future__ import annotations

import types
from collections.abc import Callable

from tdbg.modes import ModeKeys

__all__ = ["CallSites"]

# Further places count as the last one.
_MOST = 8
# A place is the line of a call, and that of the call of its function: a method of the
# author's own may pass all on to the same loss.
_FRAMES = 2
_LIBRARIES = ("torch.", "tdbg.")


class CallSites:
    """The places from which something was called so far.

    Args:
        mode: Returns the present mode.
    """

    def __init__(self, mode: Callable[[], ModeKeys]) -> None:
        self._mode = mode
        self._known: dict[ModeKeys, list[list[tuple[types.CodeType, int]]]] = {}

    def number(self, frame: types.FrameType | None) -> int:
        """Return the number of the place of the present call, from 0 on.

        Args:
            frame: One of the call; that of the author's code is behind it.
        """
        site: list[tuple[types.CodeType, int]] = []
        while frame is not None and len(site) < _FRAMES:
            if not _is_of_library(frame):
                site.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        known = self._known.setdefault(self._mode(), [])
        if site in known:
            return known.index(site)
        if len(known) < _MOST:
            known.append(site)
        return len(known) - 1


def _is_of_library(frame: types.FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.startswith(_LIBRARIES)
