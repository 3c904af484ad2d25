"""Tell apart the places of a program that call one function or module.

One loss module may serve several purposes, as in a GAN, so each line that calls it is
a loss of its own.  Places are numbered for each mode, in the order of their first
calls: the loss of training and that of evaluation have the same number.

Thread safety: the training's thread.
"""

from __future__ import annotations

import types
from collections.abc import Callable

from tdbg.modes import ModeKeys

__all__ = ["CallSites"]

# Further places count as the last one.
_MOST = 8
_OWN = ("torch.", "tdbg.")
# What calls a backward for its user.
TRAINERS = (
    *_OWN,
    "accelerate.",
    "lightning.",
    "lightning_fabric.",
    "pytorch_lightning.",
)


class CallSites:
    """The places that have called one thing so far.

    Args:
        mode: Returns the present mode.
        libraries: Whose code is not the author's.
    """

    def __init__(
        self, mode: Callable[[], ModeKeys], libraries: tuple[str, ...] = _OWN
    ) -> None:
        self._mode = mode
        self._libraries = libraries
        self._numbers: dict[tuple[types.CodeType, int], int] = {}
        self._n_of_mode: dict[ModeKeys, int] = {}

    def number(self, frame: types.FrameType | None) -> int:
        """Return the number of the place of the present call, from 0 on.

        Args:
            frame: One of the call; that of the author's code is behind it.
        """
        # Every loss of every step comes here: no calls of functions for a known place.
        while frame is not None:
            name = frame.f_globals.get("__name__")
            if name.__class__ is not str or not name.startswith(self._libraries):
                break
            frame = frame.f_back
        if frame is None:
            return 0
        site = frame.f_code, frame.f_lineno
        number = self._numbers.get(site)
        if number is None:
            mode = self._mode()
            number = self._n_of_mode.get(mode, 0)
            self._n_of_mode[mode] = min(number + 1, _MOST - 1)
            self._numbers[site] = number
        return number
