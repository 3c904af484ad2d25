"""What smdebug 1.0.34 wrote, read as smdebug reads it: tests/corpus/smdebug."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tdbg
from smdebug_corpus import CASES, CORPUS, expected
from tdbg.config.collections import CollectionKeys
from tdbg.errors import TensorUnavailableForStep
from tdbg.modes import ModeKeys
from tdbg.rules import check


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(case: str) -> tdbg.Trial:
    return tdbg.create_trial(CORPUS / case / "out")


def test_every_value_is_what_smdebug_returns(case: str) -> None:
    trial, document, arrays = opened(case), *expected(case)
    compared = 0
    for entry in document["values"]:
        if "array" not in entry:
            continue
        tensor = trial.tensor(entry["tensor"])
        found = tensor.value(entry["step"], entry["mode"], entry["worker"])
        want = arrays[str(entry["array"])]
        if tensor.role == "scalar":
            assert found == want.item()
        else:
            assert found.dtype == want.dtype
            np.testing.assert_array_equal(found, want)
        compared += 1
    assert compared == sum("array" in entry for entry in document["values"]) > 0


def test_steps_modes_and_workers_are_those_of_smdebug(case: str) -> None:
    trial, (document, _) = opened(case), expected(case)
    assert trial.steps("GLOBAL", "any") == document["global_steps"]
    assert trial.workers() == document["workers"]
    for mode, steps in document["steps"].items():
        assert trial.steps(mode, "any") == steps
    modes = {mode.name for mode in trial.modes()}
    assert modes - {ModeKeys.GLOBAL.name} == set(document["steps"])


def test_every_name_of_smdebug_finds_its_tensor(case: str) -> None:
    trial, (document, _) = opened(case), expected(case)
    for name in document["tensor_names"]:
        tensor = trial.tensor(name)
        assert name in (tensor.name, *tensor.aliases) or not tensor.aliases


def test_nothing_is_lost_and_the_run_has_ended(case: str) -> None:
    trial = opened(case)
    assert trial.status == "closed"
    assert trial.lost_records().in_order
    assert trial.problems() == []
    assert trial.verify() == []


def test_rows_are_those_of_the_values(case: str) -> None:
    trial = opened(case)
    for name in trial.tensor_names():
        tensor = trial.tensor(name)
        for step in tensor.steps("GLOBAL", "statistics", worker="worker_0"):
            value = tensor.value(step, "GLOBAL", "worker_0").astype(np.float64)
            assert tensor.stats(step, "GLOBAL", "worker_0").count == value.size
            mean = tensor.reduction_value(step, "mean", "GLOBAL", "worker_0")
            np.testing.assert_allclose(mean, value.mean(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("case_name", "collection", "names"),
    [
        ("pytorch", "weights", {"conv1.weight", "fc.weight"}),
        ("pytorch", "biases", {"conv1.bias", "fc.bias"}),
        (
            "pytorch",
            "gradients",
            {f"gradient/{m}.{p}" for m in ("conv1", "fc") for p in ("weight", "bias")},
        ),
        ("pytorch", "losses", {"CrossEntropyLoss_output_0"}),
        ("pytorch", "predictions", {"CrossEntropyLoss_input_0"}),
        ("pytorch", "labels", {"CrossEntropyLoss_input_1"}),
        ("keras", "weights", {"d1/kernel", "d2/kernel"}),
        ("keras", "biases", {"d1/bias", "d2/bias"}),
        ("keras", "losses", {"loss", "val_loss"}),
        ("keras", "outputs", {"d1_output_0", "d2_output_0"}),
        ("tape", "weights", {"d1/kernel", "d2/kernel"}),
        (
            "tape",
            "gradients",
            {f"gradient/{m}/{p}" for m in ("d1", "d2") for p in ("kernel", "bias")},
        ),
        ("mxnet", "losses", {"softmaxcrossentropyloss0_output_0"}),
        ("mxnet", "labels", {"softmaxcrossentropyloss0_input_1"}),
        ("xgboost", "losses", {"train-logloss", "validation-logloss"}),
        ("xgboost", "labels", {"labels"}),
        ("workers", "weights", {"0.weight"}),
    ],
)
def test_tensors_have_the_roles_that_rules_go_by(
    case_name: str, collection: str, names: set[str]
) -> None:
    assert set(opened(case_name).tensor_names(collection=collection)) == names


def test_collections_of_trees_hold_what_smdebug_put_there() -> None:
    trial = opened("xgboost")
    for key in (CollectionKeys.TREES, CollectionKeys.HYPERPARAMETERS):
        names = trial.tensor_names(collection=key.value)
        assert names
        assert all(name.startswith(f"{key.value}/") for name in names)


def test_a_wall_time_is_that_at_which_smdebug_wrote_the_step() -> None:
    out = CORPUS / "pytorch" / "out"
    table = opened("pytorch").step_table()
    written = json.loads((out.parent / "expected.json").read_text())["global_steps"]
    times = np.asarray(table["wall_ns"])
    assert len(times) == len(written)
    assert np.all(np.diff(times) > 0)
    assert times.max() < (Path(out) / "training_job_end.ts").stat().st_mtime_ns


def test_reductions_without_values_are_what_smdebug_stored() -> None:
    trial, (document, _) = opened("reductions"), expected("reductions")
    assert document["reductions"]
    for entry in document["reductions"]:
        tensor = trial.tensor(entry["tensor"])
        place = entry["mode"], entry["worker"]
        found = tensor.reduction_value(
            entry["step"], entry["reduction"], *place, abs=entry["abs"]
        )
        assert found == entry["value"]
        stored = tensor.reduction_values(entry["step"], *place)
        assert stored[entry["reduction"], entry["abs"]] == entry["value"]


def test_of_reductions_nothing_is_made_up() -> None:
    tensor = opened("reductions").tensor("gradient/Net_conv1.weight")
    assert tensor.name == "gradient/conv1.weight"
    assert tensor.steps() == [0, 1, 2]
    assert tensor.steps(what="values") == tensor.steps(what="statistics") == []
    assert tensor.shape(0) == (4, 1, 3, 3)
    assert ("variance", False) not in tensor.reduction_values(0)
    for ask in (tensor.value, tensor.stats):
        with pytest.raises(TensorUnavailableForStep, match="reductions alone"):
            ask(0)
    with pytest.raises(TensorUnavailableForStep, match="reductions alone"):
        tensor.reduction_value(0, "variance")


def test_rules_judge_what_smdebug_wrote() -> None:
    report = check(CORPUS / "mxnet" / "out", record=False)
    statuses = {status.rule: status.status.name for status in report.statuses}
    assert statuses["ExplodingTensor"] == "NO_ISSUES_FOUND"
