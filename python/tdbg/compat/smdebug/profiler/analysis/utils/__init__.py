"""``smdebug.profiler.analysis.utils``: its modules are those one level above."""

from __future__ import annotations
