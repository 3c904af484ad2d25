"""``smdebug.core.logger``: tdbg's logger, which leaves handlers to the program."""

from __future__ import annotations

import logging

__all__ = ["get_logger"]


def get_logger(name: str = "smdebug") -> logging.Logger:
    """The logger of that name below ``tdbg``; nothing about it is configured."""
    return logging.getLogger(f"tdbg.{name}")
