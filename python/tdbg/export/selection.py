"""``Selection``: what of a run is exported, and under which tags.

Thread safety: values and pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.collections import BUILT_IN, Collection, CollectionKeys, Role
from tdbg.config import nearest
from tdbg.errors import ConfigurationError
from tdbg.patterns import NamePattern
from tdbg.statistics import REDUCTIONS
from tdbg.trial import Statistics, Trial

__all__ = ["Plan", "Selection", "statistic_column"]

_COUNTS = ("count", "nan", "positive_infinity", "negative_infinity", "zero")
_STATISTICS = (*REDUCTIONS, *(f"abs_{name}" for name in REDUCTIONS), *_COUNTS)
_HISTOGRAMS = ("all", "stored", "none")
_STEPS = ("global", "mode")
# Numbers already, or no tensors at all.
_NO_TENSORS = frozenset({Role.LOSS, Role.SCALAR, Role.UNIT_SUMMARY, Role.SPAN})
# Other collections go by name.
_BY_ROLE = {name for name, roles in BUILT_IN.items() if roles}
_BY_ROLE.add(CollectionKeys.DEFAULT.value)
_GROUPS = {
    role: name
    for name, roles in BUILT_IN.items()
    if name != CollectionKeys.ALL
    for role in roles
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is exported.

    Args:
        regex: Only what has a name in which one of these expressions is found.
        collection: Only what is in this collection.
        statistics: Of tensors, as numbers: min, max, mean, std, variance, sum, l1 or
            l2, with ``abs_`` before them of the absolute values, and count, nan,
            positive_infinity, negative_infinity or zero.
        histograms: "all": those that were stored, and those of raw values;
            "stored"; or "none".
        steps: Whether steps have their "global" number or that of their "mode".

    Raises:
        ConfigurationError: If a value can never work.
    """

    regex: str | Iterable[str] | None = None
    collection: str | None = None
    statistics: Iterable[str] = ()
    histograms: str = "all"
    steps: str = "global"

    def __post_init__(self) -> None:
        """Check what does not need the run."""
        given: object = self.statistics
        if isinstance(given, str):
            given = (given,)
        if not isinstance(given, Iterable):
            msg = f"statistics must be a list of names, not {given!r}"
            raise ConfigurationError(msg)
        names = tuple(dict.fromkeys(given))
        for name in names:
            _check("statistics", name, _STATISTICS)
        object.__setattr__(self, "statistics", names)
        if not (self.regex is None or isinstance(self.regex, str)):
            object.__setattr__(self, "regex", tuple(self.regex))
        for text in (self.regex,) if isinstance(self.regex, str) else self.regex or ():
            try:
                NamePattern(text)
            except (re.error, TypeError) as error:
                msg = f"regex: {text!r} is no regular expression: {error}"
                raise ConfigurationError(msg) from error
        _check("histograms", self.histograms, _HISTOGRAMS)
        _check("steps", self.steps, _STEPS)


def _check(key: str, value: object, valid: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in valid:
        msg = f"{key}: unknown {value!r}; {nearest(value, valid)}"
        raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class Plan:
    """A selection, of what the run has so far.

    Attributes:
        names: Of everything that is exported.
        losses: Those of losses, sorted.
        tags: Tags of the tensors by name, sorted: collection and name.
        refused: Names of tensors whose collections refuse histograms.
    """

    names: frozenset[str]
    losses: list[str]
    tags: dict[str, str]
    refused: frozenset[str]

    @classmethod
    def of(cls, trial: Trial, selection: Selection) -> Plan:
        """What *selection* is of the run.

        Raises:
            QueryError: If there is no such collection.
        """
        names = trial.tensor_names(
            regex=selection.regex, collection=selection.collection
        )
        collections = trial.collections()
        own = {
            tensor: name
            for name, collection in sorted(collections.items(), reverse=True)
            if name not in _BY_ROLE
            for tensor in collection.tensor_names
        }
        losses, tags = [], {}
        for name in names:
            role = Role[trial.tensor(name).role.upper()]
            if role is Role.LOSS:
                losses.append(name)
            elif role not in _NO_TENSORS:
                group = own.get(name, _GROUPS.get(role, CollectionKeys.DEFAULT.value))
                tags[name] = f"{group}/{name}"
        return cls(frozenset(names), losses, tags, _refused(collections.values()))


def _refused(collections: Iterable[Collection]) -> frozenset[str]:
    """Names in a collection without histograms, and in none with them."""
    said: dict[bool, set[str]] = {True: set(), False: set()}
    for collection in collections:
        if collection.save_histogram is not None:
            said[collection.save_histogram] |= collection.tensor_names
    return frozenset(said[False] - said[True])


def statistic_column(table: Statistics, name: str) -> NDArray[Any]:
    """A statistic of all tensors and steps of a table."""
    if name in _COUNTS:
        return np.asarray(getattr(table, name))
    return table.reduction(name.removeprefix("abs_"), name.startswith("abs_"))
