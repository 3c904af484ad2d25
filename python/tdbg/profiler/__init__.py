"""The write side of a profile: where a training's time goes, and on what machine.

It stands on ``capture``, whose session writes its tables (``run/profile_tables.py``).
"""

from __future__ import annotations

from tdbg.profiler.profiler import Profiler

__all__ = ["Profiler"]
