"""``smdebug.core.modes``."""

from __future__ import annotations

from tdbg.compat.smdebug.exceptions import SMDebugValueError
from tdbg.modes import ModeKeys

__all__ = ["ALLOWED_MODES", "ALLOWED_MODE_NAMES", "ModeKeys", "str_to_mode_keys"]

ALLOWED_MODES = list(ModeKeys)
ALLOWED_MODE_NAMES = [mode.name for mode in ModeKeys]


def str_to_mode_keys(mode_str: str) -> ModeKeys:
    """The mode of a name in lower case.

    Raises:
        SMDebugValueError: If there is none.
    """
    try:
        return ModeKeys[mode_str.upper()]
    except (AttributeError, KeyError):
        msg = f"{mode_str!r} is no mode: use one of {', '.join(ALLOWED_MODE_NAMES)}"
        raise SMDebugValueError(msg) from None
