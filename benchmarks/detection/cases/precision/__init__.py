"""Mistakes with numbers."""

from __future__ import annotations
