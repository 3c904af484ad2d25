"""``smdebug.core``: where scripts import single classes from."""

from __future__ import annotations
