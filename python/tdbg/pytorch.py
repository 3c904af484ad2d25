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
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Self

import torch
from torch import nn

from tdbg.capture.opening import Opening, SessionOptions, is_disabled
from tdbg.capture.overhead import Overhead
from tdbg.collections import Collection, CollectionKeys
from tdbg.config import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.errors import ConfigurationError, TrainingStopped
from tdbg.hooks.pytorch.distributed import (
    StoreBoard,
    launch,
    place,
    same_on_all,
)
from tdbg.hooks.pytorch.hook import TorchHook
from tdbg.modes import ModeKeys, modes
from tdbg.settings import (
    CollectionConfig,
    HookConfig,
    names_file,
    names_run,
    read_config,
    resolve,
)
from tdbg.settings.current import Current

if TYPE_CHECKING:
    from tdbg.rules import Rule
    from tdbg.trial import create_trial

__all__ = [
    "Collection",
    "CollectionConfig",
    "CollectionKeys",
    "Hook",
    "HookConfig",
    "ModeKeys",
    "Overhead",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "TrainingStopped",
    "create_trial",
    "del_hook",
    "get_hook",
    "modes",
    "set_hook",
    "watch",
]

_WATCHED = ("weights", "biases", "gradients", "losses", "outputs")
# The hook of this process, for get_hook.
_process: Current[Hook] = Current()


class Hook(TorchHook):
    """Captures a training; losses unless told otherwise.

    An argument that is None is one that was not given: then the file that
    ``TDBG_CONFIG`` names says it, or else the default holds (docs/configuration.md).
    With ``TDBG_DISABLED=1`` nothing is looked at and the hook does nothing at all.

    Args:
        out_dir: The run directory; made if it does not exist, joined if it does.
            None: that of the variable ``TDBG_OUT``.
        include_collections: Built-in collections to capture beside the losses.
        include_regex: Further tensors, by expressions that their names match.
        save_config: The schedules.
        reduction_config: Statistics only, or raw values as well (the default).
        save_all: Capture every tensor.
        collections: Custom collections, or built-in ones with a configuration.
        rules: Rules, or their names, whose needs are captured as well.
        include_workers: Of several ranks, those that write: ``one`` (the default),
            the first; ``all``; or a list. The hooks of the others do nothing, except
            that the training stops on all ranks at the same step.
            docs/distributed.md.
        export_tensorboard: At ``close()``, write what the run has for TensorBoard:
            losses, scalars, and histograms of collections that have them.
        tensorboard_dir: Where to, and that it is wanted; None: ``tensorboard`` in
            the run directory.
        dry_run: Do everything but write; ``dry_run_summary()`` says what would be
            written, and how large it is.
        on_stop: When somebody asks for a stop: ``raise`` (the default)
            TrainingStopped at the next root forward, or ``flag`` it in
            ``should_stop``.
        overflow: When the disk is too slow: ``block`` (the default) while it makes
            progress, ``drop``, or ``sample``: keep the values of whole steps, of as
            many as the disk takes.
        queue_bytes: Bound of the memory for what is not written yet.
        min_free_bytes: Free disk space that is left to others.
        codec: How raw values are stored: "none", "auto" (the default) or "max".
        save_histogram: Store histograms wherever statistics are taken, of all
            collections that do not say otherwise.
        precise: Statistics of floats of up to 32 bits as exactly as those of
            float64.
        threads: That reduce one large tensor, at most; None: as many as PyTorch
            uses, up to 4.
        budget: Share of the training's time that capture may cost, such as 0.02;
            what is captured is reduced to stay inside. None: that of the variable
            ``TDBG_BUDGET``, or any.
        unknown: There is none; a misspelt argument is told with the nearest one.

    Raises:
        ConfigurationError: If something asked for can never work.
        StorageError: If the run cannot be made or written.
    """

    def __init__(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        *,
        include_collections: Iterable[str] | None = None,
        include_regex: str | Iterable[str] | None = None,
        save_config: SaveConfig
        | SaveConfigMode
        | Mapping[ModeKeys, SaveConfigMode]
        | None = None,
        reduction_config: ReductionConfig | None = None,
        save_all: bool | None = None,
        collections: Iterable[Collection | CollectionConfig] | None = None,
        rules: Iterable[str | Rule] | None = None,
        include_workers: str | Iterable[int] | None = None,
        export_tensorboard: bool | None = None,
        tensorboard_dir: str | os.PathLike[str] | None = None,
        dry_run: bool | None = None,
        on_stop: str | None = None,
        overflow: str | None = None,
        queue_bytes: int | None = None,
        min_free_bytes: int | None = None,
        codec: str | None = None,
        save_histogram: bool | None = None,
        precise: bool | None = None,
        threads: int | None = None,
        budget: float | None = None,
        **unknown: Never,
    ) -> None:
        given = {
            "out_dir": out_dir,
            "include_collections": include_collections,
            "include_regex": include_regex,
            "save_config": save_config,
            "reduction_config": reduction_config,
            "save_all": save_all,
            "collections": collections,
            "rules": rules,
            "include_workers": include_workers,
            "export_tensorboard": export_tensorboard,
            "tensorboard_dir": tensorboard_dir,
            "dry_run": dry_run,
            "on_stop": on_stop,
            "overflow": overflow,
            "queue_bytes": queue_bytes,
            "min_free_bytes": min_free_bytes,
            "codec": codec,
            "save_histogram": save_histogram,
            "precise": precise,
            "threads": threads,
            "budget": budget,
        }
        self._open(lambda: resolve({**given, **unknown}))

    @classmethod
    def from_config(cls, config: HookConfig) -> Self:
        """A hook with these settings, and no others.

        Raises:
            ConfigurationError: If something asked for can never work.
            StorageError: If the run cannot be made or written.
        """
        return cls._made(lambda: config)

    @classmethod
    def create_from_file(cls, path: str | os.PathLike[str] | None = None) -> Self:
        """A hook with the settings of a YAML or JSON file (docs/configuration.md).

        Args:
            path: The file, in the format of tdbg or of smdebug; None: that of the
                variable ``TDBG_CONFIG``, or else of ``SMDEBUG_CONFIG_FILE_PATH``.

        Raises:
            ConfigurationError: If there is none, or it says what can never work.
            StorageError: If the run cannot be made or written.
        """
        return cls._made(lambda: read_config(path))

    @classmethod
    def create_from_json_file(
        cls, json_file_path: str | os.PathLike[str] | None = None
    ) -> Self:
        """``create_from_file`` by the name that smdebug has for it."""
        return cls.create_from_file(json_file_path)

    @classmethod
    def _made(cls, make_config: Callable[[], HookConfig]) -> Self:
        hook = cls.__new__(cls)
        hook._open(make_config)
        return hook

    def _open(self, make_config: Callable[[], HookConfig]) -> None:
        def make() -> Opening:
            config = make_config()
            needs = [rule.needs for rule in _resolve(config.rules)]
            return Opening(config.out_dir, config.policy(needs), _options(config))

        super().__init__(make)
        _process.remember(self)


def watch(
    model: nn.Module,
    criterion: Callable[..., Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    rules: Iterable[str | Rule] | None = None,
    save_config: SaveConfig | None = None,
    on_stop: str | None = None,
    overflow: str | None = None,
    min_free_bytes: int | None = None,
    save_histogram: bool | None = None,
    precise: bool | None = None,
    threads: int | None = None,
    budget: float | None = None,
    include_workers: str | Iterable[int] | None = None,
) -> Hook:
    """Capture the statistics of a training, and no raw values.

    Those of weights, biases, gradients and the outputs of all modules at every
    tenth step, those of losses at every step, and what rules need; unless the file
    that ``TDBG_CONFIG`` names says otherwise.

    Args:
        model: Trained.
        criterion: Its loss, a module. A function must be registered with the hook,
            which returns one to use in its place.
        optimizer: The one whose steps are counted; only needed if there are several.
        out: The run directory; None: that of the variable ``TDBG_OUT``, or one in
            ``runs/`` named by the time.
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
    hook.register_module(model)
    if criterion is not None:
        hook.register_loss(criterion)
    if optimizer is not None:
        hook.register_optimizer(optimizer, defines_step=True)
    return hook


def get_hook(
    json_config_path: str | os.PathLike[str] | None = None,
    create_if_not_exists: bool = False,
) -> Hook | None:
    """The hook of this process: the one that was made or set last.

    Args:
        json_config_path: A file to make it from, as of ``Hook.create_from_file``.
        create_if_not_exists: Make one if there is none, or only a closed one. Without
            a file and without a variable that says anything (``TDBG_CONFIG``,
            ``SMDEBUG_CONFIG_FILE_PATH``, ``TDBG_OUT``) there is still none.

    Raises:
        ConfigurationError: If it is made, from what can never work.
        StorageError: If it is made, and the run cannot be.
    """
    found: Hook | None = _process.current()
    if not create_if_not_exists or not (found is None or found.is_closed):
        return found
    if json_config_path is not None or names_file():
        found = Hook.create_from_file(json_config_path)
    elif is_disabled() or names_run():
        found = Hook()
    else:
        return None
    _process.keep(found)
    return found


def set_hook(custom_hook: Hook) -> None:
    """Make this hook the one of this process.

    Raises:
        ConfigurationError: If it is none.
    """
    given: object = custom_hook
    if not isinstance(given, Hook):
        msg = f"set_hook needs a Hook, not {given!r}"
        raise ConfigurationError(msg)
    _process.keep(given)


def del_hook() -> None:
    """Forget the hook of this process; it is not closed, if others hold it."""
    _process.forget()


def __getattr__(name: str) -> Any:
    """``create_trial`` is loaded when it is first used."""
    if name == "create_trial":
        from tdbg.trial import create_trial

        return create_trial
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def _of_watch() -> dict[str, Any]:
    """What holds for ``watch`` where nothing else is said."""
    time = dt.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    from tdbg.rules import default_rules

    return {
        "out_dir": Path("runs") / same_on_all("watch", time),
        "include_collections": _WATCHED,
        "reduction_config": ReductionConfig(),
        "rules": default_rules(),
    }


def _resolve(rules: Iterable[str | Rule]) -> Iterable[Rule]:
    if not rules:
        return ()
    # Only where rules are asked for: a hook does not need them.
    from tdbg.rules import resolve as resolve_rules

    return resolve_rules(rules)


def _options(config: HookConfig) -> SessionOptions:
    """What it says, in this process."""
    rank, world_size = place()
    return config.options(
        # As many as the training's own operations, but no more than gain.
        threads=max(1, min(4, torch.get_num_threads())),
        rank=rank,
        world_size=world_size,
        board=StoreBoard(str(config.out_dir)) if world_size > 1 else None,
        launch=launch(),
    )
