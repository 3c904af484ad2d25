"""``smdebug.pytorch.hook``: its hook, with its names, on tdbg's engine.

docs/migrating-from-smdebug.md says what differs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from torch import nn

from tdbg.capture.opening import Opening, SessionOptions
from tdbg.capture.policy import Policy
from tdbg.collections import Role
from tdbg.compat.smdebug.core.collection import LOSS_NAMES, CollectionKeys
from tdbg.compat.smdebug.core.collection_manager import CollectionManager
from tdbg.compat.smdebug.core.hook import CallbackHook
from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.core.save_config import SaveConfig
from tdbg.compat.smdebug.core.singleton_utils import current_hook, del_hook, set_hook
from tdbg.compat.smdebug.exceptions import SMDebugRuntimeError, SMDebugTypeError
from tdbg.compat.smdebug.pytorch.collection import Collection, name_modules
from tdbg.compat.smdebug.pytorch.configuration import read_settings
from tdbg.compat.smdebug.pytorch.naming import SmdebugNames
from tdbg.hooks.pytorch.distributed import StoreBoard, launch, place
from tdbg.hooks.pytorch.tensors import describe, is_tensor
from tdbg.modes import ModeKeys
from tdbg.pytorch.exporting import ExportingHook

__all__ = ["Hook"]

# Not in the statistics of a tensor: only its value can say them.
_OF_VALUES = frozenset({"prod", "median"})
_log = logging.getLogger("tdbg")


class Hook(ExportingHook, CallbackHook):
    """Captures a training; losses unless told otherwise.

    Args:
        out_dir: The run directory.
        export_tensorboard: Write files of TensorBoard when the run has ended, with
            histograms of the collections that do not refuse them.
        tensorboard_dir: Where, which switches it on; None: in *out_dir*.
        dry_run: Do everything but write.
        reduction_config: Statistics only, or raw values as well (the default).
        save_config: When; every 500 steps by default.
        include_regex: Further tensors, by expressions; collection ``default``.
        include_collections: Captured collections, beside the losses.
        save_all: Capture every tensor.
        include_workers: "one": the lowest rank, or "all".

    Raises:
        SMDebugRuntimeError: If there is no *out_dir*.
        ConfigurationError: If something asked for can never work.
        StorageError: If the run cannot be made or written.
    """

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
        if out_dir is None:
            msg = "out_dir is a required argument: the directory of the run"
            raise SMDebugRuntimeError(msg)
        self.out_dir = os.path.expanduser(os.fspath(out_dir))  # noqa: PTH111 - text
        if export_tensorboard and not tensorboard_dir:
            tensorboard_dir = os.path.join(self.out_dir, "tensorboard")  # noqa: PTH118
        self.tensorboard_dir = tensorboard_dir and os.path.expanduser(tensorboard_dir)  # noqa: PTH111
        self.dry_run = dry_run
        self.save_all = save_all
        given = SaveConfig.parse(save_config)
        self.save_config = SaveConfig(given.mode_save_configs)  # Its own, to complete.
        self.save_config.merge_default_save_config(SaveConfig())
        self.reduction_config = reduction_config or ReductionConfig(
            save_raw_tensor=True
        )
        self.collection_manager = CollectionManager(Collection)
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
        rank, world_size = place()

        def make() -> Opening:
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
                board=StoreBoard(self.out_dir) if world_size > 1 else None,
                launch=launch(),
            )
            if self.tensorboard_dir:
                self._export_to(self.tensorboard_dir, self.out_dir, options)
            return Opening(self.out_dir, policy, options)

        super().__init__(make)
        self.worker = f"worker_{rank}"
        set_hook(self)

    # ---- configuration ---------------------------------------------------------

    @classmethod
    def create_from_json_file(
        cls, json_file_path: str | os.PathLike[str] | None = None
    ) -> Hook:
        """A hook as a JSON file describes it.

        Args:
            json_file_path: The file; None: that of ``SMDEBUG_CONFIG_FILE_PATH``.

        Raises:
            FileNotFoundError: If there is no such file.
            ConfigurationError: If something in it can never work.
        """
        settings, collections = read_settings(json_file_path)
        hook = cls(**settings)
        for collection in collections:
            hook.add_collection(collection)
        return hook

    @classmethod
    def hook_from_config(
        cls, json_config_path: str | os.PathLike[str] | None = None
    ) -> Hook:
        """The older name of ``create_from_json_file``."""
        return cls.create_from_json_file(json_config_path)

    def has_default_hook_configuration(
        self, default_saved_collections: Iterable[str] = (CollectionKeys.LOSSES,)
    ) -> bool:
        """Whether it captures no more collections than these."""
        captured = {item.name for item in self.collection_manager.captured()}
        return captured == set(default_saved_collections)

    def has_default_configuration(self) -> bool:
        """Whether it captures the losses and nothing else."""
        return self.has_default_hook_configuration()

    # ---- collections -----------------------------------------------------------

    def get_collection(self, name: str, create: bool = True) -> Any:
        """The collection of this name, which is made if need be.

        Raises:
            SMDebugError: If it is not there and not to be made.
        """
        return self.collection_manager.get(name, create)

    def get_collections(self) -> Any:
        """All collections by name."""
        return self.collection_manager.get_collections()

    def add_collection(self, collection: Any) -> None:
        """Take a collection in; it is captured if it is among those included.

        Raises:
            SMDebugTypeError: If it is none.
        """
        self.collection_manager.add(collection)
        self._schedule_losses()
        self._prepare_collections()

    def export_collections(self) -> None:
        """Nothing to do: the run says what its collections hold whenever it changes."""

    # ---- registration ----------------------------------------------------------

    def register_module(self, module: nn.Module, *, name: str | None = None) -> None:
        """Capture this module; once more does nothing.

        Raises:
            ConfigurationError: If it is no module.
        """
        n_before = len(self._taps)
        super().register_module(module, name=name)
        if len(self._taps) > n_before:
            root = self._taps[-1].module  # Without a wrapper.
            name_modules(root or module, *self._naming.latest)
        self._prepare_collections()

    def register_hook(self, module: nn.Module) -> None:
        """The name of ``register_module`` in frameworks that call it themselves."""
        self.register_module(module)

    # ---- by hand ---------------------------------------------------------------

    def record_tensor_value(self, tensor_name: str, tensor_value: Any) -> None:
        """Record the result of a function as ``<tensor_name>_output_0``.

        It is captured where a collection has that name, as ``losses`` has those of
        losses. The index runs on until the next forward.
        """
        self._session.run(self._record_output, tensor_name, tensor_value)

    def save_tensor(
        self,
        tensor_name: str,
        tensor_value: Any,
        collections_to_write: str | Iterable[str] = CollectionKeys.DEFAULT,
    ) -> None:
        """Record a tensor in these collections, which are made if need be."""
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
            name: Its name.
            value: The number, or a tensor or array of one.
            sm_metric: Accepted; there is no SageMaker to send it to.
            timestamp: When it was true, in seconds since 1970; None: now.
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
        """Nothing: as in smdebug where no profiler is configured."""
        del timestamp, training_phase, op_name, phase, duration, kwargs

    def should_save_dataloader_metrics(self, metrics_name: str) -> bool:
        """False: as in smdebug where no profiler is configured."""
        del metrics_name
        return False

    def count_parameters(self, model: nn.Module) -> int:
        """How many elements the parameters have that are trained."""
        return sum(item.numel() for item in model.parameters() if item.requires_grad)

    # ---- state -----------------------------------------------------------------

    @property
    def mode(self) -> ModeKeys:
        """The present mode: that of ``set_mode``, else ``model.training``'s."""
        return self._current_mode()

    @property
    def step(self) -> int:
        """The global step that began last; -1 before the first."""
        return self._session.machine.latest(ModeKeys.GLOBAL)[0]

    @property
    def mode_steps(self) -> dict[ModeKeys, int]:
        """The step of each mode that began last; of GLOBAL over all modes."""
        latest = self._session.machine.latest
        steps = {mode: latest(mode)[1] for mode in ModeKeys}
        steps[ModeKeys.GLOBAL] = self.step
        return {mode: step for mode, step in steps.items() if step >= 0}

    def should_save_tensor_or_collection(
        self, tensor_name: str, collection_name: str
    ) -> bool:
        """Whether such a tensor of that collection is saved at the present step."""
        mode = self.mode
        step = self._session.machine.latest(mode)[1]
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

    def __reduce__(self) -> tuple[Callable[[], Hook], tuple[()]]:
        return _closed_hook, ()

    # ---- inside ----------------------------------------------------------------

    def _schedule_losses(self) -> None:
        """Losses come at the steps of the hook, not at every one."""
        losses: Any = self.collection_manager.get(CollectionKeys.LOSSES)
        if losses.save_config is None:
            losses.save_config = self.save_config

    def _prepare_collections(self) -> None:
        for item in self.collection_manager:
            if isinstance(item, Collection):
                item.find_modules()

    def _prepare(self) -> None:
        super()._prepare()
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
        mode = self._current_mode()
        context = self._session.given(mode)
        if context is None:
            return
        index = context.count_call(("output", name))
        full_name = f"{name}_output_{index}"
        role = Role.LOSS if LOSS_NAMES.search(full_name) else Role.OTHER
        is_good = is_tensor(value) and describe(value) is not None
        self._session.record(mode, full_name, role, value if is_good else None)


def _flatten(names: Iterable[Any]) -> list[str]:
    """The names of a list of names and lists."""
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
    """What a pickled hook becomes: one that captures nothing."""
    before = current_hook()
    hook = Hook(os.devnull, dry_run=True)
    hook.close()
    if before is not None:
        set_hook(before)
    else:
        del_hook()
    return hook
