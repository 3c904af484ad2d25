"""The default rules, on trainings of real data: healthy ones and sick ones.

The figures that the defaults were chosen by are in docs/rules/.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tdbg.rules import Report, Status, check
from tdbg.run.findings import Finding, Severity
from trainings import OK, SICK, adam, cnn, mlp, sgd

pytestmark = pytest.mark.torch

# Five seeds of many more trainings are in benchmarks/detection.
# They see the labels of a few hundred samples and a model that has begun to learn.
CLASSIFIERS = {"ClassImbalance", "Confusion"}
# By when each must be found.
LATEST = {
    "VanishingGradient": 9,
    "DeadRelu": 9,
    "ExplodingTensor": 10,
    "UnchangedTensor": 9,
    "LossNotDecreasing": 150,
}


def findings_of(run: Path | Report, rule: str) -> list[Finding]:
    report = check(run, record=False) if isinstance(run, Path) else run
    assert all(one.status is not Status.ERROR for one in report.statuses)
    return [finding for finding in report.findings if finding.rule == rule]


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Report]:
    """The report on a sick training, which is trained and judged once."""

    @functools.cache
    def judged(rule: str) -> Report:
        run = tmp_path_factory.mktemp("sick") / "run"
        SICK[rule].run(run, seed=0)
        return check(run, record=False)

    return judged


@pytest.mark.parametrize("name", OK)
def test_a_healthy_training_has_no_finding(name: str, tmp_path: Path):
    OK[name].run(tmp_path / "run", seed=0)
    report = check(tmp_path / "run", record=False)
    by_others = [each for each in report.findings if each.rule not in CLASSIFIERS]
    assert by_others == []
    assert all(each.severity is Severity.WARNING for each in report.findings)
    assert report.n_steps == OK[name].n_steps


@pytest.mark.parametrize("rule", SICK)
def test_a_sick_training_is_found_out_in_time(rule: str, sick: Callable[[str], Report]):
    found = findings_of(sick(rule), rule)
    assert found
    assert found[0].step <= LATEST[rule]


def test_the_first_layers_of_a_deep_sigmoid_network_are_named(
    sick: Callable[[str], Report],
):
    found = findings_of(sick("VanishingGradient"), "VanishingGradient")
    names = {finding.tensor for finding in found}
    assert "gradient/0.weight" in names
    assert "gradient/16.weight" not in names
    assert all(finding.severity is Severity.ERROR for finding in found)


def test_a_learning_rate_that_kills_relus_is_found(tmp_path: Path):
    training = replace(SICK["DeadRelu"], model=lambda: mlp(3), optimizer=adam(1.0))
    training.run(tmp_path / "run", 0)
    assert findings_of(tmp_path / "run", "DeadRelu")


def test_only_the_layer_of_dead_relus_is_named(
    sick: Callable[[str], Report],
):
    found = findings_of(sick("DeadRelu"), "DeadRelu")
    assert [finding.tensor for finding in found] == ["3_output_0"]


def test_only_the_tensor_that_exploded_first_is_named(
    sick: Callable[[str], Report],
):
    (found,) = findings_of(sick("ExplodingTensor"), "ExplodingTensor")
    assert "is the first tensor that is not finite" in found.message
    assert "more" in found.message


def test_shuffled_labels_are_found(tmp_path: Path):
    training = replace(OK["mlp"], shuffled_labels=True, n_steps=200)
    training.run(tmp_path / "run", 0)
    assert findings_of(tmp_path / "run", "LossNotDecreasing")


def test_a_learning_rate_of_zero_is_found_at_a_sparse_schedule(tmp_path: Path):
    training = replace(SICK["UnchangedTensor"], statistics_interval=10, n_steps=40)
    training.run(tmp_path / "run", 0)
    found = findings_of(tmp_path / "run", "UnchangedTensor")
    # Every step of the beginning is recorded for it.
    assert found[0].step == 9


def test_frozen_layers_are_not_found_where_others_do_not_change(tmp_path: Path):
    frozen = replace(SICK["UnchangedTensor"], model=OK["frozen backbone"].model)
    frozen.run(tmp_path / "run", 0)
    found = findings_of(tmp_path / "run", "UnchangedTensor")
    assert {finding.tensor for finding in found} == {"7.weight", "9.weight"}


def test_asking_for_rules_is_enough_to_capture_what_they_need(tmp_path: Path):
    training = replace(SICK["VanishingGradient"], collections=("losses",), model=cnn)
    dead = replace(SICK["DeadRelu"], collections=("losses",))
    dead.run(tmp_path / "run", 0)
    assert findings_of(tmp_path / "run", "DeadRelu")
    assert findings_of(tmp_path / "run", "VanishingGradient")
    training.run(tmp_path / "other", 0)
    assert check(tmp_path / "other", record=False).healthy


@pytest.mark.parametrize("optimizer", [sgd(100.0), adam(1.0)], ids=["SGD", "Adam"])
def test_a_rate_a_thousand_times_too_high_is_the_error_that_all_else_follows_from(
    optimizer: Callable[..., object], tmp_path: Path
):
    run = tmp_path / "run"
    replace(OK["mlp"], optimizer=optimizer, n_steps=40).run(run, seed=0)
    report = check(run, record=False)
    first, *others = report.findings
    assert (first.rule, first.step, first.severity) == (
        "WeightUpdateRatio",
        0,
        Severity.ERROR,
    )
    assert not first.is_over
    assert others
    assert {each.cause and each.cause.rule for each in others} == {first.rule}
