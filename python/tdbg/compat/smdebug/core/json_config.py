"""``smdebug.core.json_config``: hooks, and settings of hooks, from JSON files.

The names of the keys stand here too, as in smdebug.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tdbg.compat.smdebug.core.config_constants import *  # noqa: F403 - smdebug's
from tdbg.compat.smdebug.core.config_constants import (
    CONFIG_COLLECTION_CONFIG_KEY,
    CONFIG_COLLECTION_NAME_KEY,
    CONFIG_COLLECTION_PARAMS_KEY,
    CONFIG_FILE_PATH_ENV_STR,
    CONFIG_HOOK_PARAMS_KEY,
    DEFAULT_CONFIG_FILE_PATH,
    DEFAULT_RESOURCE_CONFIG_FILE,
    DEFAULT_SAGEMAKER_OUTDIR,
    DEFAULT_SAGEMAKER_TENSORBOARD_PATH,
    TENSORBOARD_CONFIG_FILE_PATH_ENV_STR,
)
from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.core.save_config import SaveConfig
from tdbg.compat.smdebug.core.utils import split
from tdbg.compat.smdebug.exceptions import SMDebugValueError
from tdbg.compat.smdebug.left_out import refuse
from tdbg.config import Collection, HookConfig, read_config
from tdbg.config.documents import Location, read_document
from tdbg.config.files import SMDEBUG_HOOK_KEYS, SMDEBUG_KEYS, is_for_smdebug
from tdbg.config.messages import nearest, short
from tdbg.config.text_settings import COLLECTION_KEYS, make_collection
from tdbg.modes import ModeKeys

__all__ = [
    "create_hook_from_json_config",
    "get_include_collections",
    "get_json_config_as_dict",
    "get_node_id_from_resource_config",
    "get_tensorboard_dir_from_json_config",
    "parse_save_config_dict",
    "parse_save_config_modes_dict",
]


_PARAMETERS, _COLLECTIONS = CONFIG_HOOK_PARAMS_KEY, CONFIG_COLLECTION_CONFIG_KEY
_NAME, _OF_COLLECTION = CONFIG_COLLECTION_NAME_KEY, CONFIG_COLLECTION_PARAMS_KEY
_SCHEDULE_KEYS = ("save_interval", "save_steps", "start_step", "end_step")
_OWN_KEYS = frozenset(item.name for item in dataclasses.fields(HookConfig))
_log = logging.getLogger("tdbg")


def create_hook_from_json_config(
    hook_cls: Any,
    json_config_path: str | os.PathLike[str] | None,
    default_values: Mapping[str, Any] | None = None,
) -> Any:
    """Make a hook with the settings of a JSON file.

    Args:
        hook_cls: The class of the hook.
        json_config_path: The file; None: the one that ``SMDEBUG_CONFIG_FILE_PATH``
            names.
        default_values: Arguments of ``SaveConfigMode`` that hold for every mode for
            which the file does not say otherwise.

    Raises:
        FileNotFoundError: If there is no such file.
        ConfigurationError: If a setting can never work.
    """
    settings, collections = _read_settings(json_config_path, default_values)
    hook = hook_cls(**settings)
    hook.configure_collections(collections)
    return hook


def get_json_config_as_dict(
    json_config_path: str | os.PathLike[str] | None,
) -> dict[str, Any]:
    """Read a JSON file of settings as it stands.

    Args:
        json_config_path: The file; None: the one that ``SMDEBUG_CONFIG_FILE_PATH``
            names.

    Raises:
        FileNotFoundError: If there is no such file.
        ConfigurationError: If it is not a mapping in JSON.
    """
    path = _path_of_settings(json_config_path)
    place = Location(os.fspath(path))
    return dict(place.mapping(read_document(path, place)))


def get_include_collections(params_dict: Mapping[str, Any]) -> list[str] | None:
    """Return the names of the collections that settings list; None if they list none.

    Raises:
        SMDebugValueError: If one has no name.
    """
    listed = params_dict.get(_COLLECTIONS)
    if listed is None:
        return None
    for entry in listed:
        if _NAME not in entry:
            msg = f"{_COLLECTIONS}: {short(entry)} must have a {_NAME!r}"
            raise SMDebugValueError(msg)
    return [entry[_NAME] for entry in listed]


def parse_save_config_modes_dict(
    params: Mapping[str, Any],
    base_config_modes: Mapping[ModeKeys, Mapping[str, Any]] | None = None,
) -> dict[ModeKeys, dict[str, Any]]:
    """Return the arguments of ``SaveConfigMode`` for each mode, from keys as in a file.

    Args:
        params: ``save_interval`` and others for all modes, ``train.save_interval`` for
            one, which takes precedence.
        base_config_modes: What holds for a mode where *params* have nothing.

    Raises:
        SMDebugValueError: If *params* are no mapping, or a step is not a number.
    """
    base = base_config_modes or {}
    return {
        mode: {
            **base.get(mode, {}),
            **parse_save_config_dict(params),
            **parse_save_config_dict(params, mode),
        }
        for mode in ModeKeys
    }


def parse_save_config_dict(
    params: Mapping[str, Any], mode: ModeKeys | None = None
) -> dict[str, Any]:
    """Return the arguments of ``SaveConfigMode`` among *params*, of one mode or all.

    Raises:
        SMDebugValueError: If *params* are not a mapping, *mode* is not a mode, or a
            step is not a number.
    """
    given: tuple[object, object] = (params, mode)
    if not isinstance(given[0], Mapping) or not isinstance(given[1], ModeKeys | None):
        msg = f"expected a mapping and a mode, not {short(params)} and {mode!r}"
        raise SMDebugValueError(msg)
    prefix = "" if mode is None else f"{mode.name.lower()}."
    found = {
        key: params[f"{prefix}{key}"]
        for key in _SCHEDULE_KEYS
        if f"{prefix}{key}" in params
    }
    steps = found.get("save_steps")
    if isinstance(steps, str):
        try:
            found["save_steps"] = [int(step) for step in split(steps)]
        except ValueError as error:
            msg = f"{prefix}save_steps must be numbers with commas, not {steps!r}"
            raise SMDebugValueError(msg) from error
    return found


def get_tensorboard_dir_from_json_config() -> str | None:
    """Return the directory of TensorBoard's files that SageMaker asks for, or None.

    Raises:
        ConfigurationError: If its file, which ``TENSORBOARD_CONFIG_FILE_PATH`` names,
            has another form.
    """
    path = (
        os.environ.get(TENSORBOARD_CONFIG_FILE_PATH_ENV_STR)
        or DEFAULT_SAGEMAKER_TENSORBOARD_PATH
    )
    return _text_in(path, "LocalPath")


def get_node_id_from_resource_config() -> str | None:
    """Return the name that SageMaker gives this machine, or None outside of SageMaker.

    Raises:
        ConfigurationError: If SageMaker's file has another form.
    """
    return _text_in(DEFAULT_RESOURCE_CONFIG_FILE, "current_host")


def _read_settings(
    given: str | os.PathLike[str] | None, default_values: Mapping[str, Any] | None
) -> tuple[dict[str, Any], list[Collection]]:
    """Read the arguments of a hook, and its collections in their order.

    A file in smdebug's form is read as smdebug reads it: keys that it does not know
    are ignored, with a warning; a collection may stand twice, or select nothing so far.
    """
    path = _path_of_settings(given)
    form = _SmdebugForm()
    config = read_config(path, form.prepare)
    saved, reduced = config.save_config, config.reduction_config
    if default_values:
        parsed = parse_save_config_modes_dict(form.parameters)
        with_defaults: Any = SaveConfig.from_dict(parsed, default_values)
        saved = with_defaults.native()
    collections: list[Any] = [*config.collections, *form.collections(saved)]
    names = [*config.include_collections, *(item.name for item in collections)]
    directory = get_tensorboard_dir_from_json_config() or config.tensorboard_dir
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


def _path_of_settings(
    given: str | os.PathLike[str] | None,
) -> str | os.PathLike[str]:
    path = given
    if path is None:
        path = os.environ.get(CONFIG_FILE_PATH_ENV_STR) or DEFAULT_CONFIG_FILE_PATH
    path = Path(path).expanduser()
    if not path.exists():
        msg = f"no file of settings: {path}"
        raise FileNotFoundError(msg)
    return path


class _SmdebugForm:
    """A document in smdebug's form, with smdebug's tolerance.

    What smdebug ignores is taken out of the document before tdbg reads it, which
    refuses what it does not know.

    Attributes:
        parameters: Those of the hook, as they stand in the document.
    """

    def __init__(self) -> None:
        self._listed: object = None
        self.parameters: Mapping[str, Any] = {}
        self._place = Location()

    def prepare(self, document: object, place: Location) -> object:
        """Return the document for tdbg to read, without its collections."""
        if not isinstance(document, Mapping):
            return document
        if not is_for_smdebug(document) and not _OWN_KEYS.isdisjoint(document):
            return document  # It is in tdbg's own form.
        found = _known(document, SMDEBUG_KEYS, place)
        self._listed = found.pop(_COLLECTIONS, None)
        self._place = place.key(_COLLECTIONS)
        if isinstance(found.get(_PARAMETERS), Mapping):
            where = place.key(_PARAMETERS)
            found[_PARAMETERS] = _known(found[_PARAMETERS], SMDEBUG_HOOK_KEYS, where)
            self.parameters = found[_PARAMETERS]
        if found.get("LocalPath") is None:
            found["LocalPath"] = _out_dir(found)
        return found

    def collections(self, hook: Any) -> Iterator[Collection]:
        """Make the collections of the document; *hook* has the schedules of the hook.

        Raises:
            ConfigurationError: If a value can never work.
        """
        listed = [] if self._listed is None else self._listed
        if not isinstance(listed, list):
            msg = f"must be a list, not {short(listed)}"
            raise self._place.error(msg)
        seen: set[str] = set()
        for index, value in enumerate(listed):
            place = self._place.item(index)
            given = _known(place.mapping(value), (_NAME, _OF_COLLECTION), place)
            if _NAME not in given:
                msg = f"must have a {_NAME!r}"
                raise place.error(msg)
            where = place.key(_OF_COLLECTION)
            parameters = given.get(_OF_COLLECTION)
            if parameters is None:
                parameters = {}
            if isinstance(parameters, Mapping):
                parameters = _known(parameters, COLLECTION_KEYS, where)
            made = make_collection(
                given[_NAME], parameters, hook, where, may_be_empty=True
            )
            if made.name in seen:
                _warn(
                    place.key(_NAME),
                    f"{short(made.name)} appears twice: expressions are added up, of "
                    "the schedules the last one counts",
                )
            seen.add(made.name)
            yield made


def _known(
    given: Mapping[str, Any], known: tuple[str, ...], place: Location
) -> dict[str, Any]:
    """Leave out keys that are not *known*, with a warning."""
    for key in given:
        if key not in known:
            _warn(place, f"unknown key {short(key)} is ignored; {nearest(key, known)}")
    return {key: value for key, value in given.items() if key in known}


def _out_dir(given: Mapping[str, Any]) -> str:
    """Return the directory of the run where no ``LocalPath`` names one.

    A destination that is no bucket is a directory of this machine.  SageMaker sends
    what lies in its own directory to the bucket.
    """
    for key in ("S3OutputPath", "S3Path"):
        text = given.get(key)
        scheme, separator, rest = str(text or "").partition("://")
        if separator and scheme == "file":
            return rest
        if text and isinstance(text, str) and not separator:
            return text
    return DEFAULT_SAGEMAKER_OUTDIR


def _warn(place: Location, text: str) -> None:
    _log.warning("%s", place.error(text))


def _text_in(path: str, key: str) -> str | None:
    """Return the text of a key in a file of SageMaker, or None."""
    if not Path(path).is_file():
        return None
    place = Location(path)
    found = place.mapping(read_document(path, place)).get(key)
    if not (found is None or isinstance(found, str)):
        msg = f"must be text, not {short(found)}"
        raise place.key(key).error(msg)
    return found


__getattr__ = refuse(__name__)
