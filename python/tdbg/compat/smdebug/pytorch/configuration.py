"""Reads the settings of a hook from smdebug's JSON files."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tdbg.compat.smdebug.core.config_constants import (
    CONFIG_FILE_PATH_ENV_STR,
    DEFAULT_CONFIG_FILE_PATH,
    DEFAULT_SAGEMAKER_OUTDIR,
    DEFAULT_SAGEMAKER_TENSORBOARD_PATH,
    TENSORBOARD_CONFIG_FILE_PATH_ENV_STR,
)
from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.core.save_config import SaveConfig
from tdbg.config import Collection, HookConfig, read_config
from tdbg.config.documents import Location, read_document
from tdbg.config.files import SMDEBUG_HOOK_KEYS, SMDEBUG_KEYS, is_for_smdebug
from tdbg.config.messages import nearest, short
from tdbg.config.text_settings import COLLECTION_KEYS, make_collection

__all__ = ["read_settings"]


_PARAMETERS, _COLLECTIONS = "HookParameters", "CollectionConfigurations"
_NAME, _OF_COLLECTION = "CollectionName", "CollectionParameters"
_OWN_KEYS = frozenset(item.name for item in dataclasses.fields(HookConfig))
_log = logging.getLogger("tdbg")


def read_settings(
    path: str | os.PathLike[str] | None,
) -> tuple[dict[str, Any], list[Collection]]:
    """Read the arguments of a hook, and its collections in their order.

    A file in smdebug's form is read as smdebug reads it: keys that it does not know
    are ignored, with a warning; a collection may stand twice, or select nothing so far.

    Args:
        path: The file; None: the one that ``SMDEBUG_CONFIG_FILE_PATH`` names.

    Raises:
        FileNotFoundError: If there is no such file.
        ConfigurationError: If a setting can never work.
    """
    if path is None:
        path = os.environ.get(CONFIG_FILE_PATH_ENV_STR) or DEFAULT_CONFIG_FILE_PATH
    if not Path(path).expanduser().exists():
        msg = f"no file of settings: {os.fspath(path)}"
        raise FileNotFoundError(msg)
    form = _SmdebugForm()
    config = read_config(path, form.prepare)
    saved, reduced = config.save_config, config.reduction_config
    collections: list[Any] = [*config.collections, *form.collections(saved)]
    names = [*config.include_collections, *(item.name for item in collections)]
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


class _SmdebugForm:
    """A document in smdebug's form, with smdebug's tolerance.

    What smdebug ignores is taken out of the document before tdbg reads it, which
    refuses what it does not know.
    """

    def __init__(self) -> None:
        self._listed: object = None
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
                    f"{short(made.name)} stands twice: expressions are added up, of "
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
    """The directory of the run where no ``LocalPath`` names one.

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


def _of_sagemaker() -> str | None:
    """The directory of TensorBoard's files that SageMaker asks for, or None."""
    path = (
        os.environ.get(TENSORBOARD_CONFIG_FILE_PATH_ENV_STR)
        or DEFAULT_SAGEMAKER_TENSORBOARD_PATH
    )
    if not Path(path).is_file():
        return None
    place = Location(path)
    found = place.mapping(read_document(path, place)).get("LocalPath")
    if not (found is None or isinstance(found, str)):
        msg = f"must be text, not {short(found)}"
        raise place.key("LocalPath").error(msg)
    return found
