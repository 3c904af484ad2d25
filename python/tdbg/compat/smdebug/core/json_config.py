"""``smdebug.core.json_config``: where scripts import its variable's name from."""

from __future__ import annotations

from tdbg.compat.smdebug.core.config_constants import (
    CONFIG_FILE_PATH_ENV_STR,
    DEFAULT_CONFIG_FILE_PATH,
    DEFAULT_WORKER_NAME,
)

__all__ = [
    "CONFIG_FILE_PATH_ENV_STR",
    "DEFAULT_CONFIG_FILE_PATH",
    "DEFAULT_WORKER_NAME",
]
