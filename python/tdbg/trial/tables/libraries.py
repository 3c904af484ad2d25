"""Libraries that are imported when somebody asks for their tables.

Thread safety: functions.
"""

from __future__ import annotations

import importlib
from typing import Any

from tdbg.errors import ConfigurationError

__all__ = ["library"]


def library(name: str, install: str) -> Any:
    """Return a module that tdbg does not require.

    Args:
        name: The module.
        install: What to install for it, as pip takes it.

    Raises:
        ConfigurationError: If it cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        msg = f"this needs {package} ({error}): pip install {install}"
        raise ConfigurationError(msg) from error
