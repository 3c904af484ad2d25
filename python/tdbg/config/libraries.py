"""Libraries that tdbg does not require, imported where somebody asks for them.

Thread safety: functions.
"""

from __future__ import annotations

import importlib
from typing import Any

from tdbg.errors import ConfigurationError

__all__ = ["library"]


def library(name: str, install: str, what: str = "this") -> Any:
    """Return a module that tdbg does not require.

    Args:
        name: The module.
        install: What to install for it, as pip takes it.
        what: What needs it, as the subject of the message.

    Raises:
        ConfigurationError: If it cannot be imported.

    Example:
        library("pyarrow.parquet", "'tdbg[export]'", "Parquet")
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        msg = f"{what} needs {package} ({error}): pip install {install}"
        raise ConfigurationError(msg) from error
