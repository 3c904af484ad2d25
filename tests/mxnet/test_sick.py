"""Gluon: sick trainings are found by the rules that find them in PyTorch, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.frameworks.programs import gluon
from tdbg.rules import resolve
from tdbg.rules.testing import judge
from tdbg.run.findings import Severity

# Of each training the rule that names its fault, the tensor, and the step at which it
# does so in PyTorch; none of these depends on chance.
EXPECTED = {
    "deep sigmoids": ("PoorWeightInitialization", "gradient/net_dense0_weight", 0),
    "dead ReLUs": ("DeadRelu", "net_relu0_output_0", 9),
    "exploding rate": ("WeightUpdateRatio", "net_dense0_weight", 0),
    "frozen layers": ("NotInOptimizer", "net_dense0_weight", 9),
    "class imbalance": ("ClassImbalance", "_input_1", 13),
    "overfit": ("Overfit", "_output_0", 186),
}


@pytest.mark.parametrize("training", EXPECTED)
def test_a_fault_is_named_by_the_rule_that_names_it_in_pytorch(
    run_dir: Path, training: str
) -> None:
    gluon.main(training, str(run_dir))
    rule, tensor, step = EXPECTED[training]
    found = [each for each in judge(run_dir, *resolve("default")) if each.rule == rule]
    assert found
    assert str(found[0].tensor).endswith(tensor)
    assert found[0].step == step


def test_of_a_healthy_training_nothing_is_said(run_dir: Path) -> None:
    gluon.main("healthy", str(run_dir))
    found = judge(run_dir, *resolve("default"))
    assert [each for each in found if each.severity > Severity.INFO] == []
