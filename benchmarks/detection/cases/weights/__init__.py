"""Mistakes that show in the weights."""

from __future__ import annotations
