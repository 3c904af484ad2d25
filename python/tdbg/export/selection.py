"""``Selection``: which tensors of a run are exported, as what, under which tags.

Thread safety: values and pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.config.collections import (
    BUILT_IN,
    NO_TENSORS,
    Collection,
    CollectionKeys,
    Role,
)
from tdbg.config.messages import check_choice
from tdbg.config.patterns import NamePattern
from tdbg.errors import ConfigurationError
from tdbg.stats.row_fields import COUNTS
from tdbg.stats.rows import REDUCTIONS
from tdbg.trial import Statistics, Trial

__all__ = ["STEPS", "ExportPlan", "ExportReport", "Selection", "statistic_column"]


_STATISTICS = (*REDUCTIONS, *(f"abs_{name}" for name in REDUCTIONS), *COUNTS)
_HISTOGRAMS = ("all", "stored", "none")
# Their column of the step table.
STEPS = {"training": "training_step", "mode": "mode_step", "global": "step"}
# Roles that are exported as numbers, or not at all.
_NUMBERS = frozenset({Role.LOSS, Role.SCALAR, Role.UNIT_SUMMARY, *NO_TENSORS})
# Collections of other names hold their tensors by name.
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
    """What an export contains.

    Args:
        regex: Export only names in which one of these expressions is found.
        collection: Export only members of this collection.
        statistics: Statistics of tensors that are exported as numbers: min, max, mean,
            std, variance, sum, l1 and l2; these with ``abs_`` before them, of the
            absolute values; count, nan, positive_infinity, negative_infinity and zero.
        histograms: "all": stored histograms, and histograms of raw values; "stored";
            or "none".
        steps: Which number steps have: where they stand in the "training", their number
            in their "mode", or their "global" number.

    Raises:
        ConfigurationError: If a value can never work.
    """

    regex: str | Iterable[str] | None = None
    collection: str | None = None
    statistics: Iterable[str] = ()
    histograms: str = "all"
    steps: str = "training"

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
            check_choice("statistics", name, _STATISTICS)
        object.__setattr__(self, "statistics", names)
        if not (self.regex is None or isinstance(self.regex, str)):
            object.__setattr__(self, "regex", tuple(self.regex))
        for text in (self.regex,) if isinstance(self.regex, str) else self.regex or ():
            NamePattern.of_setting("regex", text)
        check_choice("histograms", self.histograms, _HISTOGRAMS)
        check_choice("steps", self.steps, STEPS)


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """A selection, applied to what the run has so far.

    Attributes:
        names: Names of all tensors and scalars that are exported.
        losses: The names that are losses, sorted.
        tags: Tags of the tensors by name, sorted: ``collection/name``.
        refused: Names of tensors whose collections refuse histograms.
    """

    names: frozenset[str]
    losses: list[str]
    tags: dict[str, str]
    refused: frozenset[str]

    @classmethod
    def of(cls, trial: Trial, selection: Selection) -> ExportPlan:
        """Apply *selection* to the run.

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
            elif role not in _NUMBERS:
                group = own.get(name, _GROUPS.get(role, CollectionKeys.DEFAULT.value))
                tags[name] = f"{group}/{name}"
        return cls(frozenset(names), losses, tags, _refused(collections.values()))


def _refused(collections: Iterable[Collection]) -> frozenset[str]:
    """Names in collections that refuse histograms and in none that asks for them."""
    said: dict[bool, set[str]] = {True: set(), False: set()}
    for collection in collections:
        if collection.save_histogram is not None:
            said[collection.save_histogram] |= collection.tensor_names
    return frozenset(said[False] - said[True])


def statistic_column(table: Statistics, name: str) -> NDArray[Any]:
    """One statistic of all tensors and steps of a table. Shape (tensors, steps)."""
    if name in COUNTS:
        return np.asarray(getattr(table, name))
    return table.reduction(name.removeprefix("abs_"), name.startswith("abs_"))


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        run: The directory of the run.
        out: The folder of the files.
        files: Path of the file of each mode that has steps.
        steps: Number of steps that were read.
        last_step: The last of them, a global step; -1: there is none.
        scalars: Number of numbers that were written.
        histograms: Number of histograms that were written.
        unreadable: Number of histograms that cannot be read; ``tdbg fsck`` says why.
        lost_records: What the run lacks: ``LostRecords.to_json``.
        complete: Whether the training has ended and all of it was exported.
    """

    run: str
    out: str
    files: dict[str, str]
    steps: int
    last_step: int
    scalars: int
    histograms: int
    unreadable: int
    lost_records: dict[str, Any]
    complete: bool

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self)
