"""Small modules of ``smdebug.core``: modes, the hook of a process, the logger."""

from __future__ import annotations

import logging
import os
from typing import Any

from tdbg.compat.smdebug.exceptions import SMDebugTypeError, SMDebugValueError
from tdbg.compat.smdebug.left_out import refuse
from tdbg.modes import ModeKeys

__all__ = [
    "ALLOWED_MODES",
    "ALLOWED_MODE_NAMES",
    "BaseHook",
    "CallbackHook",
    "ModeKeys",
    "current_hook",
    "del_hook",
    "get_hook",
    "get_logger",
    "set_hook",
    "str_to_mode_keys",
]

ALLOWED_MODES = list(ModeKeys)
ALLOWED_MODE_NAMES = [mode.name for mode in ModeKeys]


def str_to_mode_keys(mode_str: str) -> ModeKeys:
    """Return the mode of that name, in any case.

    Raises:
        SMDebugValueError: If there is no such mode.
    """
    try:
        return ModeKeys[mode_str.upper()]
    except (AttributeError, KeyError):
        msg = f"{mode_str!r} is not a mode: use one of {', '.join(ALLOWED_MODE_NAMES)}"
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
    """Return the hook of the process, or None."""
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


def get_hook(
    *,
    json_config_path: str | os.PathLike[str] | None,
    hook_class: Any,
    create_if_not_exists: bool,
) -> BaseHook | None:
    """Return the hook of the process if it is of this class, or a new one, or None.

    Args:
        json_config_path: The file that a hook is made from; None: the one that
            ``SMDEBUG_CONFIG_FILE_PATH`` names.
        hook_class: The class of the hook; None: any.
        create_if_not_exists: Whether to make a hook if there is none and the file
            exists.

    Raises:
        SMDebugValueError: If a hook is to be made of no class.
        SMDebugTypeError: If *hook_class* is no class of hooks.
        ConfigurationError: If a setting of the file can never work.
    """
    found = current_hook()
    if hook_class is None:
        if create_if_not_exists:
            msg = "hook_class is None: no hook can be made"
            raise SMDebugValueError(msg)
        return found
    if not (isinstance(hook_class, type) and issubclass(hook_class, BaseHook)):
        msg = f"hook_class must be a class of hooks, not {hook_class!r}"
        raise SMDebugTypeError(msg)
    if isinstance(found, hook_class) or not create_if_not_exists:
        return found if isinstance(found, hook_class) else None
    make: Any = hook_class
    try:
        made: BaseHook = make.create_from_json_file(json_config_path)
    except FileNotFoundError as error:
        get_logger().info("no hook was made: %s", error)
        return None
    set_hook(made)
    return made


def del_hook() -> None:
    """Forget the hook of the process."""
    _hooks.clear()


_LEVELS = {"debug", "info", "warning", "error", "critical"}


def get_logger(name: str = "smdebug") -> logging.Logger:
    """Return the logger of that name below ``tdbg``.

    ``SMDEBUG_LOG_LEVEL`` sets the level of ``tdbg``'s logger: debug, info, warning,
    error, critical, or off.  Handlers are those of the program.
    """
    level = os.environ.get("SMDEBUG_LOG_LEVEL", "").strip().lower()
    if level in _LEVELS:
        logging.getLogger("tdbg").setLevel(level.upper())
    elif level == "off":
        logging.getLogger("tdbg").setLevel(logging.CRITICAL + 1)
    return logging.getLogger(f"tdbg.{name}")


__getattr__ = refuse(__name__)
