"""Settings as flat keys with text values, as smdebug's files have them.

    {"save_interval": "100", "eval.save_interval": "1", "reductions": "mean,l2_norm"}

A list is text with commas.  The commas of a regular expression, those within
brackets or behind a backslash, do not separate: ``a{1,3},b`` is ``a{1,3}`` and ``b``.
A value may also be what JSON has for it: a list, a number, true.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from tdbg.config import (
    NORMS,
    REDUCTIONS,
    ReductionConfig,
    SaveConfig,
    SaveConfigMode,
    nearest,
)
from tdbg.modes import ModeKeys
from tdbg.settings.place import Place, short

__all__ = [
    "COMMON_KEYS",
    "boolean",
    "reduction_config",
    "save_config",
    "texts",
]

_SCHEDULE_KEYS = tuple(item.name for item in dataclasses.fields(SaveConfigMode))
_REDUCTION_KEYS = ("reductions", "save_raw_tensor", "save_shape")
_MODES = {mode.name.lower(): mode for mode in ModeKeys}

COMMON_KEYS: tuple[str, ...] = (
    "include_regex",
    *_REDUCTION_KEYS,
    *_SCHEDULE_KEYS,
    *(f"{mode}.{key}" for mode in _MODES for key in _SCHEDULE_KEYS),
)
"""Keys that hooks and collections both have."""

# By the names that smdebug has for them, with the field that they stand in.
_REDUCTIONS = {
    **{name: ("reductions", name) for name in REDUCTIONS},
    **{f"abs_{name}": ("abs_reductions", name) for name in REDUCTIONS},
    **{f"{name}_norm": ("norms", name) for name in NORMS},
    **{f"abs_{name}_norm": ("abs_norms", name) for name in NORMS},
    # As smdebug's documentation has them, and its code has not.
    **{name: ("norms", name) for name in NORMS},
    **{f"abs_{name}": ("abs_norms", name) for name in NORMS},
}


def boolean(value: object, place: Place) -> bool:
    """True or false, or the text of either."""
    words = {"true": True, "false": False}
    found = words.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        msg = f'must be "true" or "false", not {short(value)}'
        raise place.error(msg)
    return found


def texts(value: object, place: Place) -> list[str]:
    """The items of a list, as they are, or of text with commas."""
    if isinstance(value, str):
        return [item for item in map(str.strip, _split(value)) if item]
    if isinstance(value, int) and not isinstance(value, bool):
        return [str(value)]
    if not isinstance(value, list | tuple):
        msg = f"must be text or a list, not {short(value)}"
        raise place.error(msg)
    for index, item in enumerate(value):
        if not isinstance(item, str | int) or isinstance(item, bool):
            msg = f"must be text, not {short(item)}"
            raise place.item(index).error(msg)
    return [str(item) for item in value]


def reduction_config(
    parameters: Mapping[str, Any], place: Place
) -> ReductionConfig | None:
    """What is saved; None where none of its keys is there."""
    if not any(key in parameters for key in _REDUCTION_KEYS):
        return None
    fields: dict[str, Any] = {}
    where = place.key("reductions")
    for name in texts(parameters.get("reductions", []), where):
        if name not in _REDUCTIONS:
            msg = f"unknown {short(name)}; {nearest(name, _REDUCTIONS)}"
            raise where.error(msg)
        field, reduction = _REDUCTIONS[name]
        fields[field] = (*fields.get(field, ()), reduction)
    for key in ("save_raw_tensor", "save_shape"):
        if key in parameters:
            fields[key] = boolean(parameters[key], place.key(key))
    return ReductionConfig(**fields)


def save_config(
    parameters: Mapping[str, Any], place: Place, hook: SaveConfig | None
) -> SaveConfig | None:
    """The schedules; None where none of their keys is there.

    A mode follows its own keys, then those without a mode, then the hook.  Where
    ``save_interval`` is given and ``statistics_interval`` is not, both are alike,
    as smdebug knows only one.

    Args:
        parameters: Of the hook or collection.
        place: Where they stand.
        hook: What holds for the hook; None: the defaults.
    """
    common = _schedule(parameters, place, "")
    of_modes = {
        mode: _schedule(parameters, place, f"{name}.") for name, mode in _MODES.items()
    }
    if not common and not any(of_modes.values()):
        return None
    inherited = hook or SaveConfig()
    base = dataclasses.replace(inherited.base, **common)
    modes = {}
    if inherited.modes or any(of_modes.values()):
        modes = {
            mode: dataclasses.replace(inherited.of(mode), **{**common, **own})
            for mode, own in of_modes.items()
        }
    return SaveConfig(modes, **{key: getattr(base, key) for key in _SCHEDULE_KEYS})


def _schedule(
    parameters: Mapping[str, Any], place: Place, prefix: str
) -> dict[str, Any]:
    """The fields of a schedule whose keys begin with *prefix*."""
    found: dict[str, Any] = {}
    for key in _SCHEDULE_KEYS:
        if f"{prefix}{key}" not in parameters:
            continue
        where = place.key(f"{prefix}{key}")
        value = parameters[f"{prefix}{key}"]
        if key == "save_steps":
            value = texts(value, where)
        elif isinstance(value, str):
            value = value.strip()
        with where.inside():
            # The value by itself, so that a message names its key and no other.
            found[key] = getattr(SaveConfigMode(**{key: value}), key)
    if "save_interval" in found:
        found.setdefault("statistics_interval", found["save_interval"])
    return found


def _split(text: str) -> Iterable[str]:
    """At the commas that stand outside of brackets and behind no backslash."""
    depth, start, i = 0, 0, 0
    while i < len(text):
        letter = text[i]
        if letter == "\\":
            i += 1
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth = max(depth - 1, 0)
        elif letter == "," and depth == 0:
            yield text[start:i]
            start = i + 1
        i += 1
    yield text[start:]
