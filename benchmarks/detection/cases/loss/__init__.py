"""Mistakes that show in the loss."""

from __future__ import annotations
