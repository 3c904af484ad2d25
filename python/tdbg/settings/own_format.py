"""A file in tdbg's own format: the arguments of the hook, as YAML or JSON.

Text is taken as it is: one regular expression is one, whatever commas it has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from tdbg.collections import Collection
from tdbg.config import ReductionConfig, SaveConfig, SaveConfigMode, nearest
from tdbg.modes import ModeKeys
from tdbg.settings.hook_config import HookConfig
from tdbg.settings.place import Place, Placed, short

__all__ = ["read_own"]

_SETTINGS = tuple(item.name for item in dataclasses.fields(HookConfig))
_SCHEDULE = tuple(item.name for item in dataclasses.fields(SaveConfigMode))
_REDUCTION = tuple(item.name for item in dataclasses.fields(ReductionConfig))
_COLLECTION = ("include_regex", "save_config", "reduction_config", "save_histogram")
_MODES = {mode.name.lower(): mode for mode in ModeKeys}
_LISTS = ("include_collections", "include_regex")


def read_own(document: object, place: Place) -> dict[str, Any]:
    """The settings that it gives; a key without a value is as good as left out.

    Raises:
        ConfigurationError: If a key is unknown or a value can never work; names it.
    """
    given = _given(place.mapping(document, _SETTINGS))
    found: dict[str, Any] = {}
    for name, value in given.items():
        where = place.key(name)
        if name == "save_config":
            found[name] = _save_config(value, where)
        elif name == "reduction_config":
            found[name] = _reduction_config(value, where)
        elif name == "collections":
            found[name] = list(_collections(value, where))
        elif name == "rules":
            found[name] = list(_rules(value, where))
        elif name in _LISTS:
            found[name] = list(_texts(value, where))
        else:
            found[name] = value
    with place.inside():
        HookConfig(**found)  # Checks the rest, and names the settings itself.
    return found


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _texts(value: object, place: Place) -> Iterable[str]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        msg = f"must be text or a list of texts, not {short(value)}"
        raise place.error(msg)
    for index, item in enumerate(value):
        if not isinstance(item, str):
            msg = f"must be text, not {short(item)}"
            raise place.item(index).error(msg)
        yield item


def _rules(value: object, place: Place) -> Iterable[Placed]:
    """Names, or mappings of a name and parameters."""
    for index, item in enumerate(value if isinstance(value, list) else [value]):
        here = place.item(index) if isinstance(value, list) else place
        if isinstance(item, str):
            yield Placed(item, here)
            continue
        if not isinstance(item, Mapping):
            msg = f"must be the name of a rule, or a mapping, not {short(item)}"
            raise here.error(msg)
        parameters = here.mapping(item)
        if not isinstance(parameters.get("name"), str):
            msg = f"needs the rule's name: {{name: DeadRelu}}, not {short(item)}"
            raise here.error(msg)
        yield Placed(parameters, here)


def _save_config(value: object, place: Place) -> SaveConfig:
    given = _given(place.mapping(value, (*_SCHEDULE, "modes")))
    where = place.key("modes")
    named = where.mapping(given.pop("modes", {}))
    with place.inside():
        SaveConfig(**given)
    modes = {}
    for name, fields in named.items():
        mode = _MODES.get(name.lower())
        if mode is None:
            msg = f"unknown mode {short(name)}; {nearest(name, _MODES)}"
            raise where.error(msg)
        here = where.key(name)
        own = _given(here.mapping(fields, _SCHEDULE))
        with here.inside():
            modes[mode] = SaveConfigMode(**{**given, **own})
    return SaveConfig(modes, **given)


def _reduction_config(value: object, place: Place) -> ReductionConfig:
    given = _given(place.mapping(value, _REDUCTION))
    for name in ("save_raw_tensor", "save_shape"):
        if not isinstance(given.get(name, False), bool):
            text = f"must be true or false, not {short(given[name])}"
            raise place.key(name).error(text)
    with place.inside():
        return ReductionConfig(**given)


def _collections(value: object, place: Place) -> Iterable[Collection]:
    for name, settings in place.mapping(value).items():
        here = place.key(name)
        given = _given(here.mapping({} if settings is None else settings, _COLLECTION))
        with here.inside():
            collection = Collection(name, save_histogram=given.get("save_histogram"))
        if "include_regex" in given:
            where = here.key("include_regex")
            patterns = list(_texts(given["include_regex"], where))
            with where.inside():
                collection.include(patterns)
        if "save_config" in given:
            schedules = _save_config(given["save_config"], here.key("save_config"))
            collection.save_config = schedules
        if "reduction_config" in given:
            where = here.key("reduction_config")
            collection.reduction_config = _reduction_config(
                given["reduction_config"], where
            )
        with here.inside():
            collection.check()
        yield collection
