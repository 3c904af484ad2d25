"""How hooks work inside what torch.compile makes."""

from __future__ import annotations
