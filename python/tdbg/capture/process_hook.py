"""The hook of a process, which ``get_hook`` of its framework returns."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from tdbg.capture.hook_base import HookBase
from tdbg.config import names_file, names_run
from tdbg.config.options import is_disabled
from tdbg.errors import ConfigurationError

__all__ = ["ProcessHook"]

_H = TypeVar("_H", bound=HookBase)


class ProcessHook(Generic[_H]):
    """The hook of this process, which ``get_hook`` of a framework returns.

    Args:
        kind: The framework's class of hooks.

    Thread safety: a reference is replaced at once; the last one wins.
    """

    def __init__(self, kind: type[_H]) -> None:
        self._kind = kind
        self._find: tuple[int, Callable[[], _H | None]] | None = None

    def remember(self, hook: _H) -> None:
        """Make *hook* the hook of this process, without keeping it alive."""
        self._find = os.getpid(), weakref.ref(hook)

    def set(self, hook: _H) -> None:
        """Make *hook* the hook of this process, and keep it alive.

        Raises:
            ConfigurationError: If *hook* is no hook of the framework.
        """
        given: object = hook
        if not isinstance(given, self._kind):
            msg = f"set_hook needs a Hook, not {given!r}"
            raise ConfigurationError(msg)
        self._find = os.getpid(), lambda: hook

    def forget(self) -> None:
        """Forget the hook of this process, without closing it."""
        self._find = None

    def current(self) -> _H | None:
        """The hook of this process, or None; never that of a parent process."""
        find = self._find
        return find[1]() if find is not None and find[0] == os.getpid() else None

    def get(self, path: str | os.PathLike[str] | None, *, create: bool) -> _H | None:
        """The hook of this process; made if there is none, or only a closed one.

        Args:
            path: The file to make it from; see ``HookBase.create_from_file``.
            create: Whether to make a hook. It is made only if there is a file, or a
                variable that names the run or disables tdbg.

        Raises:
            ConfigurationError: If a setting of the new hook can never work.
            StorageError: If the run of the new hook cannot be made.
        """
        found = self.current()
        if not create or not (found is None or found.is_closed):
            return found
        if path is not None or names_file():
            found = self._kind.create_from_file(path)
        elif is_disabled() or names_run():
            found = self._kind()
        else:
            return None
        self.set(found)
        return found
