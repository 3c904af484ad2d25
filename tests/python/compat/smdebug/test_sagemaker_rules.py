"""SageMaker's rules with its parameters: when they fire."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdbg
from run_builder import RunBuilder
from tdbg.compat.smdebug import rules
from tdbg.compat.smdebug.exceptions import RuleEvaluationConditionMet, SMDebugValueError
from tdbg.compat.smdebug.trials import create_trial
from tdbg.config import Role
from tdbg.errors import ConfigurationError
from tdbg.modes import EVAL, TRAIN, ModeKeys

LOSS = "loss_output_0"


def record(run_dir: Path, losses: Sequence[tuple[ModeKeys, float]]) -> None:
    """Record a run of losses, each with the mode of its step."""
    with RunBuilder(run_dir) as run:
        for step, (mode, loss) in enumerate(losses):
            run.save(step, LOSS, np.full((), loss, np.float32), role=Role.LOSS)
            run.end_step(step, mode)


def fired(run_dir: Path, kind: Any, **parameters: Any) -> list[int]:
    trial = create_trial(str(run_dir))
    rule = kind(trial, **parameters)
    found = []
    for step in trial.steps():
        try:
            rule.invoke(step)
        except RuleEvaluationConditionMet:
            found.append(step)
    return found


# ---- Overfit ---------------------------------------------------------------------


@pytest.fixture
def overfitted(run_dir: Path) -> Path:
    """Training at odd steps; validation at even ones is 5 %, 20 %, ... above it."""
    losses: list[tuple[ModeKeys, float]] = []
    for validation in (1.05, 1.2, 1.3, 1.05, 1.2):
        losses += [(TRAIN, 1.0), (EVAL, validation)]
    record(run_dir, losses)
    return run_dir


def test_a_validation_loss_above_that_of_training_is_overfit(overfitted: Path) -> None:
    assert fired(overfitted, rules.Overfit) == [3, 5, 9]
    assert fired(overfitted, rules.Overfit, ratio_threshold="0.25") == [5]
    assert fired(overfitted, rules.Overfit, start_step="4") == [5, 9]


def test_the_patience_of_overfit_is_counted_in_steps_of_evaluation(
    overfitted: Path,
) -> None:
    assert fired(overfitted, rules.Overfit, patience=2) == [5]
    assert fired(overfitted, rules.Overfit, patience="3") == []


def test_overfit_judges_the_losses_that_are_named(overfitted: Path) -> None:
    assert fired(overfitted, rules.Overfit, tensor_regex="nothing, loss_") == [3, 5, 9]
    assert fired(overfitted, rules.Overfit, tensor_regex="nothing") == []


# ---- Overtraining ----------------------------------------------------------------


def test_a_loss_that_has_no_new_optimum_for_its_patience_is_overtrained(
    run_dir: Path,
) -> None:
    record(run_dir, [(TRAIN, loss) for loss in (3.0, 2.0, 1.95, 1.93, 1.92, 1.5, 1.5)])
    assert fired(run_dir, rules.Overtraining, patience_train="3") == [4]
    assert fired(run_dir, rules.Overtraining) == []  # 0.5 less is a new optimum.
    assert fired(run_dir, rules.Overtraining, patience_train=5, delta=0.6) == [6]
    # A share of the loss, as of tdbg's own rule, would be another thing.
    assert fired(run_dir, rules.Overtraining, patience_train=2, delta="0.04") == [4]


def test_training_and_validation_both_have_to_wait(run_dir: Path) -> None:
    losses: list[tuple[ModeKeys, float]] = []
    for step in range(8):
        losses += [(TRAIN, 1.0), (EVAL, 2.0 if step else 3.0)]
    record(run_dir, losses)
    found = fired(run_dir, rules.Overtraining, patience_train=2, patience_validation=5)
    assert found == [13, 14, 15]  # The sixth step of evaluation after the optimum.


# ---- PoorWeightInitialization ----------------------------------------------------


def begin(
    run_dir: Path,
    *,
    spread: float = 2.0,
    gradient: float = 0.1,
    losses: Sequence[float] = (3.0, 2.0, 1.0),
) -> None:
    """Record the first steps of a network with two activations."""
    random = np.random.default_rng(7)
    normal = random.standard_normal(200).astype(np.float32)
    with RunBuilder(run_dir) as run:
        for step, loss in enumerate(losses):
            run.save(step, "first.relu_input_0", normal, role=Role.INPUT)
            run.save(step, "last.relu_input_0", normal * spread, role=Role.INPUT)
            run.save(step, "gradient/w", normal * gradient, role=Role.GRADIENT)
            run.save(step, LOSS, np.full((), loss, np.float32), role=Role.LOSS)
            run.end_step(step)


def test_variances_that_differ_from_layer_to_layer_are_poor(run_dir: Path) -> None:
    begin(run_dir, spread=4.0)
    rule = rules.PoorWeightInitialization
    assert fired(run_dir, rule) == [0, 1, 2]  # 16 times.
    assert fired(run_dir, rule, threshold="17") == []
    assert fired(run_dir, rule, steps=1) == [0]
    assert fired(run_dir, rule, activation_inputs_regex="first.relu") == []


def test_a_narrow_gradient_is_poor(run_dir: Path) -> None:
    begin(run_dir, gradient=1e-4)
    assert fired(run_dir, rules.PoorWeightInitialization) == [0, 1, 2]
    given = {"distribution_range": "1e-5"}
    assert fired(run_dir, rules.PoorWeightInitialization, **given) == []


def test_a_loss_that_stays_at_first_is_poor(run_dir: Path) -> None:
    begin(run_dir, losses=(2.0,) * 12)
    assert fired(run_dir, rules.PoorWeightInitialization) == [5, 6, 7, 8, 9]
    assert fired(run_dir, rules.PoorWeightInitialization, patience="8") == [8, 9]


def test_a_good_beginning_is_not_poor(run_dir: Path) -> None:
    begin(run_dir)
    assert fired(run_dir, rules.PoorWeightInitialization) == []


# ---- SimilarAcrossRuns -----------------------------------------------------------


@pytest.fixture
def two_runs(tmp_path: Path) -> list[Path]:
    """Two runs whose weights differ at step 2, and whose biases never do."""
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        with RunBuilder(path) as run:
            for step in range(3):
                weight = np.full(3, step, np.float32)
                if step == 2 and path.name == "b":
                    weight[1] += 0.01
                run.save(step, "fc.weight", weight, role=Role.WEIGHT)
                run.save(step, "fc.bias", np.zeros(2, np.float32), role=Role.BIAS)
                run.end_step(step)
    return paths


def test_tensors_that_differ_from_another_run_are_found(two_runs: list[Path]) -> None:
    first, second = two_runs
    other = [create_trial(str(second))]
    same = [create_trial(str(first))]
    rule = rules.SimilarAcrossRuns
    assert fired(first, rule, other_trials=other) == [2]
    assert fired(first, rule, other_trials=same) == []
    assert fired(first, rule, other_trials=same + other) == [2]
    assert fired(first, rule, other_trials=other, collection_names="biases") == []
    assert fired(first, rule, other_trials=other, tensor_regex="weight") == [2]
    both = {"collection_names": "biases", "tensor_regex": "weight"}
    assert fired(first, rule, other_trials=other, **both) == [2]


def test_an_engine_gives_the_other_runs_by_their_paths(two_runs: list[Path]) -> None:
    first, second = map(str, two_runs)
    rule = rules.SimilarAcrossRuns.__tdbg_rule__()(other_trials=second)
    (finding,) = tdbg.rules.check(first, rule).findings
    assert finding.first_step == 2
    with pytest.raises(SMDebugValueError, match="other_trials is empty"):
        rules.SimilarAcrossRuns(create_trial(first))


# ---- parameters ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Overfit", {"patience": 0}),
        ("Overfit", {"start_step": "-1"}),
        ("Overfit", {"ratio_threshold": "nan"}),
        ("Overtraining", {"patience_train": 0}),
        ("Overtraining", {"delta": -0.1}),
        ("PoorWeightInitialization", {"threshold": "0.5"}),
        ("PoorWeightInitialization", {"steps": 0}),
        ("PoorWeightInitialization", {"distribution_range": -1}),
    ],
)
def test_a_parameter_out_of_its_range_is_refused(
    run_dir: Path, name: str, parameters: dict[str, Any]
) -> None:
    record(run_dir, [(TRAIN, 1.0)])
    with pytest.raises(SMDebugValueError, match=next(iter(parameters))):
        getattr(rules, name)(create_trial(str(run_dir)), **parameters)


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("Overfit", "patience"),
        ("Overtraining", "delta"),
        ("Overtraining", "patience_train"),
        ("Overtraining", "patience_validation"),
        ("PoorWeightInitialization", "threshold"),
        ("PoorWeightInitialization", "distribution_range"),
        ("SimilarAcrossRuns", "other_trials"),
    ],
)
def test_tdbgs_own_rule_does_not_take_a_parameter_that_would_mean_something_else(
    name: str, parameter: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"no parameter '{parameter}'"):
        tdbg.rules.resolve([{"name": name, parameter: 10}])
