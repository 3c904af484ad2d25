"""Rules whose question does not arise in a training say so, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rules_fake import FakeRun
from tdbg.modes import EVAL, TRAIN
from tdbg.rules import default_rules, get
from tdbg.rules.engine.engine import check
from tdbg.rules.training_facts import NO_LAYERS, NOT_EVALUATED, TrainingFacts
from tdbg.run.model_info import ModelInfo, ParameterFacts
from tdbg.view import diagnosis_of_report, verdict_of_rules


def facts(*, trees: bool = False, evaluated: bool = False, **known: Any) -> Any:
    info = ModelInfo(step=0, **known)
    modes = [TRAIN, EVAL] if evaluated else [TRAIN]
    return TrainingFacts.of(modes, [info], [], has_trees=trees)


def of_type(dtype: str) -> dict[str, ParameterFacts]:
    parameter = ParameterFacts(
        shape=(2,), dtype=dtype, requires_grad=True, module="Linear"
    )
    return {"fc.weight": parameter}


NOTHING_KNOWN = TrainingFacts(modes=frozenset({TRAIN}))


@pytest.mark.parametrize(
    ("rule", "training", "why"),
    [
        ("DeadEmbedding", facts(modules={"fc": "Linear"}), "no embedding in the model"),
        ("DeadEmbedding", facts(modules={"words": "Embedding"}), ""),
        ("DeadEmbedding", NOTHING_KNOWN, ""),
        ("NLPSequenceRatio", facts(modules={"fc": "Linear"}), "no embedding"),
        ("SaturatedActivation", facts(modules={"act": "ReLU"}), "or tanh in the model"),
        ("SaturatedActivation", facts(modules={"act": "Tanh"}), ""),
        ("PrecisionLoss", facts(parameters=of_type("float32")), "float32"),
        ("PrecisionLoss", facts(parameters=of_type("bfloat16")), ""),
        ("PrecisionLoss", NOTHING_KNOWN, ""),
        ("Overfit", facts(), NOT_EVALUATED),
        ("Overfit", facts(evaluated=True), ""),
        ("DropoutInEvaluation", facts(), NOT_EVALUATED),
        ("Confusion", facts(kinds={"MSELoss": "mse"}), "numbers, not classes"),
        ("UnshuffledData", facts(kinds={"MSELoss": "mse"}), "numbers, not classes"),
        ("Confusion", facts(kinds={"a": "mse", "b": "cross_entropy"}), ""),
        ("SlowSchedule", facts(), "no schedule"),
        ("TreeDepth", facts(), "no boosted trees"),
        ("TreeDepth", facts(trees=True), ""),
        ("TreeSettings", facts(), "no boosted trees"),
        ("TreeSettings", facts(trees=True), ""),
        ("VanishingGradient", facts(trees=True), NO_LAYERS),
        ("StoppedOptimizer", facts(trees=True), NO_LAYERS),
        ("LossNotDecreasing", facts(trees=True), ""),
        ("LossNotDecreasing", facts(), ""),
        ("VanishingGradient", facts(), ""),
    ],
)
def test_a_rule_applies_where_its_question_arises(
    rule: str, training: TrainingFacts, why: str
) -> None:
    found = get(rule)().inapplicable(training)
    assert why in found
    assert bool(found) == bool(why)


def test_what_does_not_apply_lacks_no_data() -> None:
    """Sabotaged: they count among the rules that had too little data."""
    run = FakeRun()
    for step in range(20):
        run.step(step, {"MSELoss_output_0": np.float32(1 / (step + 1))})
    report = check(run, default_rules(), record=False)
    diagnosis = diagnosis_of_report(report)
    assert {"TreeDepth", "Overfit", "SlowSchedule"} <= {*diagnosis.inapplicable}
    assert {"LossSpike", "Underfitting"} <= {*diagnosis.blind}
    counted = [diagnosis.quiet, diagnosis.blind, diagnosis.inapplicable]
    assert sum(map(len, counted)) == len(report.statuses)
    words = f"{len(diagnosis.blind)} rules had too little data"
    assert words in verdict_of_rules(diagnosis).sentence
