"""FeatureImportance and TreeDepth say what the formulas of their pages say.

As test_rules_by_the_book has it for rules about tensors.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rules_by_the_book import Verdicts, entries, not_finite, spied
from rules_fake import FakeRun, judge
from tdbg.modes import ModeKeys
from tdbg.rules import FeatureImportance, TreeDepth
from tdbg.run.findings import Severity

SEEDS = range(4)
PREFIX = "feature_importance/weight"


def expected_of(rule: FeatureImportance, run: FakeRun) -> Verdicts:
    result: Verdicts = {}
    for mode in ModeKeys:
        seen: set[str] = set()
        streaks: Counter[str] = Counter()
        for entry in entries(run, mode):
            seen |= entry.rows.keys()
            if not entry.usable:
                continue
            given = {
                name: max(row["mean"], 0.0)
                for name, row in entry.rows.items()
                if row["count"] == 1 and not not_finite(row)
            }
            total = sum(given.values())
            if not total > 0:
                streaks.clear()
                continue
            share = {name: given.get(name, 0.0) / total for name in seen}
            top = sum(sorted(share.values())[-rule.nfeatures :])
            few = rule.nfeatures < len(seen) / 4 and total >= 10 * rule.nfeatures
            low = any(each < rule.low / len(seen) for each in share.values())
            low &= total * rule.low >= len(seen)
            for name, bad, severity in (
                (PREFIX, top > rule.threshold and few, Severity.WARNING),
                (f"{PREFIX}/*", low, Severity.INFO),
            ):
                streaks[name] = streaks[name] + 1 if bad else 0
                if not bad:
                    result[mode, name, entry.step] = 0
                elif streaks[name] >= rule.patience:
                    result[mode, name, entry.step] = int(severity)
    return result


def random_run(seed: int) -> FakeRun:
    """Twelve features, of which few are nearly all for a while, and some are lost."""
    random = np.random.default_rng(seed)
    run = FakeRun()
    for step in range(90):
        phase = step // 9 % 5
        rows: dict[str, object] = {}
        for i in range(12 if step > 20 else 8):
            # Splits: few at first, so that their shares say little.
            splits = 10.0 ** (step / 20) if seed % 2 else 1000.0
            value = splits if phase < 3 else 0.1 * splits
            if i < 2:
                value = [1.0, 1.0, 1.0, 4.0, 9.0][phase] * splits
            if i == 5 and phase in (1, 3):
                value = float(random.choice([0.0, 1e-4, -1.0, np.nan]))
            if i == 6 and phase == 2 and random.random() < 0.7:
                continue
            rows[f"{PREFIX}/f{i}"] = [value] if random.random() > 0.02 else [9.0, 9.0]
        if random.random() < 0.03:
            rows = {name: [0.0] for name in rows}
        run.step(
            step,
            rows,
            mode=ModeKeys.EVAL if step % 11 == 10 else ModeKeys.TRAIN,
            complete=bool(random.random() > 0.03),
            lossless=bool(random.random() > 0.03),
        )
    return run


@pytest.mark.parametrize(
    "rule",
    [
        FeatureImportance(nfeatures=2),
        FeatureImportance(nfeatures=2, threshold=0.4, low=0.5, patience=2),
        FeatureImportance(nfeatures=1, threshold=0.3, low=0.0, patience=1),
        FeatureImportance(threshold=0.1),
    ],
    ids=str,
)
def test_verdicts_are_those_of_the_page(rule: FeatureImportance) -> None:
    met = set()
    for seed in SEEDS:
        run = random_run(seed)
        expected = expected_of(rule, run)
        # Every other run is judged at once.
        found = spied(run, rule, max_window=None if seed % 2 else 5)
        assert found == expected, f"seed {seed}"
        met |= set(expected.values())
    assert len(met) > 1


def test_the_features_are_told_with_their_shares() -> None:
    run = FakeRun()
    for step in range(3):
        shares = [0.5, 0.3, 0.1, *[0.1 / 12] * 12, 0.0]
        splits = {f"{PREFIX}/f{i}": [1e4 * share] for i, share in enumerate(shares)}
        run.step(step, splits)
    few, useless = judge(run, FeatureImportance())
    assert (
        "3 of 16 features, which have 90% of the importance (weight): f0 (50%), f1 ("
        in (few.message)
    )
    assert (few.value, few.threshold) == (pytest.approx(0.9), 0.8)
    assert "1 of 16 features has next to no importance (weight): f15" in (
        useless.message
    )
    assert (useless.value, useless.threshold) == (1.0, 0.01)


NODES = {
    # A root alone; the root's children; a path of three; a loop; children out of reach.
    "root": ([0], [-1], [-1], 0),
    "stump": ([0, 1, 2], [1, -1, -1], [2, -1, -1], 1),
    "path": ([0, 1, 2, 3, 4], [1, 3, -1, -1, -1], [2, 4, -1, -1, -1], 2),
    "right": ([0, 1, 2, 3, 4], [1, -1, 3, -1, -1], [2, -1, 4, -1, -1], 2),
    "other root": ([5, 6, 7], [6, -1, -1], [7, -1, -1], 1),
    "loop": ([0, 1], [1, 1], [-1, -1], None),
    "unknown": ([0, 1], [1, 9], [-1, 8], 1),
    "heap": ([0, 1, 2, 5, 6], None, None, 2),
    "heap of one": ([0], None, None, 0),
    "as floats": ([0.0, 1.0, 2.0], [1.0, np.nan, np.nan], [2.0, np.nan, np.nan], 1),
    "as texts": (["0-0", "0-1", "0-2"], ["0-1", "", ""], ["0-2", "", ""], 1),
    "no numbers": ([True, False], None, None, None),
    "a table": ([[0, 1]], None, None, None),
    "below zero": ([-2, 1], None, None, None),
}


@pytest.mark.parametrize("name", NODES)
def test_how_deep_a_tree_is(name: str) -> None:
    nodes, yes, no, depth = NODES[name]
    run = FakeRun()
    for column, values in (("Node", nodes), ("Yes", yes), ("No", no)):
        if values is not None:
            run.step(0, {f"trees/{column}": [1.0]})
            run.value(0, f"trees/{column}", np.array(values))
    found = {}
    for limit in (1, 2, 3):
        found[limit] = spied(run, TreeDepth(depth=limit, leaves=0))
    key = ModeKeys.TRAIN, "trees/Node", 0
    for limit, verdicts in found.items():
        if depth is None:
            assert verdicts == {}
        else:
            # First trees of a single leaf each predict a constant.
            level = 2 if depth == 0 else int(depth > limit)
            assert verdicts == {key: level}


def test_trees_of_lost_steps_are_not_judged() -> None:
    run = FakeRun()
    for step in range(4):
        run.value(step, "trees/Node", np.arange(2**6 - 1))
        run.step(step, {"trees/Node": [1.0]}, lossless=step != 1, complete=step != 2)
    expected = {(ModeKeys.TRAIN, "trees/Node", step): 1 for step in (0, 3)}
    for max_window in (None, 1):
        assert spied(run, TreeDepth(depth=4), max_window=max_window) == expected
