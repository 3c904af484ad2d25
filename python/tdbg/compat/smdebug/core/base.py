"""Small modules of ``smdebug.core``: modes, the hook of a process, the logger."""

from __future__ import annotations

import logging

from tdbg.compat.smdebug.exceptions import SMDebugTypeError, SMDebugValueError
from tdbg.modes import ModeKeys

__all__ = [
    "ALLOWED_MODES",
    "ALLOWED_MODE_NAMES",
    "BaseHook",
    "CallbackHook",
    "ModeKeys",
    "current_hook",
    "del_hook",
    "get_logger",
    "set_hook",
    "str_to_mode_keys",
]

ALLOWED_MODES = list(ModeKeys)
ALLOWED_MODE_NAMES = [mode.name for mode in ModeKeys]


def str_to_mode_keys(mode_str: str) -> ModeKeys:
    """The mode of that name, in any case.

    Raises:
        SMDebugValueError: If there is no such mode.
    """
    try:
        return ModeKeys[mode_str.upper()]
    except (AttributeError, KeyError):
        msg = f"{mode_str!r} is no mode: use one of {', '.join(ALLOWED_MODE_NAMES)}"
        raise SMDebugValueError(msg) from None


class BaseHook:
    """The hook of any framework.

    Attributes:
        out_dir: The run directory.
    """

    out_dir: str = ""

    def flush(self, *, durable: bool = False, timeout: float = 30.0) -> None:
        """Wait until everything recorded so far can be read."""


class CallbackHook(BaseHook):
    """A hook that its framework calls."""

    INPUT_TENSOR_SUFFIX = "_input_"
    OUTPUT_TENSOR_SUFFIX = "_output_"
    GRADIENT_PREFIX = "gradient/"
    SCALAR_PREFIX = "scalar/"


_hooks: list[BaseHook] = []  # At most one.


def current_hook() -> BaseHook | None:
    """The hook of the process, or None."""
    return _hooks[0] if _hooks else None


def set_hook(custom_hook: BaseHook) -> None:
    """Make this the hook of the process.

    Raises:
        SMDebugTypeError: If *custom_hook* is no hook.
    """
    given: object = custom_hook
    if not isinstance(given, BaseHook):
        msg = f"expected a hook, not {given!r}"
        raise SMDebugTypeError(msg)
    _hooks[:] = [given]


def del_hook() -> None:
    """Forget the hook of the process."""
    _hooks.clear()


def get_logger(name: str = "smdebug") -> logging.Logger:
    """The logger of that name below ``tdbg``; tdbg does not configure it."""
    return logging.getLogger(f"tdbg.{name}")
