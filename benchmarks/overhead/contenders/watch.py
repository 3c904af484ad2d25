"""``watch`` as it is by default."""

from __future__ import annotations

from torch import nn

from tdbg.pytorch import Hook
from tdbg.pytorch import watch as watch_training


def attach(model: nn.Module, criterion: nn.Module, directory: str) -> Hook:
    """The defaults."""
    return watch_training(model, criterion, out=f"{directory}/run", min_free_bytes=0)
