"""Checks and measurements on a machine with a GPU: ``make gpu-check``."""

from __future__ import annotations
