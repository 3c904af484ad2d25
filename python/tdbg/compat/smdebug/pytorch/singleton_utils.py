"""``smdebug.pytorch.singleton_utils``: the hook of the process."""

from __future__ import annotations

import os

from tdbg.compat.smdebug.core.singleton_utils import current_hook, del_hook, set_hook
from tdbg.compat.smdebug.pytorch.hook import Hook

__all__ = ["del_hook", "get_hook", "set_hook"]

_OFF = {"0", "false", "off", "no"}


def get_hook() -> Hook | None:
    """The hook of the process.

    Returns:
        The hook; None if there is none, or ``USE_SMDEBUG=0`` switches it off.
    """
    if os.environ.get("USE_SMDEBUG", "").strip().lower() in _OFF:
        return None
    found = current_hook()
    return found if isinstance(found, Hook) else None
