"""Tensors of PyTorch on devices and ranks: where they lie, and how to read them."""

from __future__ import annotations
