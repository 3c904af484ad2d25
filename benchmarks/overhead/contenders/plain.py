"""Nothing: plain against plain."""

from __future__ import annotations

from torch import nn


def attach(model: nn.Module, criterion: nn.Module, directory: str) -> None:
    """Do nothing."""
