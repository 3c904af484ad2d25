"""A hook as it is by default: losses, and nothing else."""

from __future__ import annotations

from torch import nn

from tdbg.pytorch import Hook


def attach(model: nn.Module, criterion: nn.Module, directory: str) -> Hook:
    """The defaults."""
    hook = Hook(f"{directory}/run", min_free_bytes=0)
    hook.register_module(model)
    hook.register_loss(criterion)
    return hook
