"""Settings from arguments, the environment and files, and their precedence.

An argument takes precedence over a variable of the environment (``TDBG_OUT``,
``TDBG_BUDGET``, ``TDBG_PROBES``, ``TDBG_PROFILER``, ``TDBG_RETENTION``,
``TDBG_RULES``), the variable over a file, the file over the defaults.  Settings are
never merged: each one is taken whole from one source.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tdbg.config import text_settings as text
from tdbg.config.collections import Collection
from tdbg.config.documents import Located, Location, read_document
from tdbg.config.hook_config import HookConfig
from tdbg.config.messages import check_known, nearest, short
from tdbg.config.options import PROBES_VARIABLE, parse_probes
from tdbg.config.options import VARIABLE as BUDGET_VARIABLE
from tdbg.config.profiler import VARIABLE as PROFILER_VARIABLE
from tdbg.config.profiler import ProfilerConfig, WindowConfig
from tdbg.config.retention import VARIABLE as RETENTION_VARIABLE
from tdbg.config.retention import Retention
from tdbg.config.schedules import (
    SAVE_INTERVAL,
    ReductionConfig,
    SaveConfig,
    SaveConfigMode,
)
from tdbg.config.smdebug_profiler import named_by_environment
from tdbg.config.text_settings import make_collection, texts
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys

__all__ = [
    "SMDEBUG_HOOK_KEYS",
    "SMDEBUG_KEYS",
    "is_for_smdebug",
    "names_file",
    "names_run",
    "read_config",
    "read_own",
    "read_smdebug",
    "resolve",
]


_SETTINGS = tuple(item.name for item in dataclasses.fields(HookConfig))
_SCHEDULE = tuple(item.name for item in dataclasses.fields(SaveConfigMode))
_REDUCTION = tuple(item.name for item in dataclasses.fields(ReductionConfig))
_COLLECTION = ("include_regex", "save_config", "reduction_config", "save_histogram")
_PROFILER = tuple(item.name for item in dataclasses.fields(ProfilerConfig))
_RETENTION = tuple(item.name for item in dataclasses.fields(Retention))
_WINDOW = tuple(item.name for item in dataclasses.fields(WindowConfig))
_MODES = {mode.name.lower(): mode for mode in ModeKeys}
_LISTS = ("include_collections", "include_regex")


def read_own(document: object, place: Location) -> dict[str, Any]:
    """Return the settings of a document in tdbg's form, in which null means nothing.

    Raises:
        ConfigurationError: If a key is unknown or a value can never work; the message
            names it.
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
        elif name == "retention":
            found[name] = _retention(value, where)
        elif name == "profiler":
            found[name] = _profiler(value, where)
        elif name in _LISTS:
            found[name] = list(_texts(value, where))
        else:
            found[name] = value
    with place.inside():
        HookConfig(**found)  # Checks the rest, and names the settings itself.
    return found


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _texts(value: object, place: Location) -> Iterable[str]:
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


def _rules(value: object, place: Location) -> Iterable[Located]:
    """Check names, and mappings of a name and parameters."""
    for index, item in enumerate(value if isinstance(value, list) else [value]):
        here = place.item(index) if isinstance(value, list) else place
        if isinstance(item, str):
            yield Located(item, here)
            continue
        if not isinstance(item, Mapping):
            msg = f"must be the name of a rule, or a mapping, not {short(item)}"
            raise here.error(msg)
        parameters = here.mapping(item)
        if not isinstance(parameters.get("name"), str):
            msg = f"needs the rule's name: {{name: DeadRelu}}, not {short(item)}"
            raise here.error(msg)
        yield Located(parameters, here)


def _save_config(value: object, place: Location) -> SaveConfig:
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


def _reduction_config(value: object, place: Location) -> ReductionConfig:
    given = _given(place.mapping(value, _REDUCTION))
    for name in ("save_raw_tensor", "save_shape"):
        if not isinstance(given.get(name, False), bool):
            msg = f"must be true or false, not {short(given[name])}"
            raise place.key(name).error(msg)
    with place.inside():
        return ReductionConfig(**given)


def _retention(value: object, place: Location) -> Retention | None:
    if isinstance(value, Mapping):
        value = _given(place.mapping(value, _RETENTION))
    with place.inside():
        return Retention.of(value)


def _profiler(value: object, place: Location) -> ProfilerConfig:
    if not isinstance(value, Mapping):
        with place.inside():
            return ProfilerConfig.of(value)
    given = _given(place.mapping(value, _PROFILER))
    where = place.key("windows")
    listed = given.pop("windows", [])
    windows = []
    for index, each in enumerate(listed if isinstance(listed, list) else [listed]):
        here = where.item(index) if isinstance(listed, list) else where
        fields = _given(here.mapping(each, _WINDOW))
        with here.inside():
            windows.append(WindowConfig(**fields))
    with place.inside():
        return ProfilerConfig(**given, windows=tuple(windows))


def _collections(value: object, place: Location) -> Iterable[Collection]:
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


_PATHS = ("LocalPath", "S3Path", "S3OutputPath")
_PARAMETERS = "HookParameters"
_COLLECTIONS = "CollectionConfigurations"
_NAME, _OF_COLLECTION = "CollectionName", "CollectionParameters"
SMDEBUG_KEYS = (*_PATHS, _PARAMETERS, _COLLECTIONS)
"""Keys of a document in smdebug's form."""
SMDEBUG_HOOK_KEYS = (
    *text.COMMON_KEYS,
    "save_all",
    "include_workers",
    "export_tensorboard",
    "tensorboard_dir",
    "dry_run",
)
"""Keys of its ``HookParameters``."""


def is_for_smdebug(document: object) -> bool:
    """Return whether a document has a key of smdebug's form."""
    return isinstance(document, Mapping) and not document.keys().isdisjoint(
        SMDEBUG_KEYS
    )


def read_smdebug(document: object, place: Location) -> dict[str, Any]:
    """Return the settings of a document in smdebug's form, as arguments of a hook.

    ``save_interval`` has tdbg's default, for statistics too: smdebug has one interval.
    ``S3Path`` is ignored: SageMaker copies ``LocalPath`` there.

    Raises:
        ConfigurationError: If a key is unknown or a value can never work; the message
            names it.
    """
    given = _given(place.mapping(document, SMDEBUG_KEYS))
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
    found["collections"] = list(
        _smdebug_collections(listed, where, found["save_config"])
    )
    with place.inside():
        HookConfig(**found)  # Checks the rest, and names the settings itself.
    return found


def _hook(value: object, place: Location) -> dict[str, Any]:
    given = place.mapping(value, SMDEBUG_HOOK_KEYS)
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
    every = SaveConfig(statistics_interval=SAVE_INTERVAL)
    found["save_config"] = text.save_config(given, place, every) or every
    reductions = text.reduction_config(given, place)
    if reductions is not None:
        found["reduction_config"] = reductions
    with place.inside():
        HookConfig(**found)  # Checks the rest, and names the settings itself.
    return found


def _smdebug_collections(
    listed: list[object], place: Location, hook: SaveConfig
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
            msg = f"{short(given[_NAME])} appears twice"
            raise here.key(_NAME).error(msg)
        seen.add(given[_NAME])
        parameters = given.get(_OF_COLLECTION)
        yield make_collection(
            given[_NAME],
            {} if parameters is None else parameters,
            hook,
            here.key(_OF_COLLECTION),
        )


CONFIG_VARIABLE = "TDBG_CONFIG"
OUT_VARIABLE = "TDBG_OUT"
RULES_VARIABLE = "TDBG_RULES"
SMDEBUG_VARIABLE = "SMDEBUG_CONFIG_FILE_PATH"


def resolve(
    given: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
    path: str | None = None,
) -> HookConfig:
    """Combine the arguments of a hook with the environment and the file.

    Args:
        given: Arguments of the hook; None: the argument was not given.
        defaults: Settings that apply where no source has one.
        path: The file; None: the one that ``TDBG_CONFIG`` names, if it is set.

    Raises:
        ConfigurationError: If a setting can never work.
    """
    check_known(given, _SETTINGS, "no argument")
    if path is not None:
        return _combine(defaults or {}, _read(path, path), given)
    named = os.environ.get(CONFIG_VARIABLE)
    from_file = _read(named, f"{named} ({CONFIG_VARIABLE})") if named else {}
    return _combine(defaults or {}, from_file, given)


def read_config(
    path: str | os.PathLike[str] | None = None,
    prepare: Callable[[object, Location], object] | None = None,
) -> HookConfig:
    """Combine the settings of a file with those of the environment.

    Args:
        path: The file; None: the one that ``TDBG_CONFIG`` names or, without it,
            ``SMDEBUG_CONFIG_FILE_PATH``.
        prepare: Called with the document of the file at *path* and its place; returns
            the document to read instead.

    Raises:
        ConfigurationError: If there is no file, it cannot be read, or a setting can
            never work.
    """
    if path is not None:
        return _combine({}, _read(path, os.fsdecode(path), prepare), {})
    for variable in (CONFIG_VARIABLE, SMDEBUG_VARIABLE):
        named = os.environ.get(variable)
        if named:
            return _combine({}, _read(named, f"{named} ({variable})"), {})
    msg = (
        f"no settings file: pass its path, or set {CONFIG_VARIABLE} "
        f"or {SMDEBUG_VARIABLE}"
    )
    raise ConfigurationError(msg)


def names_file() -> bool:
    """Return whether the environment names a file of settings."""
    return any(os.environ.get(name) for name in (CONFIG_VARIABLE, SMDEBUG_VARIABLE))


def names_run() -> bool:
    """Return whether the environment names the directory of the run."""
    return bool(os.environ.get(OUT_VARIABLE))


def _combine(
    defaults: Mapping[str, Any], from_file: dict[str, Any], given: Mapping[str, Any]
) -> HookConfig:
    if os.environ.get(OUT_VARIABLE):
        from_file = {**from_file, "out_dir": os.environ[OUT_VARIABLE]}
    place = Location(RULES_VARIABLE)
    named = texts(os.environ.get(RULES_VARIABLE, ""), place)
    if named:
        from_file = {**from_file, "rules": [Located(name, place) for name in named]}
    if kept := os.environ.get(RETENTION_VARIABLE, "").strip():
        with Location(RETENTION_VARIABLE).inside():
            from_file = {**from_file, "retention": Retention.of(kept)}
    if os.environ.get(BUDGET_VARIABLE, "").strip():
        # The variable is read where there is none.
        defaults, from_file = (
            {**each, "budget": None} for each in (defaults, from_file)
        )
    if os.environ.get(PROBES_VARIABLE, "").strip():
        from_file = {**from_file, "probes": parse_probes(None)}
    arguments = {name: value for name, value in given.items() if value is not None}
    if "profiler" not in arguments:
        from_file = _with_profiler(from_file)
    return HookConfig(**{**defaults, **from_file, **arguments})


def _with_profiler(from_file: dict[str, Any]) -> dict[str, Any]:
    """Add what variables say about the profiler; smdebug's has the last word."""
    text = os.environ.get(PROFILER_VARIABLE, "").strip()
    if text:
        with Location(PROFILER_VARIABLE).inside():
            return {**from_file, "profiler": ProfilerConfig.of(text)}
    if "profiler" not in from_file:
        named = named_by_environment()
        if named is not None:
            return {**from_file, "profiler": named}
    return from_file


def _read(
    path: str | os.PathLike[str],
    name: str,
    prepare: Callable[[object, Location], object] | None = None,
) -> dict[str, Any]:
    place = Location(name)
    document = read_document(os.path.expanduser(path), place)  # noqa: PTH111
    if prepare is not None:
        document = prepare(document, place)
    if document is None:
        return {}  # An empty file, or one of comments.
    read = read_smdebug if is_for_smdebug(document) else read_own
    return read(document, place)
