"""Boosted trees: trees that are too deep, and features that matter too much."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.needs import Needs
from tdbg.rules._base import Rule
from tdbg.rules._checks import check_choice, check_number
from tdbg.rules.columns import others, streak_of_known
from tdbg.rules.registry import register
from tdbg.rules.window import (
    HEALTHY,
    UNKNOWN,
    Bools,
    Description,
    Floats,
    Judgement,
    Table,
    TensorInfo,
    Window,
)

__all__ = ["FeatureImportance", "TreeDepth"]

NODE, YES, NO = "trees/Node", "trees/Yes", "trees/No"
PREFIX = "feature_importance/"
KINDS = ("weight", "gain", "cover", "total_gain", "total_cover")
# The few most important features must be less than this share of all, or it would
# be no wonder that they matter.
FEW = 0.25


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class TreeDepth(Rule):
    """Report boosted trees that are too deep.

    Args:
        depth: A tree with more levels of splits than this is reported.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    depth: int = 10

    def __post_init__(self) -> None:
        check_number(self, "depth", least=1, whole=True)

    @property
    def needs(self) -> Needs:
        """The nodes of the latest tree."""
        return Needs(collections=frozenset({"trees"}), raw=True)

    def selects(self, tensor: TensorInfo) -> bool:
        """The numbers of nodes."""
        return tensor.name == NODE

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge the tree of every step."""
        for table in window.tables():
            if NODE in table.names:
                yield self._judge(table)

    def _judge(self, table: Table) -> Judgement:
        steps = table.steps[table.start :]
        usable = table.usable[table.start :]
        levels = np.full(len(steps), UNKNOWN, dtype=np.int8)
        depths: dict[int, tuple[int, int]] = {}
        saved = np.searchsorted(steps, np.intersect1d(table.value_steps(NODE), steps))
        for j in saved[usable[saved]].tolist():
            depth = self._depth(table, int(steps[j]))
            if depth is not None:
                depths[j] = depth
                deep = depth[0] > self.depth
                levels[j] = Severity.WARNING if deep else HEALTHY

        def describe(j: int) -> Description:
            depth, n_nodes = depths[j]
            return Description(
                message=f"the tree is {depth} levels deep, with {n_nodes} nodes",
                value=float(depth),
                threshold=float(self.depth),
                advice=(
                    f"deep trees learn single samples by heart: set max_depth to "
                    f"{self.depth} or less, or raise min_child_weight or gamma; see "
                    "whether the validation error still falls"
                ),
            )

        return table.judge_one(NODE, levels, describe)

    def _depth(self, table: Table, step: int) -> tuple[int, int] | None:
        """Levels of splits and number of nodes of the tree at a step."""
        nodes = _numbers(table.value(NODE, step))
        if nodes is None or not len(nodes) or nodes.min() < 0:
            return None
        children = [_numbers(table.value(name, step)) for name in (YES, NO)]
        if any(child is None or len(child) != len(nodes) for child in children):
            # Numbered as in a heap: the children of n are 2n + 1 and 2n + 2.
            return math.floor(math.log2(int(nodes.max()) + 1)), len(nodes)
        below = {
            int(node): [int(child[k]) for child in children if child is not None]
            for k, node in enumerate(nodes)
        }
        depth, level = 0, {int(nodes[0])}
        # A tree has as many levels as nodes at most, however damaged it is.
        while depth <= len(nodes):
            level = {c for node in level for c in below[node] if c in below and c > 0}
            if not level:
                return depth, len(nodes)
            depth += 1
        return None


@dataclass(frozen=True, slots=True)
class _Shares:
    """What each feature has of all importance at a step.

    Attributes:
        names: The features.
        share: Features x steps: its share; 0 where it is not known.
        features: Features x steps: whether there is this feature by then.
        judged: Steps: whether any feature has any importance.
    """

    names: list[str]
    share: Floats
    features: Bools
    judged: Bools


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureImportance(Rule):
    """Report boosted trees that rest on a few features, and features of no use.

    Args:
        threshold: If the most important features have more than this share of all
            importance together, it is reported.
        nfeatures: How many those are.
        low: Features with less than this share of what each would have if all had
            the same are of no use.
        kind: Which importance: weight, gain, cover, total_gain or total_cover.
        patience: Recorded steps in a row at which this must hold.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)

    threshold: float = 0.8
    nfeatures: int = 3
    low: float = 0.01
    kind: str = "weight"
    patience: int = 3

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=1.0)
        check_number(self, "nfeatures", least=1, whole=True)
        check_number(self, "low", least=0.0, most=1.0)
        check_number(self, "patience", least=1, whole=True)
        check_choice(self, "kind", KINDS)

    @property
    def needs(self) -> Needs:
        """The importances."""
        return Needs(collections=frozenset({"feature_importance"}))

    @property
    def look_back(self) -> int:
        """The steps that patience counts."""
        return self.patience - 1

    @property
    def anchor(self) -> int:
        """The first row of each feature, which says that there is one."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Importances of that kind."""
        return tensor.name.startswith(f"{PREFIX}{self.kind}/")

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge the importances of every step together."""
        for table in window.tables():
            yield from self._judge(table)

    def _judge(self, table: Table) -> Iterator[Judgement]:
        found = self._shares(table)
        top = _sums(np.sort(found.share, axis=0)[::-1][: self.nfeatures])
        many = self.nfeatures < FEW * found.features.sum(axis=0)
        over = found.judged & many & (top > self.threshold)
        useless = self._useless(found)
        least = found.judged & useless.any(axis=0)
        name = f"{PREFIX}{self.kind}"
        yield self._lasting(
            table,
            name,
            over,
            found.judged,
            Severity.WARNING,
            lambda j: self._describe_top(found, float(top[j]), j),
        )
        yield self._lasting(
            table,
            f"{name}/*",
            least,
            found.judged,
            Severity.INFO,
            lambda j: self._describe_useless(found, useless[:, j], j),
        )

    def _shares(self, table: Table) -> _Shares:
        known = table.known & (table["count"] == 1) & (table.not_finite == 0)
        importance = np.where(known, np.maximum(table["mean"], 0.0), 0.0)
        total = _sums(importance)
        judged = known.any(axis=0) & (total > 0)
        return _Shares(
            names=[name.removeprefix(f"{PREFIX}{self.kind}/") for name in table.names],
            share=importance / np.where(judged, total, 1.0),
            # A feature that no tree uses any more has no row.
            features=np.logical_or.accumulate(table.present, axis=1),
            judged=judged,
        )

    def _useless(self, found: _Shares) -> Bools:
        """Features x steps: those that have next to no importance."""
        n_features = np.maximum(found.features.sum(axis=0), 1)
        return np.asarray(found.features & (found.share < self.low / n_features))

    def _describe_top(self, found: _Shares, top: float, j: int) -> Description:
        share = found.share[:, j]
        best = np.argsort(-share, kind="stable")[: self.nfeatures]
        shown = ", ".join(f"{found.names[i]} ({share[i]:.2f})" for i in best)
        return Description(
            message=(
                f"{self.nfeatures} of {found.features[:, j].sum()} features have "
                f"{top:.2f} of the importance ({self.kind}): {shown}"
            ),
            value=top,
            threshold=self.threshold,
            advice=(
                "see whether one of them gives the answer away (it is made from the "
                "label, or known only afterwards); otherwise colsample_bytree below 1 "
                "gives others a chance"
            ),
        )

    def _describe_useless(self, found: _Shares, useless: Bools, j: int) -> Description:
        names = [found.names[i] for i in np.flatnonzero(useless)]
        return Description(
            message=(
                f"{len(names)} of {found.features[:, j].sum()} features have next to "
                f"no importance ({self.kind}): {others(names, 5)}"
            ),
            value=float(len(names)),
            threshold=self.low,
            advice="without them training is faster and overfits less",
        )

    def _lasting(
        self,
        table: Table,
        name: str,
        bad: Bools,
        judged: Bools,
        severity: Severity,
        describe: Callable[[int], Description],
    ) -> Judgement:
        """Verdicts on all features together, under one name."""
        # A step at which nothing has any importance begins the count again.
        streak = streak_of_known(bad, np.asarray(table.known.any(axis=0)))
        levels = np.where(judged & ~bad, HEALTHY, UNKNOWN).astype(np.int8)
        levels[streak >= self.patience] = severity
        start = table.start
        return table.judge_one(name, levels[start:], lambda j: describe(j + start))


def _sums(values: Floats) -> Floats:
    """The sum of each column, to the last bit whatever other columns there are."""
    return np.asarray(np.cumsum(values, axis=0)[-1])


def _numbers(values: NDArray[np.generic] | None) -> NDArray[np.int64] | None:
    """Node numbers, given as such or as XGBoost writes them ("tree-node"); -1: none."""
    if values is None or values.ndim != 1:
        return None
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    if values.dtype.kind == "f":
        return np.nan_to_num(values.astype(np.float64), nan=-1.0).astype(np.int64)
    if values.dtype.kind in "SU":
        parts = [text.rpartition("-")[2] for text in values.astype(str).tolist()]
        return np.array([int(p) if p.isdigit() else -1 for p in parts], dtype=np.int64)
    return None
