"""``smdebug.pytorch.singleton_utils``: the hook of the process."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from tdbg.compat.smdebug.core.singleton_utils import current_hook, del_hook, set_hook

if TYPE_CHECKING:
    from tdbg.compat.smdebug.pytorch.hook import Hook

__all__ = ["del_hook", "get_hook", "set_hook"]

_OFF = {"0", "false", "off", "no"}
_log = logging.getLogger("tdbg")


def get_hook(
    json_config_path: str | os.PathLike[str] | None = None,
    create_if_not_exists: bool = False,
) -> Hook | None:
    """The hook of the process.

    Args:
        json_config_path: A configuration to make it from; None: the file that
            ``SMDEBUG_CONFIG_FILE_PATH`` names.
        create_if_not_exists: Make one if there is none and the file exists.

    Returns:
        The hook; None if there is none, or ``USE_SMDEBUG=0`` switches it off.
    """
    from tdbg.compat.smdebug.pytorch.hook import Hook

    if os.environ.get("USE_SMDEBUG", "").strip().lower() in _OFF:
        return None
    found = current_hook()
    if isinstance(found, Hook):
        return found
    if not create_if_not_exists:
        return None
    try:
        return Hook.create_from_json_file(json_config_path)
    except FileNotFoundError as error:
        _log.info("no hook was made: %s", error)
        return None
