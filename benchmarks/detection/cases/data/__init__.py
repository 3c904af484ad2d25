"""Mistakes in the data."""

from __future__ import annotations
