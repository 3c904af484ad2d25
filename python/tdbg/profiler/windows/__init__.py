"""Windows: a few steps in which operators and functions are timed one by one.

Implements docs/profiler-windows.md.
"""

from __future__ import annotations

from tdbg.profiler.windows.controller import start
from tdbg.profiler.windows.engines import start_engines

__all__ = ["start", "start_engines"]
