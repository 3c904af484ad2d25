"""TreeDepth: boosted trees that are too deep, or have no split at all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.needs import Needs
from tdbg.config.quantities import plural
from tdbg.modes import ModeKeys
from tdbg.rules.builtin.loss.loss_series import losses_of
from tdbg.rules.builtin.loss.passes import LOOKBACK
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Description,
    Evaluation,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Severity, Stage
from tdbg.run.tree_facts import TreeFacts, TreeFault

__all__ = ["TreeDepth"]

# Validation losses in a row that must be past the best.
LAST = 3
NODE, YES, NO, TREE = "trees/Node", "trees/Yes", "trees/No", "trees/Tree"


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class TreeDepth(Rule):
    """Report boosted trees that are too deep, or that never split.

    Deep trees are an info, and a warning once validation is worse than its best.
    Trees without a split from the first round on predict one number for all samples.

    Args:
        depth: Largest number of levels of splits.
        leaves: The rule accepts a tree with no more leaves than this at any depth:
            trees that grow leaf by leaf, as LightGBM's do, are deep where they are
            narrow.  The default is LightGBM's own limit.
        rise: Share of its best by which the validation loss may be above it.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)

    depth: int = 10
    leaves: int = 31
    rise: float = 0.1

    def __post_init__(self) -> None:
        check_number(self, "depth", least=1, whole=True)
        check_number(self, "leaves", least=0, whole=True)
        check_number(self, "rise", least=0.0)

    @property
    def needs(self) -> Needs:
        """The values of the nodes of the latest trees."""
        return Needs(collections=frozenset({"trees"}), raw=True)

    @property
    def lookback(self) -> int:
        """The validation losses among which is the best."""
        return LOOKBACK

    def selects(self, tensor: TensorInfo) -> bool:
        """Select the node numbers, and losses, which show whether depth hurts."""
        return tensor.name == NODE or tensor.role == "loss"

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the trees of each step by the deepest one with enough leaves."""
        for table in window.tables():
            if NODE in table.names:
                info = window.model_info_at(int(table.steps[-1]))
                facts = None if info is None else info.trees
                evaluated = window.table(ModeKeys.EVAL)
                yield self._judge(table, evaluated, facts or TreeFacts())

    def _judge(
        self, table: Table, evaluated: Table | None, facts: TreeFacts
    ) -> Evaluation:
        steps = table.steps[table.start :]
        usable = table.usable[table.start :]
        levels = np.full(len(steps), UNKNOWN, dtype=np.int8)
        depths: dict[int, tuple[int, int]] = {}
        never_split = self._first_trees_are_leaves(table)
        saved = np.searchsorted(steps, np.intersect1d(table.value_steps(NODE), steps))
        for j in saved[usable[saved]].tolist():
            depth = self._depth(table, int(steps[j]))
            if depth is not None:
                depths[j] = depth
                levels[j] = OK
                if depth[0] > self.depth and self._is_wide(depth[1]):
                    hurts = not facts.stops_by_validation and self._is_worse(
                        evaluated, int(steps[j])
                    )
                    levels[j] = Severity.WARNING if hurts else Severity.INFO
                elif depth[0] == 0 and never_split:
                    levels[j] = Severity.WARNING

        def describe(j: int) -> Description:
            depth, n_nodes = depths[j]
            if depth == 0:
                return _without_split(facts)
            return Description(
                message=(
                    f"A tree is {plural(depth, 'level')} deep, with "
                    f"{plural(n_nodes, 'node')}; the limit is {self.depth:,}."
                ),
                value=float(depth),
                threshold=float(self.depth),
                advice=lambda words: (
                    "Deep trees memorize single samples: "
                    f"{words.simpler_trees.format(self.depth)}. If the validation "
                    "error still falls, they are no fault."
                ),
            )

        return table.judge_one(NODE, levels, describe)

    def _is_worse(self, evaluated: Table | None, step: int) -> bool:
        """Return whether the last validation losses before a step are past the best."""
        if evaluated is None:
            return False
        before = evaluated.steps < step
        for i, role in enumerate(evaluated.roles):
            loss = losses_of(evaluated, i)[before] if role == "loss" else np.empty(0)
            loss = loss[np.isfinite(loss)][-LOOKBACK:]
            if len(loss) > LAST:
                best = float(loss.min())
                if loss[-LAST:].min() - best > self.rise * abs(best):
                    return True
        return False

    def _first_trees_are_leaves(self, table: Table) -> bool:
        """Return whether the first trees that were recorded have a single node each."""
        first = table.first_value_step(NODE)
        depth = None if first is None else self._depth(table, first)
        return depth is not None and depth[0] == 0

    def _depth(self, table: Table, step: int) -> tuple[int, int] | None:
        """Return the levels of splits, and the nodes, of the deepest wide tree."""
        nodes = _numbers(table.value(NODE, step))
        if nodes is None or not len(nodes) or nodes.min() < 0:
            return None
        children = [_numbers(table.value(name, step)) for name in (YES, NO)]
        trees = _numbers(table.value(TREE, step))
        if trees is None or len(trees) != len(nodes):
            trees = np.zeros(len(nodes), dtype=np.int64)
        found = []
        for tree in np.unique(trees):
            rows = trees == tree
            if any(child is None or len(child) != len(nodes) for child in children):
                found.append(_depth_of_heap(nodes[rows]))
                continue
            depth = _depth_of_tree(
                nodes[rows], [c[rows] for c in children if c is not None]
            )
            if depth is None:
                return None
            found.append(depth)
        return max(found, key=lambda each: (self._is_wide(each[1]), each))

    def _is_wide(self, n_nodes: int) -> bool:
        """Return whether a tree of so many nodes has enough leaves to be judged."""
        return (n_nodes + 1) // 2 > self.leaves


# Faults that leave nothing to gain by a split.
_WITHOUT_SPLIT = frozenset(
    {
        TreeFault.HESSIAN_NOT_POSITIVE,
        TreeFault.WEIGHTS_REVERSED,
        TreeFault.CLASS_WITHOUT_WEIGHT,
    }
)


def _without_split(facts: TreeFacts) -> Description:
    # What TreeSettings reports explains it.
    faults = {each.fault for each in facts.faults}
    is_explained = not facts.is_possible or facts.distance > 0
    is_explained |= not faults.isdisjoint(_WITHOUT_SPLIT)
    return Description(
        message=(
            "No tree has a split: each is a single leaf, so the model predicts the "
            "same number for all samples."
        ),
        value=0.0,
        threshold=1.0,
        advice=lambda words: (
            f"To allow splits, {words.allowing_splits}. Check that features and labels "
            f"are not constant or missing.{words.first_prediction}"
        ),
        stage=Stage.STANDSTILL if is_explained else Stage.SETUP,
    )


def _depth_of_heap(nodes: NDArray[np.int64]) -> tuple[int, int]:
    """Return the levels of a tree in which n has the children 2n + 1 and 2n + 2."""
    return math.floor(math.log2(int(nodes.max()) + 1)), len(nodes)


def _depth_of_tree(
    nodes: NDArray[np.int64], children: list[NDArray[np.int64]]
) -> tuple[int, int] | None:
    """Return the levels of a tree by its nodes' children; None for a circle."""
    below = {
        int(node): [int(child[k]) for child in children] for k, node in enumerate(nodes)
    }
    depth, level = 0, {int(nodes[0])}
    # The number of nodes bounds the loop, so that it ends for damaged data too.
    while depth <= len(nodes):
        level = {c for node in level for c in below[node] if c in below and c > 0}
        if not level:
            return depth, len(nodes)
        depth += 1
    return None


def _numbers(values: NDArray[np.generic] | None) -> NDArray[np.int64] | None:
    """Parse node numbers: integers, or texts of XGBoost ("tree-node"); -1: no node."""
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
