"""What a framework does not tell is not judged, and the rule says so."""

from __future__ import annotations

import pytest

from profile_fake import ProfiledTraining
from rules_fake import FakeRun
from tdbg.rules import (
    BatchSize,
    CheckpointStall,
    DataLoaderBound,
    EvaluationShare,
    GcPauses,
    RecompilationStorm,
    Rule,
    check,
)

STEP = {"compute": 0.08, "other": 0.02}


def training(framework: str, version: str = "1.0", **extra: float) -> ProfiledTraining:
    made = ProfiledTraining(FakeRun())
    made.run.settings = {"framework": {"name": framework, "version": version}}
    made.steps(90, {**STEP, **extra})
    return made


def message_of(made: ProfiledTraining, rule: Rule) -> str:
    report = check(made.run, [rule], record=False)
    assert report.findings == ()
    return report.statuses[0].message


@pytest.mark.parametrize(
    ("framework", "rule", "unreported"),
    [
        ("mxnet", RecompilationStorm(), "MXNet does not tell when it compiles"),
        ("jax", CheckpointStall(), "JAX does not tell when a checkpoint is saved"),
        ("xgboost", EvaluationShare(), "XGBoost does not tell how long evaluation "),
        ("jax", DataLoaderBound(), "JAX does not tell how long a step waits for data"),
        ("jax", BatchSize(), "JAX does not tell how long a step waits for data"),
    ],
)
def test_a_phase_that_is_not_told_is_not_judged(
    framework: str, rule: Rule, unreported: str
) -> None:
    made = training(framework)
    made.samples("gpu", made.now - 10**10, instance="a", index=0, run_processes=1)
    assert message_of(made, rule).startswith(f"nothing to judge: {unreported}")


@pytest.mark.parametrize("rule", [RecompilationStorm(), CheckpointStall(), GcPauses()])
def test_pytorch_tells_all_that_these_rules_judge(rule: Rule) -> None:
    assert message_of(training("pytorch"), rule) == ""


def test_a_loader_that_tdbg_would_have_seen_does_not_exist() -> None:
    expected = "does not apply: tdbg saw no data loader"
    assert message_of(training("pytorch"), DataLoaderBound()) == expected
    assert message_of(training("xgboost"), DataLoaderBound()) == expected


def test_a_phase_that_some_row_has_is_judged_from_then_on() -> None:
    made = training("tensorflow")
    made.steps(60, {**STEP, "compile": 0.05})
    report = check(made.run, [RecompilationStorm()], record=False)
    assert [each.rule for each in report.findings] == ["RecompilationStorm"]
