"""Rules of boosted trees, on runs that are written as a hook of XGBoost would."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rules_fake import FakeRun, judge, judge_in_parts
from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.rules import FeatureImportance, TreeDepth, check
from tdbg.rules.engine.missing_capture import NOTHING_KNOWN
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo
from tdbg.run.schema import EventKind
from tdbg.run.tree_facts import TreeFacts

NODE, YES, NO = "trees/Node", "trees/Yes", "trees/No"


def tree(depth: int) -> dict[str, np.ndarray]:
    """A tree that goes down on one side only, numbered as it grew."""
    nodes = np.arange(2 * depth + 1, dtype=np.int32)
    yes, no = np.full(len(nodes), -1, np.int32), np.full(len(nodes), -1, np.int32)
    for level in range(depth):
        parent = 2 * level
        yes[parent], no[parent] = parent + 2, parent + 1
    return {NODE: nodes, YES: yes, NO: no}


def grown(path: Path, trees: list[dict[str, np.ndarray]]) -> None:
    with RunBuilder(path) as run:
        members = sorted({name for columns in trees for name in columns})
        content = json.dumps({"collections": {"trees": {"tensor_names": members}}})
        run.capture.event(0, EventKind.COLLECTIONS, 0, content.encode())
        for step, columns in enumerate(trees):
            for name, values in columns.items():
                run.save(step, name, values, what="values", role=Role.OTHER)
            run.end_step(step)


def test_a_tree_is_as_deep_as_its_longest_path(run_dir: Path):
    grown(run_dir, [tree(3), tree(10), tree(11), tree(11)])
    (finding,) = check(run_dir, TreeDepth(leaves=0), record=False).findings
    assert (finding.tensor, finding.step) == (NODE, 2)
    assert finding.severity is Severity.INFO
    assert finding.message == (
        "A tree is 11 levels deep, with 23 nodes; the limit is 10."
    )


@pytest.mark.parametrize(
    ("slope", "stops", "level"),
    [
        (-0.01, False, Severity.INFO),
        (0.0, False, Severity.INFO),
        (0.01, False, Severity.WARNING),
        (0.01, True, Severity.INFO),
    ],
    ids=["validation improves", "stays", "gets worse", "early stopping"],
)
def test_deep_trees_are_a_fault_where_validation_gets_worse(
    slope: float, stops: bool, level: Severity
):
    run, deep = FakeRun(), full(6)
    trees = TreeFacts(stops_by_validation=stops)
    run.known_facts = [ModelInfo(step=0, trees=trees)]
    for step in range(0, 80, 2):
        run.step(step, {name: [1.0] for name in deep})
        for name, values in deep.items():
            run.value(step, name, values)
        loss = {"valid-logloss": [0.5 + slope * max(0, step - 20)]}
        run.step(step + 1, loss, mode=ModeKeys.EVAL)
        run.tensor_of("valid-logloss").role = "loss"
    for found in (
        judge(run, TreeDepth(depth=5)),
        judge_in_parts(run, [9, 30, 80], TreeDepth(depth=5)),
    ):
        assert max(each.severity for each in found) is level


def test_trees_that_never_split_are_told_with_the_fix_of_their_framework(run_dir: Path):
    grown(run_dir, [tree(0)] * 4)
    (finding,) = check(run_dir, "TreeDepth", record=False).findings
    assert (finding.step, finding.severity) == (0, Severity.WARNING)
    assert finding.message.startswith("No tree has a split: each is a single leaf")
    assert "lower min_child_weight, gamma, lambda and alpha" in finding.advice
    assert finding.stage is Stage.SETUP
    # Trees end in leaves where nothing is left to learn.
    learned = run_dir.with_name("learned")
    grown(learned, [tree(3), tree(1), tree(0), tree(0)])
    assert check(learned, "TreeDepth", record=False).findings == ()


def full(depth: int) -> dict[str, np.ndarray]:
    """A tree of this depth with all its leaves."""
    nodes = np.arange(2 ** (depth + 1) - 1, dtype=np.int32)
    parents = nodes < 2**depth - 1
    yes, no = (np.where(parents, 2 * nodes + k, -1) for k in (1, 2))
    return {NODE: nodes, YES: yes, NO: no}


def test_a_tree_that_is_deep_where_it_is_narrow_knows_little(run_dir: Path):
    # 31 leaves, LightGBM's own limit, at which its trees may be 30 levels deep.
    grown(run_dir, [tree(30)])
    assert check(run_dir, ["TreeDepth"], record=False).findings == ()
    grown(run_dir.with_name("more"), [tree(31)])
    (finding,) = check(run_dir.with_name("more"), "TreeDepth", record=False).findings
    assert finding.value == 31


def test_of_several_trees_the_deepest_that_is_wide_is_judged(run_dir: Path):
    narrow, wide = tree(20), full(6)
    columns = {
        name: np.concatenate([narrow[name], wide[name]]) for name in (NODE, YES, NO)
    }
    columns["trees/Tree"] = np.repeat([0, 1], [len(narrow[NODE]), len(wide[NODE])])
    grown(run_dir, [columns])
    assert check(run_dir, "TreeDepth", record=False).findings == ()
    (finding,) = check(run_dir, TreeDepth(depth=5), record=False).findings
    assert finding.message == (
        "A tree is 6 levels deep, with 127 nodes; the limit is 5."
    )


def test_without_children_nodes_are_numbered_as_in_a_heap(run_dir: Path):
    grown(run_dir, [{NODE: np.arange(2**5 - 1)}, {NODE: np.array([0, 1, 2, 5, 12])}])
    (finding,) = check(run_dir, TreeDepth(depth=3, leaves=0), record=False).findings
    assert finding.value == 4
    grown(run_dir.with_name("flat"), [{NODE: np.arange(2**4 - 1)}])
    report = check(
        run_dir.with_name("flat"), TreeDepth(depth=3, leaves=0), record=False
    )
    assert report.findings == ()


def test_children_may_be_written_as_xgboost_does(run_dir: Path):
    columns = tree(4)
    for name in (YES, NO):
        texts = [f"7-{node}" if node >= 0 else "" for node in columns[name].tolist()]
        columns[name] = np.array(texts, dtype="U8")
    grown(run_dir, [columns])
    report = check(run_dir, TreeDepth(depth=3, leaves=0), record=False)
    assert report.statuses[0].message == ""
    assert [finding.value for finding in report.findings] == [4]


@pytest.mark.parametrize(
    "columns",
    [
        {NODE: np.array([-5, 1])},
        {NODE: np.array([], np.int32)},
        {NODE: np.array([0, 1]), YES: np.array([1, 1]), NO: np.array([-1, -1])},
    ],
)
def test_damaged_trees_say_nothing(run_dir: Path, columns: dict[str, np.ndarray]):
    grown(run_dir, [columns])
    report = check(run_dir, TreeDepth(depth=1, leaves=0), record=False)
    assert report.findings == ()
    assert report.statuses[0].message == NOTHING_KNOWN


def important(path: Path, steps: list[dict[str, float]], kind: str = "weight") -> None:
    """Importances of each step, each a tensor of one element."""
    with RunBuilder(path) as run:
        for step, row in enumerate(steps):
            for feature, value in row.items():
                name = f"feature_importance/{kind}/{feature}"
                run.save(step, name, np.array([value]), role=Role.OTHER)
            run.end_step(step)


# Splits by each feature.
EVEN = {f"f{i}": 500.0 for i in range(20)}
FEW = {**dict.fromkeys(EVEN, 100.0), "f3": 4000.0, "f4": 3000.0, "f5": 1300.0}


def test_few_features_with_nearly_all_importance_are_reported(run_dir: Path):
    important(run_dir, [EVEN, FEW, FEW, FEW])
    (finding,) = check(run_dir, ["FeatureImportance"], record=False).findings
    assert (finding.tensor, finding.step) == ("feature_importance/weight", 3)
    assert finding.severity is Severity.WARNING
    assert (
        "3 of 20 features, which have 83% of the importance (weight): f3"
        in finding.message
    )


def test_other_kinds_are_judged_if_asked_for(run_dir: Path):
    important(run_dir, [FEW] * 3, kind="gain")
    assert check(run_dir, ["FeatureImportance"], record=False).findings == ()
    found = check(run_dir, FeatureImportance(kind="gain"), record=False).findings
    assert len(found) == 1


def test_of_few_features_all_matter(run_dir: Path):
    important(run_dir, [{"a": 0.5, "b": 0.3, "c": 0.2, "d": 0.0}] * 2)
    assert check(run_dir, ["FeatureImportance"], record=False).findings == ()


def test_features_of_no_use_are_an_info_also_when_trees_drop_them(run_dir: Path):
    rest = {name: 500.0 for name in EVEN if name != "f7"}
    important(run_dir, [EVEN, rest, {**rest, "f8": 0.1}, rest, rest])
    (finding,) = check(run_dir, ["FeatureImportance"], record=False).findings
    assert finding.severity is Severity.INFO
    assert finding.step == 3
    assert "1 of 20 features" in finding.message
    assert "f7" in finding.message


def test_few_splits_say_nothing_of_shares(run_dir: Path):
    one = {**dict.fromkeys(EVEN, 0.0), "f3": 20.0, "f4": 9.0}
    important(run_dir, [one] * 4)
    assert check(run_dir, ["FeatureImportance"], record=False).findings == ()


def test_a_feature_that_takes_all_gain_gives_the_answer_away(run_dir: Path):
    leak = {**dict.fromkeys(EVEN, 1.0), "f3": 1000.0}
    important(run_dir, [EVEN, leak, leak, leak], kind="total_gain")
    (finding,) = check(run_dir, ["FeatureImportance"], record=False).findings
    assert (finding.tensor, finding.step) == (
        "feature_importance/total_gain/leak",
        3,
    )
    assert finding.value == pytest.approx(1000 / 1019)
    assert (
        "f3, one of 20 features, has 98% of the gain of all splits" in finding.message
    )


def test_a_good_feature_leaves_something_for_the_others(run_dir: Path):
    good = {**dict.fromkeys(EVEN, 4.0), "f3": 1000.0}
    important(run_dir, [good] * 4, kind="total_gain")
    assert check(run_dir, ["FeatureImportance"], record=False).findings == ()


def test_the_deepest_tree_of_a_round_is_judged(run_dir: Path):
    shallow, deep = tree(2), tree(7)
    columns = {
        name: np.concatenate([shallow[name], deep[name], shallow[name]])
        for name in shallow
    }
    numbers = [
        np.full(len(each[NODE]), i) for i, each in enumerate([shallow, deep, shallow])
    ]
    columns["trees/Tree"] = np.concatenate(numbers)
    grown(run_dir, [columns])
    (finding,) = check(run_dir, TreeDepth(depth=6, leaves=0), record=False).findings
    assert finding.message == (
        "A tree is 7 levels deep, with 15 nodes; the limit is 6."
    )
