"""``smdebug.pytorch.hook``: a hook with smdebug's methods and names of tensors.

docs/migrating-from-smdebug.md lists the differences.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from tdbg.capture.ranks import process_rank
from tdbg.compat.smdebug.core.base import current_hook, del_hook, set_hook
from tdbg.compat.smdebug.core.collection import (
    LOSS_NAMES,
    CollectionKeys,
)
from tdbg.compat.smdebug.core.config_constants import DEFAULT_SAVED_COLLECTIONS
from tdbg.compat.smdebug.core.framework_hook import SmdebugHook, getter
from tdbg.compat.smdebug.left_out import METHODS, refuse
from tdbg.compat.smdebug.pytorch.collection import (
    Collection,
    CollectionManager,
    ModuleNames,
    name_modules,
)
from tdbg.config.collections import Role
from tdbg.config.quantities import conjoin
from tdbg.hooks.pytorch.hook import Hook as TorchHook

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


class Hook(SmdebugHook, TorchHook):
    """Captures a training; by default only its losses, every 500 steps.

    Its arguments are those of ``SmdebugHook``.  Files of TensorBoard have histograms of
    the collections that do not refuse them.
    """

    # smdebug captures modules.
    _follows_functions = False
    _make_manager = CollectionManager
    _make_names = ModuleNames
    _instead = METHODS

    logger = _log
    _has_checked = False
    _naming: ModuleNames

    @property
    def worker(self) -> str:
        """The name of this worker, as readers of the run know it."""
        return f"worker_{process_rank(self._adapter)[0]}"

    def has_default_configuration(self) -> bool:
        """Return whether it captures the losses and nothing else."""
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
                    "collection %r: the statistics do not include %s; save raw values "
                    "(save_raw_tensor=True) to compute that",
                    item.name,
                    conjoin(sorted(names)),
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


get_hook = getter(Hook)
__getattr__ = refuse(__name__)
