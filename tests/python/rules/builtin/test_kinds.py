"""Rules judge classes of any name by their kinds, as a further framework has them."""

from __future__ import annotations

import numpy as np

from rules_fake import FakeRun, judge, row_of
from tdbg.config import Kind
from tdbg.rules import (
    DeadRelu,
    LossMisuse,
    NotNormalizedData,
    PoorWeightInitialization,
    Rule,
    SaturatedActivation,
    TensorVariance,
)
from tdbg.run.model_info import ModelInfo, ParameterFacts

DENSE = ParameterFacts(
    shape=(40, 40), dtype="float32", requires_grad=True, module="Dense"
)
RANDOM = np.random.default_rng(0)


def run_of(**kinds: Kind) -> FakeRun:
    """A run of three layers, in the order in which they are given their inputs."""
    run = FakeRun(every=10)
    modules = {"": "Net", "a": "Dense", "act": "Activation", "b": "Dense"}
    parameters = {"a.weight": DENSE, "b.weight": DENSE}
    run.known_facts = [
        ModelInfo(step=0, modules=modules, parameters=parameters, kinds=kinds)
    ]
    return run


def rules_of(run: FakeRun, rule: Rule) -> list[str]:
    return [finding.tensor for finding in judge(run, rule)]


def test_units_of_an_activation() -> None:
    for kind, rule in (
        (Kind.SIGMOID, SaturatedActivation()),
        (Kind.RELU, DeadRelu()),
    ):
        for known in (kind, Kind.FLATTEN):
            run = run_of(Activation=known)
            for step in range(6):
                run.units(step, "act_output_0", [0] * 10, 64, [64] * 10)
                run.step(step)
            expected = ["act_output_0"] if known is kind else []
            assert rules_of(run, rule) == expected


def test_initial_weights_of_layers() -> None:
    for kind, expected in ((Kind.LINEAR, ["a.weight"]), (Kind.EMBEDDING, [])):
        run = run_of(Dense=kind)
        weights = {f"{name}.weight": RANDOM.normal(0, 2, (40, 40)) for name in "ab"}
        run.step(0, weights)
        assert rules_of(run, PoorWeightInitialization()) == expected


def test_targets_of_a_regression() -> None:
    for kind, expected in ((Kind.MSE, ["FitLoss_input_1"]), (Kind.NLL, [])):
        run = run_of(FitLoss=kind)
        for step in range(6):
            targets = RANDOM.normal(150.0, 5.0, 600).astype(np.float32)
            run.step(step, {"FitLoss_input_1": targets})
            run.tensor_of("FitLoss_input_1").dtype = "float32"
        assert rules_of(run, NotNormalizedData()) == expected


def test_nodes_without_features_are_ones() -> None:
    """An input of another constant is one that lacks its data."""
    for value, expected in ((1.0, []), (0.5, ["Model_input_0"])):
        run = run_of()
        for step in range(6):
            run.step(step, {"Model_input_0": np.full(600, value, np.float32)})
            run.tensor_of("Model_input_0").dtype = "float32"
        for rule in (NotNormalizedData(), TensorVariance()):
            assert rules_of(run, rule) == expected


def test_what_a_loss_is_given() -> None:
    for kind, expected in ((Kind.BCE_WITH_LOGITS, ["FitLoss_input_0"]), (Kind.MSE, [])):
        run = run_of(FitLoss=kind)
        for step in range(4):
            run.step(step, {"FitLoss_input_0": row_of(RANDOM.uniform(0.05, 0.95, 64))})
        assert rules_of(run, LossMisuse()) == expected


def test_a_norm_of_weights_does_not_normalize_the_input() -> None:
    """The parametrization of the first layer is the first leaf."""
    for name, expected in (("_WeightNorm", ["Model_input_0"]), ("OwnRMSNorm", [])):
        run = FakeRun()
        modules = {"": "Model", "0.parametrizations.weight.0": name}
        run.known_facts = [ModelInfo(step=0, modules=modules)]
        run.step(0, {"Model_input_0": RANDOM.normal(10, 1, 600).astype(np.float32)})
        run.tensor_of("Model_input_0").dtype = "float32"
        assert rules_of(run, NotNormalizedData()) == expected
