"""``smdebug.profiler.analysis``: what a profile says."""

from __future__ import annotations
