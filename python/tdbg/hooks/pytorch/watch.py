"""``watch``: capture everything that rules need, in one call."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tdbg.config import ProfilerConfig, resolve
from tdbg.config.options import AUTO
from tdbg.config.retention import Retention
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
    retention: Retention | Mapping[str, Any] | str | None = None,
    save_histogram: bool | None = None,
    precise: bool | None = None,
    threads: int | None = None,
    budget: float | str | None = None,
    probes: bool | None = None,
    include_workers: str | Iterable[int] | None = None,
    profiler: ProfilerConfig | bool | str | None = None,
) -> Hook:
    """Capture the statistics of a training, and raw values only where rules need them.

    tdbg captures weights, biases, gradients and the outputs of all modules at every
    tenth step, losses at every step, and the numbers of the optimizer's groups
    (learning rate, ...) when they change, along with everything that your rules need.
    The file that ``TDBG_CONFIG`` names can override this.

    Args:
        model: The model that you train.
        criterion: Its loss, a module. You need not pass a loss of PyTorch. Register a
            function of your own with the hook, and use the one that it returns.
        optimizer: The optimizer whose steps count; only needed if there are several.
        out: The run directory. None takes the variable ``TDBG_OUT``, or else a
            directory in ``runs/`` named by the time.
        name: Stands before all names of the model, as in ``Hook.register_module``.
        rules: As in ``Hook``. None takes those of the variable ``TDBG_RULES``, or the
            default rules.
        save_config: Schedules to use instead.  Those that have a ``save_interval`` or
            ``save_steps`` save raw values, too.
        on_stop: As in ``Hook``.
        overflow: As in ``Hook``.
        min_free_bytes: As in ``Hook``.
        retention: As in ``Hook``.
        save_histogram: As in ``Hook``.
        precise: As in ``Hook``.
        threads: As in ``Hook``.
        budget: As in ``Hook``. None means ``"auto"``: 5 % over the first minute and
            from then on, including the first steps that rules need.
        probes: As in ``Hook``.
        include_workers: As in ``Hook``.
        profiler: As in ``Hook``.

    Returns:
        The hook. It ends with the process, unless you close it before.

    Raises:
        ConfigurationError: If an argument can never work.
        StorageError: If the run cannot be created or written.
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
        "retention": retention,
        "save_histogram": save_histogram,
        "precise": precise,
        "threads": threads,
        "budget": budget,
        "probes": probes,
        "include_workers": include_workers,
        "profiler": profiler,
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
    """Return the defaults of ``watch``."""
    time = dt.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    from tdbg.rules import default_rules

    return {
        "out_dir": Path("runs") / same_on_all("watch", time),
        "include_collections": _WATCHED,
        "reduction_config": ReductionConfig(save_raw_tensor=None),
        "rules": default_rules(),
        "budget": AUTO,
    }
