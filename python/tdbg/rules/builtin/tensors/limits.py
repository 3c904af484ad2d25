"""Below, Above, Outside: limits that the user sets on a number of the training."""

from __future__ import annotations

import bisect
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, cast, get_args

import numpy as np

from tdbg.config.collections import BUILT_IN, CollectionKeys
from tdbg.config.messages import nearest_recorded
from tdbg.config.needs import Needs
from tdbg.config.quantities import exact, number, plural
from tdbg.config.tensor_names import PREFIXES
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.rules.registry import register
from tdbg.rules.rule import (
    Rule,
    check_choice,
    check_number,
    check_regex,
    finds,
    in_collections,
    mode_of,
)
from tdbg.rules.training_facts import TrainingFacts
from tdbg.rules.window import (
    Bools,
    Description,
    Evaluation,
    Floats,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Evidence, Severity, Statistic
from tdbg.stats.rows import REDUCTIONS, reduction_column

__all__ = ["Above", "Below", "Outside"]

STATISTICS = (*REDUCTIONS, "abs_max", "zero_share")
#: The collection of each role that one collection alone selects, by the role's name.
COLLECTIONS = {
    role.name.lower(): name
    for name, roles in BUILT_IN.items()
    if len(roles) == 1
    for role in roles
}
# What names of modules' tensors contain, and the collections that have them.
_PARTS = {"_output_": CollectionKeys.OUTPUTS, "_input_": CollectionKeys.INPUTS}
_PARAMETERS = frozenset({CollectionKeys.WEIGHTS.value, CollectionKeys.BIASES.value})


@dataclass(frozen=True, slots=True)
class _Limit(Rule):
    """Base class of rules about one statistic of tensors that the user names.

    Args:
        tensor: Name of a tensor or scalar, a regular expression that matches whole
            names, or a collection.
        statistic: Which number of a tensor.
        since: First training step to judge.
        until: Last training step to judge; None: no last one.
        patience: Consecutive recorded steps at which this must hold.
        mode: Mode of the steps to judge; None: any.
        severity: Of the findings: ``info``, ``warning`` or ``error``.

    Raises:
        ConfigurationError: If a parameter is out of its range or not of its kind.
    """

    by_default: ClassVar[bool] = False
    severities: ClassVar[tuple[Severity, ...]] = tuple(Severity)

    tensor: str
    _: KW_ONLY
    statistic: str = "mean"
    since: int = 0
    until: int | None = None
    patience: int = 1
    mode: ModeKeys | str | None = None
    severity: str = "warning"

    def __post_init__(self) -> None:
        given: object = self.tensor
        if not isinstance(given, str) or not given:
            msg = f"{self.name}.tensor is {given!r}; give a tensor's or scalar's name"
            raise ConfigurationError(msg)
        check_regex(self, "tensor")
        check_choice(self, "statistic", STATISTICS)
        check_number(self, "since", least=0, whole=True)
        if self.until is not None:
            check_number(self, "until", least=self.since, whole=True)
        check_number(self, "patience", least=1, whole=True)
        check_choice(self, "severity", [each.label for each in Severity])
        mode_of(self, "mode")

    @property
    def needs(self) -> Needs:
        """Rows of the collections that the name can belong to."""
        return Needs(collections=_collections_of(self.tensor))

    @property
    def lookback(self) -> int:
        """The rows that ``patience`` needs."""
        return self.patience - 1

    @property
    def first_verdict(self) -> str:
        """How many rows there must be, and since when."""
        rows = plural(self.patience, "recorded value")
        return f"{rows} from step {self.since:,} on" if self.since else rows

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return nothing: what the user named is judged, whatever the training is."""
        del training
        return ""

    def absent(self, names: Iterable[str]) -> str:
        """Say that nothing has the name, and which names are near."""
        known = [*names]
        if any(self._is_named(name) for name in known) or self._collection in BUILT_IN:
            return ""
        near = nearest_recorded(self.tensor, known)
        return f"no tensor or scalar of the run is named {self.tensor!r}; {near}"

    def selects(self, tensor: TensorInfo) -> bool:
        """Select tensors by name, or those of the collection."""
        if in_collections(tensor, (self.tensor, self._collection)):
            return True
        return self._is_named(tensor.name)

    @property
    def _collection(self) -> str:
        return COLLECTIONS.get(self.tensor, self.tensor)

    def _is_named(self, name: str) -> bool:
        return name == self.tensor or finds(rf"^(?:{self.tensor})$", name)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the statistic at the steps from ``since`` to ``until``."""
        mode = mode_of(self, "mode")
        modes = () if mode in (None, ModeKeys.GLOBAL) else (cast("ModeKeys", mode),)
        for table in window.tables(*modes):
            yield self._judge(table, self._in_range(window, table))

    @abstractmethod
    def _is_bad(self, values: Floats) -> Bools:
        """Return where a value breaks the limit; a NaN is not compared."""

    @abstractmethod
    def _broken(self, value: float) -> tuple[str, float]:
        """Return how a value breaks the limit, in words, and the limit."""

    def _is_judged(self, values: Floats) -> Bools:
        """Return where a value can be judged: NaN is neither below nor above."""
        return ~np.isnan(values)

    def _judge(self, table: Table, in_range: Bools) -> Evaluation:
        values = _column(table, self.statistic)
        known = table.known & in_range[np.newaxis, :] & self._is_judged(values)
        bad = known & self._is_bad(values)
        streak = table.streak(bad, known)
        lasting = streak >= self.patience

        def describe(i: int, j: int) -> Description:
            is_number = bool(table["count"][i, j] == 1)
            rows = np.flatnonzero(known[i, : j + 1])[-self.patience :]
            since = int(table.steps[rows[0]]) if self.patience > 1 else None
            return self._describe(float(values[i, j]), since, is_number=is_number)

        severity = Severity.of(self.severity)
        return table.judge_lasting(bad, lasting, severity, describe, known)

    def _describe(
        self, value: float, since: int | None, *, is_number: bool
    ) -> Description:
        broken, limit = self._broken(value)
        what = "It" if is_number else f"Its {self.statistic}"
        lasted = f", at {self.patience:,} recorded steps in a row" * (self.patience > 1)
        drawn = self.statistic in get_args(Statistic)
        statistic = cast("Statistic", self.statistic if drawn else "mean")
        return Description(
            message=f"{what} is {number(value, 6)}, {broken}{lasted}.",
            value=value,
            threshold=limit,
            since=since,
            evidence=Evidence(statistic, limit) if drawn else None,
        )

    def _in_range(self, window: Window, table: Table) -> Bools:
        """Find the steps from ``since`` to ``until``, which are training steps."""
        steps = table.steps.tolist()
        at = window.training_step
        in_range = np.zeros(len(steps), dtype=bool)
        first = bisect.bisect_left(steps, self.since, key=at) if self.since else 0
        end = len(steps)
        if self.until is not None:
            end = bisect.bisect_right(steps, self.until, key=at)
        in_range[first:end] = True
        return in_range


@register
@dataclass(frozen=True, slots=True)
class Below(_Limit):
    """Report a number that is below a limit.

    Args:
        tensor: Name of a tensor or scalar, a regular expression that matches whole
            names, or a collection.
        limit: Values below it are reported.
        statistic: Which number of a tensor.
        since: First training step to judge.
        until: Last training step to judge; None: no last one.
        patience: Consecutive recorded steps at which this must hold.
        mode: Mode of the steps to judge; None: any.
        severity: Of the findings: ``info``, ``warning`` or ``error``.

    Raises:
        ConfigurationError: If a parameter is out of its range or not of its kind.

    Example::

        tdbg check runs/digits --rule 'Below(scalar/val_acc, 0.9, since=200)'
    """

    tensor: str
    limit: float

    def __post_init__(self) -> None:
        _Limit.__post_init__(self)
        check_number(self, "limit")

    def _is_bad(self, values: Floats) -> Bools:
        return np.less(values, self.limit)

    def _broken(self, value: float) -> tuple[str, float]:
        del value
        return f"below {exact(self.limit)}", self.limit


@register
@dataclass(frozen=True, slots=True)
class Above(_Limit):
    """Report a number that is above a limit.

    Args:
        tensor: Name of a tensor or scalar, a regular expression that matches whole
            names, or a collection.
        limit: Values above it are reported.
        statistic: Which number of a tensor.
        since: First training step to judge.
        until: Last training step to judge; None: no last one.
        patience: Consecutive recorded steps at which this must hold.
        mode: Mode of the steps to judge; None: any.
        severity: Of the findings: ``info``, ``warning`` or ``error``.

    Raises:
        ConfigurationError: If a parameter is out of its range or not of its kind.

    Example::

        tdbg check runs/digits --rule 'Above(gradients, 10, statistic="l2")'
    """

    tensor: str
    limit: float

    def __post_init__(self) -> None:
        _Limit.__post_init__(self)
        check_number(self, "limit")

    def _is_bad(self, values: Floats) -> Bools:
        return np.greater(values, self.limit)

    def _broken(self, value: float) -> tuple[str, float]:
        del value
        return f"above {exact(self.limit)}", self.limit


@register
@dataclass(frozen=True, slots=True)
class Outside(_Limit):
    """Report a number that is outside of a range, or NaN.

    Args:
        tensor: Name of a tensor or scalar, a regular expression that matches whole
            names, or a collection.
        low: Least value that is not reported.
        high: Greatest value that is not reported.
        statistic: Which number of a tensor.
        since: First training step to judge.
        until: Last training step to judge; None: no last one.
        patience: Consecutive recorded steps at which this must hold.
        mode: Mode of the steps to judge; None: any.
        severity: Of the findings: ``info``, ``warning`` or ``error``.

    Raises:
        ConfigurationError: If a parameter is out of its range or not of its kind.

    Example::

        tdbg check runs/digits --rule 'Outside(.*_output_0, -5, 5, statistic="mean")'
    """

    tensor: str
    low: float
    high: float

    def __post_init__(self) -> None:
        _Limit.__post_init__(self)
        check_number(self, "low")
        check_number(self, "high", least=self.low)

    def _is_judged(self, values: Floats) -> Bools:
        return np.ones(values.shape, dtype=bool)

    def _is_bad(self, values: Floats) -> Bools:
        return ~((values >= self.low) & (values <= self.high))

    def _broken(self, value: float) -> tuple[str, float]:
        bounds = f"outside of {exact(self.low)} to {exact(self.high)}"
        return bounds, self.low if value < self.low else self.high


def _column(table: Table, statistic: str) -> Floats:
    if statistic == "abs_max":
        return reduction_column(table, "max", absolute=True)
    if statistic == "zero_share":
        with np.errstate(invalid="ignore"):
            return np.asarray(table["zero"] / table["count"])
    return reduction_column(table, statistic)


def _collections_of(tensor: str) -> frozenset[str]:
    """Return the collections that what has this name can belong to.

    A name that neither has a prefix nor tells of a module's inputs or outputs is taken
    for that of a parameter.
    """
    if tensor in COLLECTIONS or tensor in BUILT_IN:
        return frozenset({COLLECTIONS.get(tensor, tensor)})
    for role, prefix in PREFIXES.items():
        if tensor.startswith(prefix) and role.name.lower() in COLLECTIONS:
            return frozenset({COLLECTIONS[role.name.lower()]})
    found = {name.value for part, name in _PARTS.items() if part in tensor}
    if re.search(r"Loss.*_output_", tensor):
        found = {CollectionKeys.LOSSES.value}
    return frozenset(found) or _PARAMETERS
