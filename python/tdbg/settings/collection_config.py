"""``CollectionConfig``: a collection as smdebug's configurations write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tdbg.collections import Collection
from tdbg.config import SaveConfig
from tdbg.settings import parameters as text
from tdbg.settings.place import Place

__all__ = ["CollectionConfig", "make_collection"]

KEYS = (*text.COMMON_KEYS, "save_histogram")


@dataclass(frozen=True, slots=True)
class CollectionConfig:
    """A collection by its name and parameters of text.

        CollectionConfig("relu", {"include_regex": "relu,tanh", "save_interval": "10"})

    Parameters are ``include_regex``, ``save_histogram``, ``reductions``,
    ``save_raw_tensor``, ``save_shape``, ``save_interval``, ``statistics_interval``,
    ``start_step``, ``end_step`` and ``save_steps``, the last five also for one mode:
    ``train.save_interval``.  Lists are text with commas.  What is left out follows
    the hook; a ``save_interval`` without a ``statistics_interval`` is both.

    Args:
        name: A built-in one, or that of a custom one, which needs ``include_regex``.
        parameters: As above.

    Raises:
        ConfigurationError: If a key is unknown or a value can never work.
        InvalidCollectionConfiguration: If it selects nothing.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        self.make()

    def make(self, hook: SaveConfig | None = None) -> Collection:
        """The collection, in a hook with these schedules; None: the default ones."""
        place = Place("", f"CollectionConfig({self.name!r})")
        return make_collection(self.name, self.parameters, hook, place)


def make_collection(
    name: str, parameters: object, hook: SaveConfig | None, place: Place
) -> Collection:
    """The collection of that name and these parameters.

    Args:
        name: Its name.
        parameters: Those of a ``CollectionConfig``.
        hook: The schedules of the hook; None: the default ones.
        place: Where the parameters stand, for messages.

    Raises:
        ConfigurationError: If a key is unknown or a value can never work.
        InvalidCollectionConfiguration: If it selects nothing.
    """
    given = place.mapping(parameters, KEYS)
    histogram = None
    if "save_histogram" in given:
        where = place.key("save_histogram")
        histogram = text.boolean(given["save_histogram"], where)
    with place.inside():
        collection = Collection(name, save_histogram=histogram)
    if "include_regex" in given:
        where = place.key("include_regex")
        patterns = text.texts(given["include_regex"], where)
        with where.inside():
            collection.include(patterns)
    collection.save_config = text.save_config(given, place, hook)
    collection.reduction_config = text.reduction_config(given, place)
    with place.inside():
        collection.check()
    return collection
