"""Models of PyTorch: their modules, kinds and modes, and the hooks on them."""

from __future__ import annotations
