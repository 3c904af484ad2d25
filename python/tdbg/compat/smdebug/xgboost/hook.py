"""``smdebug.xgboost.hook``: a hook of XGBoost with smdebug's arguments and modes.

docs/migrating-from-smdebug.md lists the differences.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xgboost

from tdbg.capture.policy import Policy
from tdbg.compat.smdebug.core.base import CallbackHook, del_hook, set_hook
from tdbg.compat.smdebug.core.collection import CollectionKeys, CollectionManager
from tdbg.compat.smdebug.core.framework_hook import FrameworkHook, find_hook
from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.core.save_config import SaveConfig
from tdbg.compat.smdebug.exceptions import SMDebugTypeError
from tdbg.config import HookConfig
from tdbg.config.files import resolve
from tdbg.hooks.trees.collections import INTERVAL
from tdbg.hooks.xgboost.hook import Hook as XGBoostHook

__all__ = ["DEFAULT_INCLUDE_COLLECTIONS", "Hook", "del_hook", "get_hook", "set_hook"]

DEFAULT_INCLUDE_COLLECTIONS = [CollectionKeys.METRICS]


class Hook(FrameworkHook, XGBoostHook, CallbackHook):
    """Captures a training; by default only its metrics, every 10 rounds.

    Args:
        out_dir: The run directory.
        export_tensorboard: Write files of TensorBoard when the run has ended.
        tensorboard_dir: The folder of these files, which switches the export on.
        dry_run: Do everything but write.
        reduction_config: Statistics only, or raw values as well (the default).
        save_config: When tensors are saved; every 10 rounds by default.
        include_regex: Expressions that find names of further tensors, which belong to
            the collection ``default``.
        include_collections: Captured collections, in addition to the metrics.
        save_all: Capture every tensor.
        include_workers: "one": the lowest rank, or "all".
        hyperparameters: Parameters to record beside those that are in effect.
        train_data: A DMatrix, or the path of a file and its format ("csv", "libsvm").
        validation_data: The same; labels and predictions are of these data.

    Raises:
        SMDebugRuntimeError: If there is no *out_dir*.
        ConfigurationError: If an argument can never work.
        StorageError: If the run cannot be made or written.
    """

    _has_evaluation = False

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
        hyperparameters: Mapping[str, Any] | None = None,
        train_data: Any = None,
        validation_data: Any = None,
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
            manager=CollectionManager(create_default=True),
            by_default=DEFAULT_INCLUDE_COLLECTIONS,
            by_save_all=(CollectionKeys.ALL, *_OF_TREES),
            every=SaveConfig(save_interval=INTERVAL),
        )
        self.hyperparameters = dict(hyperparameters or {})
        self._train_data = _matrix(train_data)
        self._validation_data = _matrix(validation_data)
        settings = {
            "out_dir": self.out_dir,
            "dry_run": dry_run,
            "include_workers": include_workers,
            "tensorboard_dir": self.tensorboard_dir or None,
        }
        self._configure(lambda: resolve(settings))
        set_hook(self)

    def _make_policy(self, config: HookConfig) -> Policy:
        self._config = config
        return Policy(
            self.collection_manager,
            self.save_config.native(),
            self.reduction_config,
            save_histogram=bool(self.tensorboard_dir),
        )

    # ---- what is captured ------------------------------------------------------

    def _begin_training(self, model: Any) -> None:
        super()._begin_training(model)
        for name, value in self.hyperparameters.items():
            self._session.collections.get(CollectionKeys.HYPERPARAMETERS)
            self.save_tensor(
                f"hyperparameters/{name}",
                np.asarray(value),
                CollectionKeys.HYPERPARAMETERS,
            )

    def _cleanup(self) -> None:
        self.close()


_OF_TREES = (
    CollectionKeys.HYPERPARAMETERS,
    CollectionKeys.FEATURE_IMPORTANCE,
    CollectionKeys.AVERAGE_SHAP,
    CollectionKeys.FULL_SHAP,
    CollectionKeys.TREES,
)


def _matrix(given: Any) -> Any:
    """A matrix, or the one in a file.

    Raises:
        SMDebugTypeError: If it is neither.
    """
    if given is None or isinstance(given, xgboost.DMatrix):
        return given
    if isinstance(given, tuple) and len(given) == 2:
        path, kind = given
        label = "&label_column=0" if kind == "csv" else ""
        return xgboost.DMatrix(f"{path}?format={kind}{label}")
    msg = f"expected a DMatrix, or the path of a file and its format, not {given!r}"
    raise SMDebugTypeError(msg)


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
