"""A file written for smdebug: its keys, all values text, lists with commas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tdbg.collections import Collection
from tdbg.config import SaveConfig
from tdbg.settings import parameters as text
from tdbg.settings.collection_config import make_collection
from tdbg.settings.hook_config import HookConfig
from tdbg.settings.place import Place, short

__all__ = ["is_for_smdebug", "read_smdebug"]

_PATHS = ("LocalPath", "S3Path", "S3OutputPath")
_PARAMETERS = "HookParameters"
_COLLECTIONS = "CollectionConfigurations"
_KEYS = (*_PATHS, _PARAMETERS, _COLLECTIONS)
_NAME, _OF_COLLECTION = "CollectionName", "CollectionParameters"
_HOOK_KEYS = (
    *text.COMMON_KEYS,
    "save_all",
    "include_workers",
    "export_tensorboard",
    "tensorboard_dir",
    "dry_run",
)


def is_for_smdebug(document: object) -> bool:
    """Whether a file was written for smdebug: any of its keys says so."""
    return isinstance(document, Mapping) and not document.keys().isdisjoint(_KEYS)


def read_smdebug(document: object, place: Place) -> dict[str, Any]:
    """The settings that it gives, by the names of the hook's arguments.

    Where it gives no ``save_interval``, that is smdebug's 500, for statistics too:
    smdebug knows one interval.  What lies in ``LocalPath`` is what SageMaker sends to
    ``S3Path``, which is not used.

    Raises:
        ConfigurationError: If a key is unknown or a value can never work; names it.
    """
    given = {
        key: value
        for key, value in place.mapping(document, _KEYS).items()
        if value is not None
    }
    found = _hook(given.get(_PARAMETERS, {}), place.key(_PARAMETERS))
    for key in _PATHS:
        if not isinstance(given.get(key, ""), str):
            msg = f"must be text, not {short(given[key])}"
            raise place.key(key).error(msg)
    if "LocalPath" in given:
        found["out_dir"] = given["LocalPath"]
    listed = given.get(_COLLECTIONS, [])
    where = place.key(_COLLECTIONS)
    if not isinstance(listed, list):
        msg = f"must be a list, not {short(listed)}"
        raise where.error(msg)
    found["collections"] = list(_collections(listed, where, found["save_config"]))
    with place.inside():
        HookConfig(**found)  # Checks the rest, and names the settings itself.
    return found


def _hook(value: object, place: Place) -> dict[str, Any]:
    given = place.mapping(value, _HOOK_KEYS)
    found: dict[str, Any] = {}
    for key in ("save_all", "dry_run", "export_tensorboard"):
        if key in given:
            found[key] = text.boolean(given[key], place.key(key))
    if "include_regex" in given:
        found["include_regex"] = text.texts(
            given["include_regex"], place.key("include_regex")
        )
    if "include_workers" in given:
        words = text.texts(given["include_workers"], place.key("include_workers"))
        if words and all(word.isdecimal() for word in words):
            found["include_workers"] = [int(word) for word in words]
        else:
            found["include_workers"] = ",".join(words)
    if "tensorboard_dir" in given:
        found["tensorboard_dir"] = given["tensorboard_dir"]
    every = SaveConfig(statistics_interval=500)
    found["save_config"] = text.save_config(given, place, every) or every
    reductions = text.reduction_config(given, place)
    if reductions is not None:
        found["reduction_config"] = reductions
    with place.inside():
        HookConfig(**found)  # Checks the rest, and names the settings itself.
    return found


def _collections(
    listed: list[object], place: Place, hook: SaveConfig
) -> Iterable[Collection]:
    seen = set()
    for index, value in enumerate(listed):
        here = place.item(index)
        given = here.mapping(value, (_NAME, _OF_COLLECTION))
        if _NAME not in given:
            msg = f"must have a {_NAME!r}"
            raise here.error(msg)
        with here.key(_NAME).inside():
            Collection(given[_NAME])
        if given[_NAME] in seen:
            msg = f"{short(given[_NAME])} stands twice"
            raise here.key(_NAME).error(msg)
        seen.add(given[_NAME])
        parameters = given.get(_OF_COLLECTION)
        yield make_collection(
            given[_NAME],
            {} if parameters is None else parameters,
            hook,
            here.key(_OF_COLLECTION),
        )
