"""Keras: sick trainings are found by the rules that find them in PyTorch, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_programs import run_program
from tdbg.rules import resolve
from tdbg.rules.testing import judge
from tdbg.run.findings import Finding, Severity

# Of each training the rule that names its fault, the tensor, and the step at which it
# does so in PyTorch; none of these depends on chance.
EXPECTED = {
    "deep sigmoids": ("PoorWeightInitialization", "gradient/d0/kernel", 0),
    "dead ReLUs": ("DeadRelu", "d0_relu_output_0", 9),
    "exploding rate": ("WeightUpdateRatio", "d0/kernel", 0),
    "frozen layers": ("NotInOptimizer", "d0/kernel", 9),
    "class imbalance": ("ClassImbalance", "SparseCategoricalCrossentropy_input_1", 12),
    "overfit": ("Overfit", "SparseCategoricalCrossentropy_output_0", 170),
}
# Validation comes once in an epoch, of ten steps.  Losses between captured steps are
# differences of sums, whose rounding puts Overfit one validation later.
EPOCH = 10


@pytest.fixture(scope="module")
def out(tmp_path_factory: Any) -> Path:
    made: Path = tmp_path_factory.mktemp("sick")
    run_program("sick", made)
    return made


def judged(out: Path, training: str) -> list[Finding]:
    return judge(out / training, *resolve("default"))


@pytest.mark.parametrize("training", EXPECTED)
def test_a_fault_is_named_by_the_rule_that_names_it_in_pytorch(
    out: Path, training: str
) -> None:
    rule, tensor, step = EXPECTED[training]
    found = [each for each in judged(out, training) if each.rule == rule]
    assert found
    assert found[0].tensor == tensor
    assert found[0].step - step in ((0, EPOCH) if rule == "Overfit" else (0,))


def test_of_a_healthy_training_nothing_is_said(out: Path) -> None:
    found = judged(out, "healthy")
    assert [each for each in found if each.severity > Severity.INFO] == []
