"""Faces that other libraries' users know."""

from __future__ import annotations
