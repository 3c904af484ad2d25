"""The hook of the process, as smdebug has it: ``get_hook`` and its kin."""

from __future__ import annotations

import os

from tdbg.capture.opening import is_disabled
from tdbg.errors import ConfigurationError
from tdbg.pytorch._hook import Hook, process_hook
from tdbg.settings import names_file, names_run

__all__ = ["del_hook", "get_hook", "set_hook"]


def get_hook(
    json_config_path: str | os.PathLike[str] | None = None,
    create_if_not_exists: bool = False,
) -> Hook | None:
    """The hook of this process: the one that was made or set last.

    Args:
        json_config_path: A file to make it from, as of ``Hook.create_from_file``.
        create_if_not_exists: Make one if there is none, or only a closed one. Without
            a file and without a variable that says anything (``TDBG_CONFIG``,
            ``SMDEBUG_CONFIG_FILE_PATH``, ``TDBG_OUT``) there is still none.

    Raises:
        ConfigurationError: If it is made, from what can never work.
        StorageError: If it is made, and the run cannot be.
    """
    found: Hook | None = process_hook.current()
    if not create_if_not_exists or not (found is None or found.is_closed):
        return found
    if json_config_path is not None or names_file():
        found = Hook.create_from_file(json_config_path)
    elif is_disabled() or names_run():
        found = Hook()
    else:
        return None
    process_hook.keep(found)
    return found


def set_hook(custom_hook: Hook) -> None:
    """Make this hook the one of this process.

    Raises:
        ConfigurationError: If it is none.
    """
    given: object = custom_hook
    if not isinstance(given, Hook):
        msg = f"set_hook needs a Hook, not {given!r}"
        raise ConfigurationError(msg)
    process_hook.keep(given)


def del_hook() -> None:
    """Forget the hook of this process; it is not closed, if others hold it."""
    process_hook.forget()
