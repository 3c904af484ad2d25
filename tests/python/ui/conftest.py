"""One browser for all tests of the dashboard, runs opened in it, and a server of S3."""

from __future__ import annotations

from browser import browser
from moto_proxy import moto_port, proxy
from screens import show

__all__ = ["browser", "moto_port", "proxy", "show"]
