"""Where settings come from, and which of them holds.

An argument beats a variable of its own (``TDBG_OUT``, ``TDBG_BUDGET``,
``TDBG_RULES``), that a file, and that the defaults.  A setting is taken whole from
one of them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from tdbg.capture.budget import VARIABLE as BUDGET_VARIABLE
from tdbg.config import nearest
from tdbg.errors import ConfigurationError
from tdbg.settings.documents import read_document
from tdbg.settings.hook_config import HookConfig
from tdbg.settings.own_format import read_own
from tdbg.settings.parameters import texts
from tdbg.settings.place import Place, Placed
from tdbg.settings.smdebug_format import is_for_smdebug, read_smdebug

__all__ = ["names_file", "names_run", "read_config", "resolve"]

CONFIG_VARIABLE = "TDBG_CONFIG"
OUT_VARIABLE = "TDBG_OUT"
RULES_VARIABLE = "TDBG_RULES"
SMDEBUG_VARIABLE = "SMDEBUG_CONFIG_FILE_PATH"


def resolve(
    given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> HookConfig:
    """The settings of a hook that was given these arguments.

    The file is that of ``TDBG_CONFIG``, if the variable is set.

    Args:
        given: Arguments; None stands for one that was not given.
        defaults: What holds where nothing else says anything.

    Raises:
        ConfigurationError: If a setting can never work.
    """
    known = [item.name for item in dataclasses.fields(HookConfig)]
    for name in given:
        if name not in known:
            msg = f"no argument {name!r}; {nearest(name, known)}"
            raise ConfigurationError(msg)
    path = os.environ.get(CONFIG_VARIABLE)
    from_file = _read(path, f"{path} ({CONFIG_VARIABLE})") if path else {}
    return _combine(defaults or {}, from_file, given)


def read_config(path: str | os.PathLike[str] | None = None) -> HookConfig:
    """The settings of a file, and what the environment adds.

    Args:
        path: The file; None: that of ``TDBG_CONFIG`` or, without one, that of
            ``SMDEBUG_CONFIG_FILE_PATH``.

    Raises:
        ConfigurationError: If there is none, it cannot be read, or a setting can
            never work.
    """
    if path is not None:
        return _combine({}, _read(path, os.fsdecode(path)), {})
    for variable in (CONFIG_VARIABLE, SMDEBUG_VARIABLE):
        named = os.environ.get(variable)
        if named:
            return _combine({}, _read(named, f"{named} ({variable})"), {})
    msg = (
        f"no file of settings: give its path, or set {CONFIG_VARIABLE} "
        f"or {SMDEBUG_VARIABLE}"
    )
    raise ConfigurationError(msg)


def names_file() -> bool:
    """Whether the environment names a file of settings."""
    return any(os.environ.get(name) for name in (CONFIG_VARIABLE, SMDEBUG_VARIABLE))


def names_run() -> bool:
    """Whether the environment says where a run is to be."""
    return bool(os.environ.get(OUT_VARIABLE))


def _combine(
    defaults: Mapping[str, Any], from_file: dict[str, Any], given: Mapping[str, Any]
) -> HookConfig:
    if os.environ.get(OUT_VARIABLE):
        from_file = {**from_file, "out_dir": os.environ[OUT_VARIABLE]}
    place = Place(RULES_VARIABLE)
    named = texts(os.environ.get(RULES_VARIABLE, ""), place)
    if named:
        from_file = {**from_file, "rules": [Placed(name, place) for name in named]}
    if os.environ.get(BUDGET_VARIABLE, "").strip():
        from_file.pop("budget", None)  # The variable is read where there is none.
    said = {name: value for name, value in given.items() if value is not None}
    return HookConfig(**{**defaults, **from_file, **said})


def _read(path: str | os.PathLike[str], name: str) -> dict[str, Any]:
    place = Place(name)
    document = read_document(os.path.expanduser(path), place)  # noqa: PTH111
    if document is None:
        return {}  # An empty file, or one of comments.
    read = read_smdebug if is_for_smdebug(document) else read_own
    return read(document, place)
