"""One browser for all tests of the dashboard, and runs opened in it."""

from __future__ import annotations

from browser import browser
from screens import show

__all__ = ["browser", "show"]
