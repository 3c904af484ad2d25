"""What a model of PyTorch is made of, and what tdbg registers on it."""

from __future__ import annotations
