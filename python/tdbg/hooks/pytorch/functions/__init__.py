"""The functions of PyTorch that a training calls, and from where."""

from __future__ import annotations
