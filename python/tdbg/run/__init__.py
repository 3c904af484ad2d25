"""A run as both sides know it: its directory, requests, findings, and numbers on disk.

What writes a run and what reads it import this, and neither imports the other.
"""

from __future__ import annotations

from tdbg.run.requests import request_capture, request_stop

__all__ = ["request_capture", "request_stop"]
