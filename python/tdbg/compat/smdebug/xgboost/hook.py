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
from tdbg.compat.smdebug.core.base import del_hook, set_hook
from tdbg.compat.smdebug.core.collection import CollectionKeys, CollectionManager
from tdbg.compat.smdebug.core.framework_hook import SmdebugHook, getter
from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.exceptions import SMDebugTypeError
from tdbg.config import HookConfig
from tdbg.hooks.trees.collections import INTERVAL
from tdbg.hooks.xgboost.hook import Hook as XGBoostHook

__all__ = ["DEFAULT_INCLUDE_COLLECTIONS", "Hook", "del_hook", "get_hook", "set_hook"]

DEFAULT_INCLUDE_COLLECTIONS = [CollectionKeys.METRICS]


class Hook(SmdebugHook, XGBoostHook):
    """Captures a training; by default only its metrics, every 10 rounds.

    The first ten arguments are those of ``SmdebugHook``.

    Args:
        hyperparameters: Parameters to record beside those that are in effect.
        train_data: A DMatrix, or the path of a file and its format ("csv", "libsvm").
        validation_data: The same; labels and predictions are of these data.
    """

    _make_manager = staticmethod(lambda: CollectionManager(create_default=True))
    _by_default = (CollectionKeys.METRICS,)
    _by_save_all = (
        CollectionKeys.ALL,
        CollectionKeys.HYPERPARAMETERS,
        CollectionKeys.FEATURE_IMPORTANCE,
        CollectionKeys.AVERAGE_SHAP,
        CollectionKeys.FULL_SHAP,
        CollectionKeys.TREES,
    )
    _interval = INTERVAL
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
        include_collections: Iterable[Any] | None = None,
        save_all: bool = False,
        include_workers: str = "one",
        hyperparameters: Mapping[str, Any] | None = None,
        train_data: Any = None,
        validation_data: Any = None,
    ) -> None:
        self.hyperparameters = dict(hyperparameters or {})
        self._train_data = _matrix(train_data)
        self._validation_data = _matrix(validation_data)
        SmdebugHook.__init__(
            self,
            out_dir,
            export_tensorboard,
            tensorboard_dir,
            dry_run,
            reduction_config,
            save_config,
            include_regex,
            include_collections,
            save_all,
            include_workers,
        )

    def _make_policy(self, config: HookConfig) -> Policy:
        self._config = config
        return super()._make_policy(config)

    def _begin_training(self, model: Any) -> None:
        super()._begin_training(model)
        for name, value in self.hyperparameters.items():
            self._session.collections.get(CollectionKeys.HYPERPARAMETERS)
            self.save_tensor(
                f"hyperparameters/{name}",
                np.asarray(value),
                CollectionKeys.HYPERPARAMETERS,
            )

    def _changed(self, model: Any) -> dict[str, Any]:
        """Leave out what the program has given itself: that is recorded."""
        given = {f"hyperparameters/{name}" for name in self.hyperparameters}
        found = super()._changed(model)
        return {name: value for name, value in found.items() if name not in given}


def _matrix(given: Any) -> Any:
    """Return a matrix, or the one in a file.

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


get_hook = getter(Hook)
