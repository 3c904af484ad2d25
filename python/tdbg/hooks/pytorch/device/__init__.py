"""Where the tensors of PyTorch lie, on devices and on ranks, and reading them there."""

from __future__ import annotations
