"""Mistakes that a run by itself does not show."""

from __future__ import annotations
