"""The same at every tenth step, which is the default."""

from __future__ import annotations

from torch import nn

from tdbg.pytorch import Hook, ReductionConfig, SaveConfig


def attach(model: nn.Module, criterion: nn.Module, directory: str) -> Hook:
    """Everything, no raw values."""
    hook = Hook(
        f"{directory}/run",
        save_all=True,
        save_config=SaveConfig(statistics_interval=10),
        reduction_config=ReductionConfig(),
        min_free_bytes=0,
    )
    hook.register_module(model)
    hook.register_loss(criterion)
    return hook
