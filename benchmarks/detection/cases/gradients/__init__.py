"""Mistakes that show in the gradients."""

from __future__ import annotations
