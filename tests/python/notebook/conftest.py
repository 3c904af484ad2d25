"""A browser for the tests of this folder."""

from __future__ import annotations

from browser import browser

__all__ = ["browser"]
