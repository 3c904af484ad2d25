"""Callbacks for the frameworks around PyTorch, a file each, loaded when imported."""

from __future__ import annotations
