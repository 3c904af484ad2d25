"""Advice is said in the words of the framework that writes the run."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import tdbg.rules.builtin
from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.config.needs import Needs
from tdbg.rules import Evaluation, Rule, check
from tdbg.rules.engine.engine import Engine
from tdbg.rules.window import Description, TensorInfo, Window
from tdbg.rules.words import FRAMEWORKS, PHRASES, in_words_of
from tdbg.run.findings import Severity
from tdbg.run.schema import EventKind

# What only PyTorch is called by, in the advice of rules.
OF_TORCH = re.compile(
    r"torch|zero_grad\(\)|requires_grad_|optimizer\.step\(|load_state_dict|no_grad"
    r"|clip_grad_norm_|ModuleList|F\.dropout|CrossEntropyLoss|WeightedRandomSampler"
    r"|kaiming|xavier_normal_|model\.(train|eval)\(\)(?! of NNX| in NNX)"
)
# Words that MXNet has, too, and a message about functions that only PyTorch has.
OF_OTHERS = re.compile(
    r"net\.zero_grad\(\)|gluon\.loss\.SoftmaxCrossEntropyLoss"
    r"|a dropout function of torch\.nn\.functional"
)
BUILTIN = Path(tdbg.rules.builtin.__file__).parent


def texts() -> Iterator[str]:
    """Every text in the rules that is no docstring."""
    for path in sorted(BUILTIN.rglob("*.py")):
        tree = ast.parse(path.read_text())
        statements = {
            id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in statements
            ):
                yield node.value


@pytest.mark.parametrize("framework", ["jax", "keras", "mxnet", "tensorflow"])
def test_no_advice_speaks_of_pytorch_to_another_framework(framework: str):
    left = [
        text
        for text in (in_words_of(framework, each) for each in texts())
        if OF_TORCH.search(OF_OTHERS.sub("", text))
    ]
    assert left == []


@pytest.mark.parametrize("phrase", PHRASES)
def test_every_phrase_stands_in_the_advice_of_a_rule(phrase: str):
    assert any(phrase in text for text in texts())


def test_of_two_phrases_the_longer_one_is_taken():
    advice = "use torch.nn.utils.clip_grad_norm_ with max_norm=0.5"
    assert in_words_of("keras", advice) == (
        "use the optimizer's argument global_clipnorm=0.5"
    )


def test_advice_stays_as_it_is_where_the_rules_have_the_words_of_the_framework():
    for text in texts():
        assert in_words_of("pytorch", text) == text
        assert in_words_of("xgboost", text) == text
    assert "pytorch" not in FRAMEWORKS
    assert "tensorflow" in FRAMEWORKS


NODES = {
    "trees/Node": np.arange(2**12 - 1, dtype=np.int32),
}


def deep_trees(path: Path, framework: str) -> None:
    with RunBuilder(path) as run:
        content = json.dumps(
            {"framework": {"name": framework, "version": "1"}}
        ).encode()
        run.capture.event(0, EventKind.CONFIGURATION, 1, content)
        run.save(0, "trees/Node", NODES["trees/Node"], what="values", role=Role.OTHER)
        run.end_step(0)


def test_the_framework_is_the_one_that_wrote_the_run(run_dir: Path):
    deep_trees(run_dir, "lightgbm")
    (finding,) = check(run_dir, "TreeDepth", record=False).findings
    assert "lower num_leaves" in finding.advice
    assert "gamma" not in finding.advice


SAID = Description(
    message="bad",
    value=1.0,
    threshold=0.0,
    advice=", or raise min_child_weight or gamma",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfSomebodyElse(Rule):
    """A rule that is no part of tdbg."""

    @property
    def needs(self) -> Needs:
        return Needs(collections=frozenset({"trees"}), raw=True)

    def selects(self, tensor: TensorInfo) -> bool:
        return tensor.name == "trees/Node"

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        for table in window.tables():
            n_new = len(table.steps) - table.start
            levels = np.full(n_new, Severity.WARNING, dtype=np.int8)
            yield table.judge_one("trees/Node", levels, lambda _: SAID)


def test_advice_of_other_peoples_rules_is_theirs(run_dir: Path):
    deep_trees(run_dir, "catboost")
    engine = Engine(run_dir, OfSomebodyElse(), record=False, isolate=False)
    engine.poll()
    (finding,) = engine.finish().findings
    assert finding.advice == SAID.advice
