"""``smdebug.mxnet.hook``: a hook of Gluon with smdebug's arguments and modes.

docs/migrating-from-smdebug.md lists the differences.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from tdbg.capture.policy import Policy
from tdbg.compat.smdebug.core.base import CallbackHook, del_hook, set_hook
from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.core.framework_hook import FrameworkHook, find_hook
from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.mxnet.collection import CollectionManager, SmdebugNames
from tdbg.config import HookConfig
from tdbg.config.files import resolve
from tdbg.hooks.mxnet.hook import Hook as GluonHook
from tdbg.modes import ModeKeys

__all__ = ["DEFAULT_INCLUDE_COLLECTIONS", "Hook", "del_hook", "get_hook", "set_hook"]

DEFAULT_INCLUDE_COLLECTIONS = [CollectionKeys.LOSSES]


class Hook(FrameworkHook, GluonHook, CallbackHook):
    """Captures a training; by default only its losses, every 500 steps.

    Args:
        out_dir: The run directory.
        export_tensorboard: Write files of TensorBoard when the run has ended.
        tensorboard_dir: The folder of these files, which switches the export on.
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

    def __init__(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        export_tensorboard: bool = False,
        tensorboard_dir: str | None = None,
        dry_run: bool = False,
        reduction_config: ReductionConfig | None = None,
        save_config: Any = None,
        include_regex: str | list[str] | None = None,
        include_collections: Iterable[str] | None = None,
        save_all: bool = False,
        include_workers: str = "one",
    ) -> None:
        self._take_arguments(
            out_dir,
            export_tensorboard=export_tensorboard,
            tensorboard_dir=tensorboard_dir,
            reduction_config=reduction_config,
            save_config=save_config,
            include_regex=include_regex,
            include_collections=include_collections,
            save_all=save_all,
            manager=CollectionManager(),
            by_default=DEFAULT_INCLUDE_COLLECTIONS,
        )
        settings = {
            "out_dir": self.out_dir,
            "dry_run": dry_run,
            "include_workers": include_workers,
            "tensorboard_dir": self.tensorboard_dir or None,
        }
        self._configure(lambda: resolve(settings))
        set_hook(self)

    def _make_policy(self, config: HookConfig) -> Policy:  # noqa: ARG002
        return Policy(
            self.collection_manager,
            self.save_config.native(),
            self.reduction_config,
            save_histogram=bool(self.tensorboard_dir),
            naming=SmdebugNames(),
        )

    # ---- registration ----------------------------------------------------------

    def register_hook(self, block: Any) -> None:
        """Call ``register_block``, by the name that other frameworks' hooks have."""
        self.register_block(block)

    # ---- state -----------------------------------------------------------------

    @property
    def mode(self) -> ModeKeys:
        """The present mode: that of ``set_mode``, or else of the latest forward."""
        return self._mode.now()

    @property
    def step(self) -> int:
        """The global step that began last; -1 before the first."""
        return self._session.latest_step(ModeKeys.GLOBAL)[0]

    def _cleanup(self) -> None:
        self.close()


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
