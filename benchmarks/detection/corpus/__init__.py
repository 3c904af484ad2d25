"""Sick and healthy trainings, and what is needed to write them.

Nothing here imports tdbg: what is sick, and since when, is decided without it.
"""

from __future__ import annotations
