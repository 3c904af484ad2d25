"""tdbg for PyTorch: the hook and ``watch``.

    import tdbg.pytorch as td

    hook = td.Hook("runs/digits", include_collections=["weights", "gradients"])
    hook.register_module(model)
    hook.register_loss(criterion)

Implements docs/steps.md.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tdbg.capture.opening import SessionOptions
from tdbg.capture.overhead import Overhead
from tdbg.capture.policy import Policy
from tdbg.collections import Collection, CollectionKeys, CollectionRegistry
from tdbg.config import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.errors import ConfigurationError, TrainingStopped
from tdbg.hooks.pytorch.distributed import StoreBoard, launch, place
from tdbg.hooks.pytorch.hook import TorchHook
from tdbg.modes import ModeKeys, modes

if TYPE_CHECKING:
    from tdbg.rules import Rule
    from tdbg.trial import create_trial

__all__ = [
    "Collection",
    "CollectionKeys",
    "Hook",
    "ModeKeys",
    "Overhead",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "TrainingStopped",
    "create_trial",
    "modes",
    "watch",
]

_WATCHED = ("weights", "biases", "gradients", "losses", "outputs")


class Hook(TorchHook):
    """Captures a training; losses unless told otherwise.

    Args:
        out_dir: The run directory; made if it does not exist, joined if it does.
        include_collections: Built-in collections to capture beside the losses.
        include_regex: Further tensors, by expressions that their names match.
        save_config: The schedules.
        reduction_config: Statistics only, or raw values as well (the default).
        save_all: Capture every tensor.
        collections: Custom collections, or built-in ones with a configuration.
        rules: Rules, or their names, whose needs are captured as well.
        on_stop: When somebody asks for a stop: ``raise`` TrainingStopped at the
            next root forward, or ``flag`` it in ``should_stop``.
        overflow: When the disk is too slow: ``block`` while it makes progress,
            ``drop``, or ``sample``: keep the values of whole steps, of as many as
            the disk takes.
        queue_bytes: Bound of the memory for what is not written yet.
        min_free_bytes: Free disk space that is left to others.
        codec: How raw values are stored: "none", "auto" or "max".
        save_histogram: Store histograms wherever statistics are taken, of all
            collections that do not say otherwise.
        precise: Statistics of floats of up to 32 bits as exactly as those of
            float64.
        threads: That reduce one large tensor, at most; None: as many as PyTorch
            uses, up to 4.
        budget: Share of the training's time that capture may cost, such as 0.02;
            what is captured is reduced to stay inside. None: that of the variable
            ``TDBG_BUDGET``, or any.
        dry_run: Do everything but write.
        include_workers: Of several ranks, those that write: ``one``, the first;
            ``all``; or a list. The hooks of the others do nothing, except that the
            training stops on all ranks at the same step. docs/distributed.md.

    Raises:
        ConfigurationError: If something asked for can never work.
        StorageError: If the run cannot be made or written.
    """

    def __init__(
        self,
        out_dir: str | os.PathLike[str],
        *,
        include_collections: Iterable[str] | None = None,
        include_regex: str | Iterable[str] | None = None,
        save_config: SaveConfig
        | SaveConfigMode
        | Mapping[ModeKeys, SaveConfigMode]
        | None = None,
        reduction_config: ReductionConfig | None = None,
        save_all: bool = False,
        collections: Iterable[Collection] = (),
        rules: Iterable[str | Rule] = (),
        on_stop: str = "raise",
        overflow: str = "block",
        queue_bytes: int | None = None,
        min_free_bytes: int | None = None,
        codec: str = "auto",
        save_histogram: bool = False,
        precise: bool = False,
        threads: int | None = None,
        budget: float | None = None,
        dry_run: bool = False,
        include_workers: str | Sequence[int] = "one",
    ) -> None:
        def make_policy() -> Policy:
            return _policy(
                include_collections or (),
                include_regex,
                save_config,
                reduction_config,
                save_all,
                collections,
                rules,
                save_histogram,
            )

        def make_options() -> SessionOptions:
            rank, world_size = place()
            return SessionOptions(
                on_stop=on_stop,
                overflow=overflow,
                queue_bytes=queue_bytes,
                min_free_bytes=min_free_bytes,
                codec=codec,
                precise=precise,
                threads=_threads() if threads is None else threads,
                budget=budget,
                dry_run=dry_run,
                rank=rank,
                world_size=world_size,
                include_workers=include_workers,
                board=StoreBoard() if world_size > 1 else None,
                launch=launch(),
            )

        super().__init__(out_dir, make_policy, make_options)


def watch(
    model: nn.Module,
    criterion: Callable[..., Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    rules: Iterable[str | Rule] | None = None,
    save_config: SaveConfig | None = None,
    on_stop: str = "raise",
    overflow: str = "block",
    min_free_bytes: int | None = None,
    save_histogram: bool = False,
    precise: bool = False,
    threads: int | None = None,
    budget: float | None = None,
    include_workers: str | Sequence[int] = "one",
) -> Hook:
    """Capture the statistics of a training, and no raw values.

    Those of weights, biases, gradients and the outputs of all modules at every
    tenth step, those of losses at every step, and what rules need.

    Args:
        model: Trained.
        criterion: Its loss, a module. A function must be registered with the hook,
            which returns one to use in its place.
        optimizer: The one whose steps are counted; only needed if there are several.
        out: The run directory; None: one in ``runs/`` named by the time.
        rules: Rules, or their names, to capture for; None: the default ones.
        save_config: Other schedules.
        on_stop: As of ``Hook``.
        overflow: As of ``Hook``.
        min_free_bytes: As of ``Hook``.
        save_histogram: As of ``Hook``.
        precise: As of ``Hook``.
        threads: As of ``Hook``.
        budget: As of ``Hook``.
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
    if out is None:
        out = Path("runs") / dt.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    hook = Hook(
        out,
        include_collections=_WATCHED,
        save_config=save_config,
        reduction_config=ReductionConfig(),
        rules=_default_rules() if rules is None else rules,
        on_stop=on_stop,
        overflow=overflow,
        min_free_bytes=min_free_bytes,
        save_histogram=save_histogram,
        precise=precise,
        threads=threads,
        budget=budget,
        include_workers=include_workers,
    )
    hook.register_module(model)
    if criterion is not None:
        hook.register_loss(criterion)
    if optimizer is not None:
        hook.register_optimizer(optimizer, defines_step=True)
    return hook


def __getattr__(name: str) -> Any:
    """``create_trial`` is loaded when it is first used."""
    if name == "create_trial":
        from tdbg.trial import create_trial

        return create_trial
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def _policy(
    include_collections: Iterable[str],
    include_regex: str | Iterable[str] | None,
    save_config: object,
    reduction_config: ReductionConfig | None,
    save_all: bool,
    collections: Iterable[Collection],
    rules: Iterable[str | Rule],
    save_histogram: bool,
) -> Policy:
    registry = CollectionRegistry(include_collections, collections)
    registry.include(CollectionKeys.LOSSES.value)
    if include_regex is not None:
        registry.get(CollectionKeys.DEFAULT.value).include(include_regex)
        registry.include(CollectionKeys.DEFAULT.value)
    if save_all:
        registry.include(CollectionKeys.ALL.value)
    chosen: object = reduction_config
    if chosen is not None and not isinstance(chosen, ReductionConfig):
        msg = f"reduction_config must be a ReductionConfig, not {chosen!r}"
        raise ConfigurationError(msg)
    return Policy(
        registry,
        None if save_config is None else SaveConfig.parse(save_config),
        chosen,
        [rule.needs for rule in _resolve(rules)],
        save_histogram=_boolean("save_histogram", save_histogram),
    )


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        msg = f"{name} must be True or False, not {value!r}"
        raise ConfigurationError(msg)
    return value


def _threads() -> int:
    """As many as the training's own operations, but no more than gain."""
    return max(1, min(4, torch.get_num_threads()))


def _resolve(rules: Iterable[str | Rule]) -> Iterable[Rule]:
    if not isinstance(rules, str) and not (rules := list(rules)):
        return ()
    # Only where rules are asked for: a hook does not need them.
    from tdbg.rules import resolve

    return resolve(rules)


def _default_rules() -> Iterable[Rule]:
    from tdbg.rules import default_rules

    return default_rules()
