"""Rules whose question does not arise in a training say so, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rules_fake import FakeRun
from tdbg.modes import EVAL, TRAIN
from tdbg.rules import default_rules, get
from tdbg.rules.engine.engine import check
from tdbg.rules.training_facts import (
    NO_LAYERS,
    NO_PROFILE,
    NOT_EVALUATED,
    ONE_WORKER,
    TrainingFacts,
)
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


def of_hook(hook: str, **known: Any) -> TrainingFacts:
    return TrainingFacts(modes=frozenset({TRAIN}), hook=hook, **known)


PROFILED = {"profile": frozenset({"step"})}


@pytest.mark.parametrize(
    ("rule", "training", "why"),
    [
        ("ModelCopies", of_hook("PyTorch"), ""),
        ("ModelCopies", of_hook("JAX"), "does not look for this in JAX"),
        ("ModelCopies", of_hook("imported runs"), "in imported runs"),
        ("ModelCopies", NOTHING_KNOWN, ""),
        ("RepeatedRandomness", of_hook("JAX"), ""),
        ("RepeatedRandomness", of_hook("PyTorch"), "in PyTorch"),
        ("RunningStatistics", of_hook("Keras"), ""),
        ("GradientsNotCleared", of_hook("PyTorch"), ""),
        ("GradientsNotCleared", of_hook("TensorFlow"), "in TensorFlow"),
        ("LoaderMisuse", of_hook("PyTorch", **PROFILED), ""),
        ("LoaderMisuse", of_hook("PyTorch"), NO_PROFILE),
        ("ReplicaDivergence", of_hook("PyTorch", n_ranks=2), ""),
        ("ReplicaDivergence", of_hook("PyTorch"), ONE_WORKER),
        ("ReplicaDivergence", of_hook("JAX"), ""),
        ("BrokenInvariant", of_hook("MXNet"), ""),
        ("LossSpike", of_hook("MXNet"), ""),
    ],
)
def test_a_rule_says_where_nobody_looks_for_what_it_is_about(
    rule: str, training: TrainingFacts, why: str
) -> None:
    found = get(rule)().unobserved(training)
    assert why in found
    assert bool(found) == bool(why)


def test_what_nobody_looked_for_is_not_counted_as_sound() -> None:
    """Sabotaged: a run of MXNet says that no copy of the model is wrong."""
    run = FakeRun()
    run.settings = {"framework": {"name": "mxnet", "version": "1.9.1"}}
    run.known_facts = [ModelInfo(step=0, modules={"net": "Dense"})]
    for step in range(20):
        run.step(step, {"L2Loss_output_0": np.float32(1 / (step + 1))})
    report = check(run, default_rules(), record=False)
    diagnosis = diagnosis_of_report(report)
    assert {"ModelCopies", "StoppedOptimizer"} <= {*diagnosis.inapplicable}
    assert "BrokenInvariant" in diagnosis.quiet


def test_if_no_rule_applies_the_run_is_not_called_sound() -> None:
    run = FakeRun()
    for step in range(20):
        run.step(step, {"MSELoss_output_0": np.float32(1 / (step + 1))})
    report = check(run, [get("TreeDepth")()], record=False)
    sentence = verdict_of_rules(diagnosis_of_report(report)).sentence
    assert sentence == "No rule applies to this training."


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
