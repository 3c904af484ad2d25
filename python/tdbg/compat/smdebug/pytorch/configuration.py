"""A hook's settings as smdebug's JSON files have them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tdbg.compat.smdebug.core.config_constants import (
    CONFIG_FILE_PATH_ENV_STR,
    DEFAULT_CONFIG_FILE_PATH,
    DEFAULT_SAGEMAKER_TENSORBOARD_PATH,
    TENSORBOARD_CONFIG_FILE_PATH_ENV_STR,
)
from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.core.save_config import SaveConfig
from tdbg.compat.smdebug.pytorch.collection import Collection
from tdbg.settings import read_config
from tdbg.settings.documents import read_document
from tdbg.settings.place import Place, short

__all__ = ["read_settings"]


def read_settings(
    path: str | os.PathLike[str] | None,
) -> tuple[dict[str, Any], list[Collection]]:
    """The arguments of a hook, and its collections.

    Args:
        path: The file; None: that of ``SMDEBUG_CONFIG_FILE_PATH``.

    Raises:
        FileNotFoundError: If there is no such file.
        ConfigurationError: If something in it can never work.
    """
    if path is None:
        path = os.environ.get(CONFIG_FILE_PATH_ENV_STR) or DEFAULT_CONFIG_FILE_PATH
    if not Path(path).expanduser().exists():
        msg = f"no file of settings: {os.fspath(path)}"
        raise FileNotFoundError(msg)
    config = read_config(path)
    collections = [Collection.of_native(item) for item in config.collections]  # type: ignore[arg-type]
    names = [*config.include_collections, *(item.name for item in collections)]
    saved, reduced = config.save_config, config.reduction_config
    directory = _of_sagemaker() or config.tensorboard_dir
    settings: dict[str, Any] = {
        "out_dir": config.out_dir,
        "export_tensorboard": config.export_tensorboard,
        "tensorboard_dir": None if directory is None else os.fspath(directory),
        "dry_run": config.dry_run,
        "reduction_config": None
        if reduced is None
        else ReductionConfig.of_native(reduced),
        "save_config": None if saved is None else SaveConfig.of_native(saved),
        "include_regex": list(config.include_regex) or None,
        "include_collections": names,
        "save_all": config.save_all,
        "include_workers": config.include_workers,
    }
    return settings, collections


def _of_sagemaker() -> str | None:
    """Where SageMaker wants files of TensorBoard; None if it does not say."""
    path = (
        os.environ.get(TENSORBOARD_CONFIG_FILE_PATH_ENV_STR)
        or DEFAULT_SAGEMAKER_TENSORBOARD_PATH
    )
    if not Path(path).is_file():
        return None
    place = Place(path)
    found = place.mapping(read_document(path, place)).get("LocalPath")
    if not (found is None or isinstance(found, str)):
        msg = f"must be text, not {short(found)}"
        raise place.key("LocalPath").error(msg)
    return found
