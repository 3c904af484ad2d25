"""``smdebug.pytorch.hook``: a hook with smdebug's methods and names of tensors.

docs/migrating-from-smdebug.md lists the differences.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any, Never

import numpy as np
from torch import nn

from tdbg.capture.adapter import FrameworkAdapter
from tdbg.capture.hook_base import RunExport
from tdbg.capture.opening import SessionSpec
from tdbg.capture.policy import Policy
from tdbg.capture.ranks import launch_name, process_rank
from tdbg.compat.smdebug.core.base import CallbackHook, current_hook, del_hook, set_hook
from tdbg.compat.smdebug.core.collection import (
    LOSS_NAMES,
    CollectionKeys,
)
from tdbg.compat.smdebug.core.config_constants import DEFAULT_SAVED_COLLECTIONS
from tdbg.compat.smdebug.core.framework_hook import FrameworkHook, find_hook
from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.core.save_config import SaveConfig
from tdbg.compat.smdebug.core.utils import (
    get_tensorboard_dir,
    verify_and_get_out_dir,
)
from tdbg.compat.smdebug.exceptions import SMDebugTypeError
from tdbg.compat.smdebug.left_out import METHODS, PAGE, refuse
from tdbg.compat.smdebug.pytorch.collection import (
    Collection,
    CollectionManager,
    SmdebugNames,
    name_modules,
)
from tdbg.config.collections import Role
from tdbg.config.options import SessionOptions
from tdbg.hooks.pytorch.hook import Hook as TorchHook
from tdbg.modes import ModeKeys

__all__ = [
    "DEFAULT_INCLUDE_COLLECTIONS",
    "Hook",
    "del_hook",
    "get_hook",
    "set_hook",
]

DEFAULT_INCLUDE_COLLECTIONS = list(DEFAULT_SAVED_COLLECTIONS)

# Reductions that rows do not have: they need the value.
_OF_VALUES = frozenset({"prod", "median"})
_log = logging.getLogger("tdbg")


class Hook(FrameworkHook, TorchHook, CallbackHook):
    """Captures a training; by default only its losses.

    Args:
        out_dir: The run directory.
        export_tensorboard: Write files of TensorBoard when the run has ended, with
            histograms of the collections that do not refuse them.
        tensorboard_dir: The folder of these files, which switches the export on; None:
            ``tensorboard`` in *out_dir*.
        dry_run: Do everything but write.
        reduction_config: Statistics only, or raw values as well (the default).
        save_config: When tensors are saved; every 500 steps by default.
        include_regex: Expressions that find names of further tensors, which belong to
            the collection ``default``.
        include_collections: Captured collections, in addition to the losses.
        save_all: Capture every tensor.
        include_workers: "one": the lowest rank, or "all".

    Raises:
        SMDebugRuntimeError: If there is no *out_dir*.
        ConfigurationError: If an argument can never work.
        StorageError: If the run cannot be made or written.
    """

    # smdebug captures modules.
    _follows_functions = False

    def __init__(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        export_tensorboard: bool = False,
        tensorboard_dir: str | None = None,
        dry_run: bool = False,
        reduction_config: ReductionConfig | None = None,
        save_config: Any = None,
        include_regex: str | list[str] | None = None,
        include_collections: Iterable[Any] | None = None,
        save_all: bool = False,
        include_workers: str = "one",
    ) -> None:
        self.out_dir = verify_and_get_out_dir(out_dir)
        self.tensorboard_dir = get_tensorboard_dir(
            export_tensorboard, tensorboard_dir, self.out_dir
        )
        self.logger = _log
        self.dry_run = dry_run
        self.save_all = save_all
        given = SaveConfig.parse(save_config)
        given = SaveConfig(given.mode_save_configs)  # A copy, changed below.
        given.merge_default_save_config(SaveConfig())
        self.save_config = given.copy(is_fixed=True)
        self.reduction_config = reduction_config or ReductionConfig(
            save_raw_tensor=True
        )
        self.collection_manager = CollectionManager()
        self.include_collections = _flatten(include_collections or ())
        if CollectionKeys.LOSSES not in self.include_collections:
            self.include_collections.append(CollectionKeys.LOSSES)
        if include_regex is not None:
            self.collection_manager.get(CollectionKeys.DEFAULT).include(include_regex)
            self.include_collections.append(CollectionKeys.DEFAULT)
        if save_all:
            self.include_collections.append(CollectionKeys.ALL)
        for name in self.include_collections:
            self.collection_manager.include(name)
        self._schedule_losses()
        self._has_checked = False
        self._naming = SmdebugNames()

        def make(adapter: FrameworkAdapter) -> tuple[SessionSpec, RunExport | None]:
            rank, world_size = process_rank(adapter)
            policy = Policy(
                self.collection_manager,
                self.save_config.native(),
                self.reduction_config,
                save_histogram=bool(self.tensorboard_dir),
                naming=self._naming,
            )
            options = SessionOptions(
                dry_run=dry_run,
                include_workers=include_workers,
                rank=rank,
                world_size=world_size,
                rank_store=(
                    adapter.rank_store(self.out_dir) if world_size > 1 else None
                ),
                launch=launch_name(os.environ),
            )
            export = None
            if self.tensorboard_dir:
                # Imported here: nothing else in a training reads runs.
                from tdbg.export import export_at_end

                export = export_at_end(self.out_dir, self.tensorboard_dir, options)
            return SessionSpec(self.out_dir, policy, options), export

        self._open(make)
        self.worker = f"worker_{process_rank(self._adapter)[0]}"
        set_hook(self)

    # ---- configuration ---------------------------------------------------------

    def has_default_hook_configuration(
        self, default_saved_collections: Iterable[str] = DEFAULT_SAVED_COLLECTIONS
    ) -> bool:
        """Whether it captures no more collections than these."""
        captured = {item.name for item in self.collection_manager.captured()}
        return captured == set(default_saved_collections)

    def has_default_configuration(self) -> bool:
        """Whether it captures the losses and nothing else."""
        return self.has_default_hook_configuration()

    # ---- collections -----------------------------------------------------------

    def _collections_change(self) -> None:
        super()._collections_change()
        self._prepare_collections()

    def export_collections(self) -> None:
        """Do nothing: the hook records collections whenever they change."""

    # ---- registration ----------------------------------------------------------

    def register_module(self, module: nn.Module, *, name: str | None = None) -> None:
        """Capture this module; a second call for it does nothing.

        Raises:
            ConfigurationError: If *module* is no module.
        """
        n_before = len(self._module_captures)
        super().register_module(module, name=name)
        if len(self._module_captures) > n_before:
            root = self._module_captures[-1].module  # Without a wrapper.
            name_modules(root or module, *self._naming.latest)
        self._prepare_collections()

    def register_loss(self, loss_module: Any, *, name: str | None = None) -> Any:
        """Capture this loss, a module or any function.

        Returns:
            The module itself, or for a function one to use in its place.

        Raises:
            ConfigurationError: If it cannot be called.
        """
        return super().register_loss(loss_module, name=name)

    def register_hook(self, module: nn.Module) -> None:
        """Call ``register_module``, by the name that other frameworks' hooks have."""
        self.register_module(module)

    # ---- by hand ---------------------------------------------------------------

    def record_tensor_value(self, tensor_name: str, tensor_value: Any) -> None:
        """Record the result of a function as ``<tensor_name>_output_0``.

        It is captured if a captured collection holds the name, as ``losses`` holds
        those of losses. The index runs on until the next forward.
        """
        self._session.run(self._record_output, tensor_name, tensor_value)

    def save_tensor(
        self,
        tensor_name: str,
        tensor_value: Any,
        collections_to_write: str | Iterable[str] = CollectionKeys.DEFAULT,
    ) -> None:
        """Record a tensor in these collections, which are made if they do not exist."""
        super().save_tensor(tensor_name, tensor_value, collections_to_write)

    def save_scalar(
        self,
        name: str,
        value: Any,
        sm_metric: bool = False,
        timestamp: float | None = None,
    ) -> None:
        """Record a number as ``scalar/<name>``, always.

        Args:
            name: Name of the number.
            value: The number, or a tensor or array of one.
            sm_metric: Ignored: there is no SageMaker to send the number to.
            timestamp: When the number was true, in seconds since 1970; None: now.
        """
        del sm_metric
        if isinstance(value, np.ndarray | list | tuple) and np.size(value) == 1:
            value = np.asarray(value).item()
        super().save_scalar(name, value, timestamp=timestamp)

    def record_trace_events(
        self,
        timestamp: float,
        training_phase: str = "",
        op_name: str = "",
        phase: str = "X",
        duration: float = 1,
        **kwargs: Any,
    ) -> None:
        """Do nothing, as smdebug does without a profiler."""
        del timestamp, training_phase, op_name, phase, duration, kwargs

    def should_save_dataloader_metrics(self, metrics_name: str) -> bool:
        """False, as in smdebug without a profiler."""
        del metrics_name
        return False

    def count_parameters(self, model: nn.Module) -> int:
        """Number of elements of the parameters that are trained."""
        return sum(item.numel() for item in model.parameters() if item.requires_grad)

    # ---- state -----------------------------------------------------------------

    @property
    def has_registered_module(self) -> bool:
        """Whether it captures a module."""
        return bool(self._module_captures)

    @property
    def has_registered_loss_module(self) -> bool:
        """Whether it captures a loss."""
        return bool(self._losses)

    @property
    def mode(self) -> ModeKeys:
        """The present mode: that of ``set_mode``, or else of ``model.training``."""
        return self._mode.now()

    @property
    def step(self) -> int:
        """The global step that began last; -1 before the first."""
        return self._session.latest_step(ModeKeys.GLOBAL)[0]

    @property
    def mode_steps(self) -> dict[ModeKeys, int]:
        """The latest step of each mode that has any; GLOBAL counts all modes."""
        latest = self._session.latest_step
        steps = {mode: latest(mode)[1] for mode in ModeKeys}
        steps[ModeKeys.GLOBAL] = self.step
        return {mode: step for mode, step in steps.items() if step >= 0}

    def should_save_tensor_or_collection(
        self, tensor_name: str, collection_name: str
    ) -> bool:
        """Whether a tensor of that name and collection is saved at the present step."""
        mode = self.mode
        step = self._session.latest_step(mode)[1]
        if step < 0:
            return False
        for item in self.collection_manager.captured():
            config = getattr(item, "save_config", None) or self.save_config
            own = config.mode_save_configs[mode] or self.save_config.get_save_config(
                mode
            )
            is_its = item.name == collection_name and (
                not item.include_regex or item.has(tensor_name, Role.OTHER)
            )
            has = is_its or item.has(tensor_name, Role.OTHER)
            if has and own.should_save_step(step):
                return True
        return False

    def _cleanup(self) -> None:
        self.close()

    def __getattr__(self, name: str) -> Never:
        instead = METHODS.get(name)
        kind = type(self).__name__
        msg = f"{kind!r} object has no attribute {name!r}"
        if instead is not None:
            msg += f", as smdebug's has: {instead} ({PAGE})"
        raise AttributeError(msg, name=name, obj=self)

    def __reduce__(self) -> tuple[Callable[[], Hook], tuple[()]]:
        return _closed_hook, ()

    # ---- inside ----------------------------------------------------------------

    def _prepare_collections(self) -> None:
        for item in self.collection_manager:
            if isinstance(item, Collection):
                item.find_modules()

    def _before_training_forward(self) -> None:
        super()._before_training_forward()
        if not self._has_checked:
            self._has_checked = True
            self._check_collections()

    def _check_collections(self) -> None:
        empty = self.collection_manager.unconfigured(self.include_collections)
        if empty:
            _log.warning(
                "collections %s are captured but select nothing: give them an "
                "include_regex, tensor names or modules",
                ", ".join(map(repr, empty)),
            )
        for item in self.collection_manager.captured():
            reduction = item.reduction_config or self.reduction_config
            names = {*reduction.reductions, *reduction.abs_reductions} & _OF_VALUES
            if names and not reduction.save_raw_tensor:
                _log.warning(
                    "collection %r: %s is no part of the statistics; it is only known "
                    "where raw values are saved (save_raw_tensor=True)",
                    item.name,
                    " and ".join(sorted(names)),
                )

    def _record_output(self, name: str, value: Any) -> None:
        mode = self._mode.now()
        context = self._session.given(mode)
        if context is None:
            return
        index = context.count_call(("output", name))
        full_name = f"{name}_output_{index}"
        role = Role.LOSS if LOSS_NAMES.search(full_name) else Role.OTHER
        adapter = self._adapter
        is_good = adapter.is_tensor(value) and adapter.describe(value) is not None
        self._session.record(mode, full_name, role, value if is_good else None)


def _flatten(names: Iterable[Any]) -> list[str]:
    """Flatten a list of names and lists."""
    if isinstance(names, str):
        return [names]
    found: list[str] = []
    for item in names:
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, list | tuple | set):
            found += _flatten(item)
        else:
            msg = f"include_collections: {item!r} is no name of a collection"
            raise SMDebugTypeError(msg)
    return list(dict.fromkeys(found))


def _closed_hook() -> Hook:
    """Make the hook that unpickling one returns: it captures nothing."""
    before = current_hook()
    hook = Hook(os.devnull, dry_run=True)
    hook.close()
    if before is not None:
        set_hook(before)
    else:
        del_hook()
    return hook


def get_hook(
    json_config_path: str | os.PathLike[str] | None = None,
    create_if_not_exists: bool = False,
) -> Hook | None:
    """The hook of the process.

    Args:
        json_config_path: The file to make a hook from; None: the one that
            ``SMDEBUG_CONFIG_FILE_PATH`` names.
        create_if_not_exists: Whether to make a hook if there is none and the file
            exists.

    Returns:
        The hook; None if there is none, or ``USE_SMDEBUG=0`` switches it off.
    """
    return find_hook(Hook, json_config_path, create_if_not_exists)


__getattr__ = refuse(__name__)
