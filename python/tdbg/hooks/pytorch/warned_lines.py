"""Keeps the warnings of diverted functions at the lines that called these.

``torch.nn.functional`` warns with a ``stacklevel`` that counts frames up to the caller
of its function.  A function that is diverted has frames of tdbg between itself and its
caller, so that the warning would name a file of tdbg: while any is diverted, something
else stands for ``warnings`` in its module, which does not count these frames.

Thread safety: as of hooks/pytorch/diverted.py.  Errors: none.
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
    """The frames that are not counted, and the module in which they are not.

    Args:
        namespace: The module's.
        codes: Of the frames between a diverted function and its caller.
    """

    def __init__(
        self, namespace: dict[str, Any], codes: tuple[types.CodeType, ...]
    ) -> None:
        self._namespace, self._codes = namespace, codes

    def begin(self) -> None:
        """Count them no longer."""
        _between.update((id(code), code) for code in self._codes)
        if self._namespace.get(_NAME) is warnings:
            self._namespace[_NAME] = _stand_in

    def end(self) -> None:
        """Count as ever, where no other function of the module is diverted."""
        for code in self._codes:
            _between.pop(id(code), None)
        if not _between and self._namespace.get(_NAME) is _stand_in:
            self._namespace[_NAME] = warnings


# By identity: to compare two codes takes their constants, which are what is called.
_between: dict[int, types.CodeType] = {}


def _warn(
    message: Any, category: Any = None, stacklevel: int = 1, *args: Any, **kwargs: Any
) -> None:
    """As ``warnings.warn``, for whom frames of diverted functions are none."""
    frame: types.FrameType | None = sys._getframe(1)
    n_frames = stacklevel + 1  # With this one.
    for _ in range(1, stacklevel):
        frame = None if frame is None else frame.f_back
        while frame is not None and id(frame.f_code) in _between:
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
