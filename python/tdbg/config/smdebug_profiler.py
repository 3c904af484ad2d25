"""smdebug's ``profilerconfig.json``, as a ``ProfilerConfig``.

smdebug lower-cases the whole file, and passes the texts of its sub-configurations to
``eval``.  Here the file is JSON, and the texts are literals of Python: numbers, texts
and mappings; nothing in them is executed.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from tdbg.config.documents import Location, read_document
from tdbg.config.messages import nearest, short
from tdbg.config.profiler import ProfilerConfig, WindowConfig
from tdbg.config.text_settings import boolean

__all__ = [
    "VARIABLE",
    "named_by_environment",
    "read_file",
    "read_smdebug_profiler",
]

VARIABLE = "SMPROFILER_CONFIG_PATH"

_TOP = (
    "ProfilingParameters",
    "DisableProfiler",
    "ProfilingIntervalInMilliseconds",
    "S3OutputPath",
)
_FIELDS: Mapping[str, tuple[str, int, Callable[[Any], Any]]] = {
    "StartStep": ("start_step", 0, int),
    "NumSteps": ("num_steps", 1, int),
    "StartTimeInSecSinceEpoch": ("start_time", 0, float),
    "DurationInSeconds": ("duration", 0, float),
}
_RANGE = tuple(_FIELDS)
_DETAILED = "DetailedProfilingConfig"
_LOADERS = "DataloaderProfilingConfig"
_PYTHON = "PythonProfilingConfig"
# What its rotation of files needs: a run's shards have their own.
_OF_FILES = (
    "RotateMaxFileSizeInBytes",
    "RotateFileCloseIntervalInSeconds",
    "FileOpenFailThreshold",
)
_REFUSED = {
    "HorovodProfilingConfig": "tdbg does not record Horovod's timeline",
    "SMDataparallelProfilingConfig": "tdbg does not record SMDataParallel's timeline",
}
_PARAMETERS = (
    "ProfilerEnabled",
    "DisableProfiler",
    "LocalPath",
    *_OF_FILES,
    _DETAILED,
    _LOADERS,
    _PYTHON,
    *_REFUSED,
)
_MOST_TEXT = 4096


def read_file(path: str, name: str = "") -> ProfilerConfig:
    """Read a ``profilerconfig.json``.

    Args:
        path: The file.
        name: Names it in messages; empty: the path does.

    Raises:
        ConfigurationError: If it cannot be read, has an unknown key, or asks for what
            can never work; the message names it.
    """
    place = Location(name or path)
    document = read_document(os.path.expanduser(path), place)  # noqa: PTH111
    return read_smdebug_profiler(document, place)


def read_smdebug_profiler(document: object, place: Location) -> ProfilerConfig:
    """Return the settings of a document in the form of ``profilerconfig.json``.

    ``LocalPath`` and the settings of file rotation are checked and have no effect: a
    profile is part of its run.  Loaders are recorded at every step, whatever the range
    of ``DataloaderProfilingConfig``.

    Raises:
        ConfigurationError: If a key is unknown or a value can never work; the message
            names it.
    """
    given = _known(document, _TOP, place)
    where = place.key("ProfilingParameters")
    parameters = _known(given.get("ProfilingParameters") or {}, _PARAMETERS, where)
    if _is_off(given, place) or _is_off(parameters, where):
        return ProfilerConfig(enabled=False)
    for key, (least, kind) in {
        "RotateMaxFileSizeInBytes": (1, int),
        "RotateFileCloseIntervalInSeconds": (0, float),
        "FileOpenFailThreshold": (0, int),
    }.items():
        _number(parameters, key, where, least, kind)
    for key in ("LocalPath", "S3OutputPath"):
        value = {**given, **parameters}.get(key, "")
        if not isinstance(value, str):
            msg = f"must be text, not {short(value)}"
            raise where.key(key).error(msg)
    for key, reason in _REFUSED.items():
        if _sub(parameters, key, (*_RANGE,), where):
            msg = f"{reason}: remove it"
            raise where.key(key).error(msg)
    _loaders(_sub(parameters, _LOADERS, (*_RANGE, "MetricsRegex"), where), where)
    key = "ProfilingIntervalInMilliseconds"
    settings: dict[str, Any] = {}
    interval = _number(given, key, place, 1, float)
    if interval is not None:
        settings["system_interval"] = interval / 1000.0
    with place.inside():
        return ProfilerConfig(**settings, windows=_windows(parameters, where))


def _windows(
    parameters: Mapping[str, Any], place: Location
) -> tuple[WindowConfig, ...]:
    detailed = _sub(parameters, _DETAILED, _RANGE, place)
    python = _sub(
        parameters, _PYTHON, (*_RANGE, "ProfilerName", "cProfileTimer"), place
    )
    found: list[dict[str, Any]] = []
    if detailed:
        found.append(_range(detailed, place.key(_DETAILED)))
    if python:
        where = place.key(_PYTHON)
        window = _range(python, where)
        functions = _functions(python, where)
        if found and found[0] == window:
            found[0] = {**window, **functions}
        else:
            found.append({**window, "operators": False, **functions})
    with place.inside():
        return tuple(WindowConfig(**each) for each in found)


def _functions(given: Mapping[str, Any], place: Location) -> dict[str, Any]:
    profiler = _word(given, "ProfilerName", "cprofile", place)
    timer = _word(given, "cProfileTimer", "default", place)
    found: dict[str, Any] = {"functions": profiler, "timer": timer}
    if profiler == "pyinstrument":
        del found["timer"]  # It is cProfile's.
    with place.inside():
        WindowConfig(**found)
    return found


def _loaders(given: Mapping[str, Any], place: Location) -> None:
    where = place.key(_LOADERS)
    _range(given, where)
    expression = given.get("MetricsRegex", ".*")
    try:
        re.compile(expression, re.IGNORECASE)
    except (re.error, TypeError) as error:
        msg = f"{short(expression)} is no regular expression: {error}"
        raise where.key("MetricsRegex").error(msg) from error


def _range(given: Mapping[str, Any], place: Location) -> dict[str, Any]:
    """Return when a window begins and how long it is, checked."""
    found = {}
    for key, (name, least, kind) in _FIELDS.items():
        number = _number(given, key, place, least, kind)
        if number is not None:
            found[name] = number
    with place.inside():
        WindowConfig(**found)
    return found


def _sub(
    parameters: Mapping[str, Any], key: str, known: tuple[str, ...], place: Location
) -> Mapping[str, Any]:
    """Return a sub-configuration: a mapping, or the text of a literal of one."""
    value = parameters.get(key) or {}
    where = place.key(key)
    if isinstance(value, str):
        value = _literal(value, where) if value.strip() else {}
    return _known(value, known, where)


def _literal(text: str, place: Location) -> object:
    if len(text) > _MOST_TEXT:
        msg = f"must be at most {_MOST_TEXT} characters, not {len(text):,}"
        raise place.error(msg)
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        msg = f"must be a mapping such as {{'StartStep': 5}}, not {short(text)}"
        raise place.error(msg) from error


def _known(value: object, known: tuple[str, ...], place: Location) -> dict[str, Any]:
    """Return a mapping by the *known* keys, whatever their upper and lower case."""
    given = place.mapping(value)
    names = {name.lower(): name for name in known}
    found: dict[str, Any] = {}
    for key, each in given.items():
        name = names.get(key.lower())
        if name is None:
            msg = f"unknown key {short(key)}; {nearest(key, known)}"
            raise place.error(msg)
        if name in found:
            msg = f"the key {name!r} appears twice"
            raise place.error(msg)
        found[name] = each
    return found


def _is_off(given: Mapping[str, Any], place: Location) -> bool:
    off = boolean(given.get("DisableProfiler", False), place.key("DisableProfiler"))
    on = boolean(given.get("ProfilerEnabled", True), place.key("ProfilerEnabled"))
    return off or not on


def _number(
    given: Mapping[str, Any],
    key: str,
    place: Location,
    least: int,
    kind: Callable[[Any], Any],
) -> Any:
    """Return a number, or the number in a text; None if there is none."""
    value = given.get(key)
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise ValueError
        number = kind(value)
        if number < least or (not isinstance(value, str | int) and number != value):
            raise ValueError
    except (ValueError, TypeError, OverflowError) as error:
        msg = f"must be a number of at least {least}, not {short(value)}"
        raise place.key(key).error(msg) from error
    return number


def _word(given: Mapping[str, Any], key: str, default: str, place: Location) -> str:
    value = given.get(key, default)
    if not isinstance(value, str):
        msg = f"must be text, not {short(value)}"
        raise place.key(key).error(msg)
    return value.strip().lower()


def named_by_environment() -> ProfilerConfig | None:
    """Return the settings of the file that the environment names; None: it does not.

    Raises:
        ConfigurationError: If it cannot be read, or can never work.
    """
    path = os.environ.get(VARIABLE)
    return read_file(path, f"{path} ({VARIABLE})") if path else None
