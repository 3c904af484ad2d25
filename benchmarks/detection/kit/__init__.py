"""What cases are written with: data, models, training loops, and predicates.

Nothing here imports tdbg: what is sick, and since when, is decided without it.
"""

from __future__ import annotations
