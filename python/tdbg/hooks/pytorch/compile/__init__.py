"""Hooks inside and beside the graphs of ``torch.compile``."""

from __future__ import annotations
