"""Keeps the warnings of diverted functions at the lines that called these.

``torch.nn.functional`` warns with a ``stacklevel`` that counts frames up to the caller
of its function.  A function that is diverted has frames of tdbg between itself and its
caller, so that the warning would name a file of tdbg: while any is diverted, something
else stands for ``warnings`` in its module, which does not count these frames.

Thread safety: as of hooks/pytorch/functions/diverted.py.  Errors: none.
"""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from typing import Any

from torch.jit import _builtins

__all__ = ["WarnedLines"]

_NAME = "warnings"


class WarnedLines:
    """The frames of a diverted function, which are not counted.

    Args:
        namespace: That of the function's module.
        diverted: The code that it has while it is diverted.
        followed: What that calls, which calls the function.
    """

    def __init__(
        self, namespace: dict[str, Any], diverted: types.CodeType, followed: Any
    ) -> None:
        self._namespace, self._diverted = namespace, diverted
        _following.add(followed.__code__)

    def begin(self) -> None:
        """Count them no longer."""
        _diverted[id(self._diverted)] = self._diverted
        if self._namespace.get(_NAME) is warnings:
            self._namespace[_NAME] = _stand_in

    def end(self) -> None:
        """Count as ever, where no other function of the module is diverted."""
        _diverted.pop(id(self._diverted), None)
        if not _diverted and self._namespace.get(_NAME) is _stand_in:
            self._namespace[_NAME] = warnings


# By identity: to compare two codes takes their constants, which are what is called.
_diverted: dict[int, types.CodeType] = {}
# The code of what follows these, which all of them share.
_following: set[types.CodeType] = set()


def _warn(
    message: Any, category: Any = None, stacklevel: int = 1, *args: Any, **kwargs: Any
) -> None:
    """As ``warnings.warn``, for whom frames of diverted functions are none."""
    frame: types.FrameType | None = sys._getframe(1)
    n_frames = stacklevel + 1  # With this one.
    for _ in range(1, stacklevel):
        frame = None if frame is None else frame.f_back
        while frame is not None and (
            id(frame.f_code) in _diverted or frame.f_code in _following
        ):
            n_frames += 1
            frame = frame.f_back
    warnings.warn(message, category, n_frames, *args, **kwargs)


class _Warnings(types.ModuleType):
    def __init__(self) -> None:
        super().__init__(_NAME, warnings.__doc__)
        self.warn = _warn

    def __getattr__(self, name: str) -> Any:
        return getattr(warnings, name)


_stand_in = _Warnings()
with contextlib.suppress(Exception):
    # ``torch.jit.script`` reads the source of these functions, and knows what warns.
    _builtins._register_builtin(_warn, "aten::warn")
