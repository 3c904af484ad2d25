"""Tells the user of errors of tdbg's own: the first, and the one that ends capture.

Thread safety: any thread.

Errors: none.
"""

from __future__ import annotations

import contextlib
import logging

__all__ = ["tell_fault"]

_log = logging.getLogger("tdbg")


def tell_fault(error: Exception, number: int, limit: int) -> None:
    """Log this error if it is the first, or the one after which nothing is captured.

    Args:
        error: It.
        number: Of the error, from 1.
        limit: After so many nothing is captured.
    """
    with contextlib.suppress(Exception):
        if number == 1:
            _log.warning(
                "tdbg met an error of its own; the training goes on", exc_info=error
            )
        if number == limit:
            _log.warning(
                "tdbg met %d errors of its own and captures nothing from now on", limit
            )
