"""``CollectionConfig``: collections in the form of smdebug's configurations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tdbg.config.collections import Collection
from tdbg.config.documents import Location
from tdbg.config.messages import nearest, short
from tdbg.config.schedules import (
    NORMS,
    REDUCTIONS,
    ReductionConfig,
    SaveConfig,
    SaveConfigMode,
)
from tdbg.modes import ModeKeys

__all__ = [
    "COLLECTION_KEYS",
    "COMMON_KEYS",
    "CollectionConfig",
    "boolean",
    "make_collection",
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

# By smdebug's name of a reduction: the field of ReductionConfig, and the name there.
_REDUCTIONS = {
    **{name: ("reductions", name) for name in REDUCTIONS},
    **{f"abs_{name}": ("abs_reductions", name) for name in REDUCTIONS},
    **{f"{name}_norm": ("norms", name) for name in NORMS},
    **{f"abs_{name}_norm": ("abs_norms", name) for name in NORMS},
    # Names that smdebug's documentation has, but not its code.
    **{name: ("norms", name) for name in NORMS},
    **{f"abs_{name}": ("abs_norms", name) for name in NORMS},
}


def boolean(value: object, place: Location) -> bool:
    """Parse a bool, or the text of one."""
    words = {"true": True, "false": False}
    found = words.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        msg = f'must be "true" or "false", not {short(value)}'
        raise place.error(msg)
    return found


def texts(value: object, place: Location) -> list[str]:
    """Return the items of a list, or of text with commas."""
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
    parameters: Mapping[str, Any], place: Location
) -> ReductionConfig | None:
    """Parse what is saved; None if *parameters* has none of its keys."""
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
    parameters: Mapping[str, Any], place: Location, hook: SaveConfig | None
) -> SaveConfig | None:
    """Parse the schedules; None if *parameters* has none of their keys.

    A mode follows its own keys, then those without a mode, then the hook.  A
    ``save_interval`` without a ``statistics_interval`` sets both, as smdebug has only
    one.

    Args:
        parameters: Parameters of the hook or collection.
        place: Their place, for messages.
        hook: The schedules of the hook; None: the defaults.
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
    parameters: Mapping[str, Any], place: Location, prefix: str
) -> dict[str, Any]:
    """Return the fields of a schedule whose keys begin with *prefix*."""
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
            # Checked alone, so that a message names this key.
            found[key] = getattr(SaveConfigMode(**{key: value}), key)
    if "save_interval" in found:
        found.setdefault("statistics_interval", found["save_interval"])
    return found


def _split(text: str) -> Iterable[str]:
    """Split at commas that are outside of brackets and not behind a backslash."""
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


COLLECTION_KEYS = (*COMMON_KEYS, "save_histogram")
"""Keys of a collection."""


@dataclass(frozen=True, slots=True)
class CollectionConfig:
    """A collection by its name and parameters of text.

        CollectionConfig("relu", {"include_regex": "relu,tanh", "save_interval": "10"})

    Parameters are ``include_regex``, ``save_histogram``, ``reductions``,
    ``save_raw_tensor``, ``save_shape``, ``save_interval``, ``statistics_interval``,
    ``start_step``, ``end_step`` and ``save_steps``, the last five also for one mode:
    ``train.save_interval``.  Lists are text with commas.  The hook decides what is left
    out, but a ``save_interval`` without a ``statistics_interval`` sets both.

    Args:
        name: Name of the collection; one that is not built in needs ``include_regex``.
        parameters: The parameters.

    Raises:
        ConfigurationError: If a key is unknown or a value can never work.
        InvalidCollectionConfiguration: If the collection selects nothing.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        self.make()

    def make(self, hook: SaveConfig | None = None) -> Collection:
        """Make the collection for a hook with these schedules; None: the defaults."""
        place = Location("", f"CollectionConfig({self.name!r})")
        return make_collection(self.name, self.parameters, hook, place)


def make_collection(
    name: str,
    parameters: object,
    hook: SaveConfig | None,
    place: Location,
    *,
    may_be_empty: bool = False,
) -> Collection:
    """Make a collection from the parameters of a ``CollectionConfig``.

    Args:
        name: Name of the collection.
        parameters: The parameters.
        hook: The schedules of the hook; None: the defaults.
        place: Place of the parameters, for messages.
        may_be_empty: Whether the collection may select nothing, so far.

    Raises:
        ConfigurationError: If a key is unknown or a value can never work.
        InvalidCollectionConfiguration: If the collection selects nothing.
    """
    given = place.mapping(parameters, COLLECTION_KEYS)
    histogram = None
    if "save_histogram" in given:
        where = place.key("save_histogram")
        histogram = boolean(given["save_histogram"], where)
    with place.inside():
        collection = Collection(name, save_histogram=histogram)
    if "include_regex" in given:
        where = place.key("include_regex")
        patterns = texts(given["include_regex"], where)
        with where.inside():
            collection.include(patterns)
    collection.save_config = save_config(given, place, hook)
    collection.reduction_config = reduction_config(given, place)
    if not may_be_empty:
        with place.inside():
            collection.check()
    return collection
