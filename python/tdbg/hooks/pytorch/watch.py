"""``watch``: everything that rules need, in one call."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tdbg.config import resolve
from tdbg.config.options import AUTO
from tdbg.config.schedules import ReductionConfig, SaveConfig
from tdbg.errors import ConfigurationError
from tdbg.hooks.pytorch.device.distributed import same_on_all
from tdbg.hooks.pytorch.hook import Hook

if TYPE_CHECKING:
    from tdbg.rules import Rule

__all__ = ["watch"]

_WATCHED = ("weights", "biases", "gradients", "losses", "outputs", "scalars")


def watch(
    model: nn.Module,
    criterion: Callable[..., Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    rules: Iterable[str | Rule | Mapping[str, Any]] | str | None = None,
    save_config: SaveConfig | None = None,
    on_stop: str | None = None,
    overflow: str | None = None,
    min_free_bytes: int | None = None,
    save_histogram: bool | None = None,
    precise: bool | None = None,
    threads: int | None = None,
    budget: float | str | None = None,
    include_workers: str | Iterable[int] | None = None,
) -> Hook:
    """Capture the statistics of a training, and raw values only of what rules need.

    Those of weights, biases, gradients and the outputs of all modules at every
    tenth step, those of losses at every step, the numbers of the optimizer's groups
    (learning rate, ...) when they change, and what rules need; unless the file that
    ``TDBG_CONFIG`` names says otherwise.

    Args:
        model: Trained.
        criterion: Its loss, a module. Losses of PyTorch need not be given; a function
            of your own must be registered with the hook, which returns one to use in
            its place.
        optimizer: The one whose steps are counted; only needed if there are several.
        out: The run directory; None: that of the variable ``TDBG_OUT``, or one in
            ``runs/`` named by the time.
        name: What stands before all its names, as of ``Hook.register_module``; None:
            nothing does.
        rules: As of ``Hook``; None: those of the variable ``TDBG_RULES``, or the
            default ones.
        save_config: Other schedules.
        on_stop: As of ``Hook``.
        overflow: As of ``Hook``.
        min_free_bytes: As of ``Hook``.
        save_histogram: As of ``Hook``.
        precise: As of ``Hook``.
        threads: As of ``Hook``.
        budget: As of ``Hook``; None: ``"auto"``, 5 % over the first minute and from
            then on, the beginning that rules need included.
        include_workers: As of ``Hook``.

    Returns:
        The hook; it ends with the process, unless it is closed before.

    Raises:
        ConfigurationError: If something asked for can never work.
        StorageError: If the run cannot be made or written.
    """
    if criterion is not None and not isinstance(criterion, nn.Module):
        msg = (
            "watch can only hook a criterion that is a module; use "
            "criterion = hook.register_loss(criterion)"
        )
        raise ConfigurationError(msg)
    given = {
        "out_dir": out,
        "rules": rules,
        "save_config": save_config,
        "on_stop": on_stop,
        "overflow": overflow,
        "min_free_bytes": min_free_bytes,
        "save_histogram": save_histogram,
        "precise": precise,
        "threads": threads,
        "budget": budget,
        "include_workers": include_workers,
    }
    hook = Hook._made(lambda: resolve(given, _of_watch()))
    hook.register_module(model, name=name)
    hook._follow_losses()
    if criterion is not None:
        hook.register_loss(criterion)
    if optimizer is not None:
        hook.register_optimizer(optimizer, defines_step=True)
    return hook


def _of_watch() -> dict[str, Any]:
    """What holds for ``watch`` where nothing else is said."""
    time = dt.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    from tdbg.rules import default_rules

    return {
        "out_dir": Path("runs") / same_on_all("watch", time),
        "include_collections": _WATCHED,
        "reduction_config": ReductionConfig(),
        "rules": default_rules(),
        "budget": AUTO,
    }
