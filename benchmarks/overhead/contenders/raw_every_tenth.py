"""Raw values and statistics of everything at every tenth step."""

from __future__ import annotations

from torch import nn

from tdbg.pytorch import Hook, SaveConfig


def attach(model: nn.Module, criterion: nn.Module, directory: str) -> Hook:
    """Everything."""
    hook = Hook(
        f"{directory}/run",
        save_all=True,
        save_config=SaveConfig(save_interval=10, statistics_interval=10),
        min_free_bytes=0,
    )
    hook.register_module(model)
    hook.register_loss(criterion)
    return hook
