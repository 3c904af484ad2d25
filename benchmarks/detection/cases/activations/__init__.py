"""Mistakes that show in what layers put out."""

from __future__ import annotations
