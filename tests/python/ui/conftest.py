"""One browser for all tests of the dashboard."""

from __future__ import annotations

from browser import browser

__all__ = ["browser"]
