"""The hook of a process, which ``get_hook`` of its framework returns."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from tdbg.config import names_file, names_run
from tdbg.config.options import is_disabled
from tdbg.errors import ConfigurationError

if TYPE_CHECKING:
    from tdbg.capture.hook_base import HookBase

__all__ = ["ProcessHook"]

_H = TypeVar("_H", bound="HookBase")


class ProcessHook(Generic[_H]):
    """The hook of this process; its methods are public functions of a framework.

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

    def set_hook(self, custom_hook: _H) -> None:
        """Make this hook the one of this process, and keep it alive.

        Raises:
            ConfigurationError: If it is no hook of the framework.
        """
        given: object = custom_hook
        if not isinstance(given, self._kind):
            msg = f"set_hook needs a Hook, not {given!r}"
            raise ConfigurationError(msg)
        self._find = os.getpid(), lambda: custom_hook

    def del_hook(self) -> None:
        """Forget the hook of this process; it is not closed, if others hold it."""
        self._find = None

    def current(self) -> _H | None:
        """The hook of this process, or None; never that of a parent process."""
        find = self._find
        return find[1]() if find is not None and find[0] == os.getpid() else None

    def get_hook(
        self,
        json_config_path: str | os.PathLike[str] | None = None,
        create_if_not_exists: bool = False,
    ) -> _H | None:
        """The hook of this process: the one that was made or set last.

        Args:
            json_config_path: A file to make it from, as of ``Hook.create_from_file``.
            create_if_not_exists: Make one if there is none, or only a closed one.
                Without a file and without a variable that says anything
                (``TDBG_CONFIG``, ``SMDEBUG_CONFIG_FILE_PATH``, ``TDBG_OUT``) there is
                still none.

        Raises:
            ConfigurationError: If it is made, from what can never work.
            StorageError: If it is made, and the run cannot be.
        """
        found = self.current()
        if not create_if_not_exists or not (found is None or found.is_closed):
            return found
        if json_config_path is not None or names_file():
            found = self._kind.create_from_file(json_config_path)
        elif is_disabled() or names_run():
            found = self._kind()
        else:
            return None
        self.set_hook(found)
        return found
