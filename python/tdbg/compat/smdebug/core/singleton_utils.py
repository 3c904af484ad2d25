"""``smdebug.core.singleton_utils``: the hook of the process."""

from __future__ import annotations

from tdbg.compat.smdebug.core.hook import BaseHook
from tdbg.compat.smdebug.exceptions import SMDebugTypeError

__all__ = ["current_hook", "del_hook", "set_hook"]

_hooks: list[BaseHook] = []  # At most one.


def current_hook() -> BaseHook | None:
    """The hook of the process, if there is one."""
    return _hooks[0] if _hooks else None


def set_hook(custom_hook: BaseHook) -> None:
    """Make this the hook of the process.

    Raises:
        SMDebugTypeError: If it is no hook.
    """
    given: object = custom_hook
    if not isinstance(given, BaseHook):
        msg = f"expected a hook, not {given!r}"
        raise SMDebugTypeError(msg)
    _hooks[:] = [given]


def del_hook() -> None:
    """Forget the hook of the process."""
    _hooks.clear()
