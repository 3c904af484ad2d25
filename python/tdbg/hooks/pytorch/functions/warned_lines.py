"""Keep warnings of diverted functions at the lines of their callers.

``torch.nn.functional`` warns with a ``stacklevel`` that counts frames up to the caller
of its function.  Between a diverted function and its caller lie frames of tdbg, and the
warning would name a file of tdbg.  While a function is diverted, a stand-in for
``warnings`` in its module skips these frames.

Thread safety: see hooks/pytorch/functions/diverted.py.  Errors: none.
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
    """The frames of a diverted function, which warnings skip.

    Args:
        namespace: The globals of the function's module.
        diverted: The code of the function while it is diverted.
        followed: The function that this code calls, and which calls the original.
    """

    def __init__(
        self, namespace: dict[str, Any], diverted: types.CodeType, followed: Any
    ) -> None:
        self._namespace, self._diverted = namespace, diverted
        _following.add(followed.__code__)

    def begin(self) -> None:
        """Skip these frames."""
        _diverted[id(self._diverted)] = self._diverted
        if self._namespace.get(_NAME) is warnings:
            self._namespace[_NAME] = _stand_in

    def end(self) -> None:
        """Count frames as before, if no other function is diverted."""
        _diverted.pop(id(self._diverted), None)
        if not _diverted and self._namespace.get(_NAME) is _stand_in:
            self._namespace[_NAME] = warnings


# By identity: equality of codes would compare the functions among their constants.
_diverted: dict[int, types.CodeType] = {}
# The code of the functions that they call.
_following: set[types.CodeType] = set()


def _warn(
    message: Any, category: Any = None, stacklevel: int = 1, *args: Any, **kwargs: Any
) -> None:
    """Warn like ``warnings.warn``, without counting frames of diverted functions."""
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
    # ``torch.jit.script`` reads the source of these functions; it must know `_warn`.
    _builtins._register_builtin(_warn, "aten::warn")
