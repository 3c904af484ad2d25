"""Calls of functions of PyTorch by a training, and the places of these calls."""

from __future__ import annotations
