"""``smdebug.analysis``."""

from __future__ import annotations
