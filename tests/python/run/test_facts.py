"""Facts of a model: as JSON, in parts, and read back from a run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg.config import Kind
from tdbg.run.model_info import ModelInfo, ParameterFacts, gather, owner_of
from tdbg.trial import create_trial

CONFIGURATION = 1

WEIGHT = ParameterFacts(
    shape=(4, 3), dtype="float32", requires_grad=True, module="Linear", optimizer=0
)
BIAS = ParameterFacts(shape=(4,), dtype="bfloat16", requires_grad=False, module="Own")
KERNEL = ParameterFacts(
    shape=(3, 4), dtype="float32", requires_grad=True, module="Dense", unit_axis=1
)
FACTS = ModelInfo(
    step=3,
    models=("Net",),
    losses=("MSELoss", "MSELoss"),
    optimizers=("SGD",),
    modules={"Net": "Net", "fc": "Linear", "layer1.act": "Tanh"},
    kinds={"Own": "linear", "main": "mse"},
    parameters={"fc.weight": WEIGHT, "fc.bias": BIAS, "d1/kernel": KERNEL},
    complete=True,
)


def write(builder: RunBuilder, model_info: ModelInfo, max_bytes: int = 900_000) -> None:
    for document in model_info.parts(max_bytes):
        text = json.dumps(document).encode()
        builder.capture.event(model_info.step, CONFIGURATION, 1, text)


def test_facts_survive_json() -> None:
    assert ModelInfo.from_json(json.loads(json.dumps(FACTS.to_json()))) == FACTS
    assert ModelInfo.from_json({"step": 0}) == ModelInfo(step=0)


def test_units_are_numbered_by_the_dimension_that_the_framework_has_for_them() -> None:
    assert (WEIGHT.n_units, WEIGHT.n_inputs) == (4, 3)
    assert (KERNEL.n_units, KERNEL.n_inputs) == (4, 3)
    convolution = ParameterFacts(
        shape=(5, 5, 3, 8),
        dtype="float32",
        requires_grad=True,
        module="Conv2D",
        unit_axis=3,
    )
    assert (convolution.n_units, convolution.n_inputs) == (8, 75)


@pytest.mark.parametrize("axis", [-1, 2, 0.5, None, "last"])
def test_an_axis_that_a_weight_does_not_have_counts_as_the_first(axis: object) -> None:
    document = FACTS.to_json()
    document["parameters"]["d1/kernel"]["unit_axis"] = axis
    assert ModelInfo.from_json(document).parameters["d1/kernel"].unit_axis == 0


def test_the_owner_of_a_parameter_is_what_its_path_is_inside_of() -> None:
    names = ["layer1.0.fc.weight", "enc/d1/kernel", "layers.0/kernel", "weight"]
    assert [owner_of(each) for each in names] == [
        "layer1.0.fc",
        "enc/d1",
        "layers.0",
        "",
    ]


def test_what_a_later_tdbg_adds_is_ignored() -> None:
    document = FACTS.to_json() | {"color": "blue"}
    document["parameters"]["fc.weight"] |= {"sparsity": 0.5}
    document["parameters"]["odd"] = {"shape": "many"}
    assert ModelInfo.from_json(document) == FACTS
    with pytest.raises(ValueError, match="no facts"):
        ModelInfo.from_json({"models": []})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fc.weight", "Linear"),
        ("gradient/fc.weight", "Linear"),
        ("unit/gradient/fc.weight", "Linear"),
        ("fc.bias", "Own"),
        ("layer1.act_output_0", "Tanh"),
        ("layer1.act_input_0", "Tanh"),
        ("layer1.act_output_0@2", "Tanh"),
        ("unit/layer1.act_output_0", "Tanh"),
        ("Net_output_0", "Net"),
        ("nobody_output_0", None),
        ("scalar/lr", None),
    ],
)
def test_a_tensor_is_of_a_module(name: str, expected: str | None) -> None:
    assert FACTS.module_of(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gradient/fc.weight", Kind.LINEAR),
        ("fc.bias", Kind.LINEAR),
        ("unit/layer1.act_output_0", Kind.TANH),
        ("Net_output_0", None),
        ("main_input_1@2", Kind.MSE),
        ("main", None),
        ("NLLLoss_2_input_0", Kind.NLL),
        ("nobody_output_0", None),
    ],
)
def test_a_tensor_is_of_a_kind(name: str, expected: Kind | None) -> None:
    """By what was recorded; PyTorch's classes also by their names alone."""
    assert FACTS.kind_of(name) == expected


def test_a_recorded_kind_has_the_last_word() -> None:
    model_info = ModelInfo(step=0, kinds={"LayerNorm": "linear", "Odd": "of_later"})
    assert model_info.kind_of_class("LayerNorm") == Kind.LINEAR
    assert model_info.kind_of_class("Odd") == "of_later"
    assert model_info.kind_of_leaf("OwnLayerNorm") == Kind.LAYER_NORM
    assert model_info.kind_of_class("OwnLayerNorm") is None


def many(step: int = 0) -> ModelInfo:
    parameters = {f"layer{i}.weight": WEIGHT for i in range(50)}
    modules = {f"layer{i}": "Linear" for i in range(50)}
    return dataclasses.replace(FACTS, step=step, parameters=parameters, modules=modules)


def test_large_facts_are_told_in_parts() -> None:
    model_info = many()
    documents = model_info.parts(1500)
    assert len(documents) > 5
    assert all(len(json.dumps(each)) <= 1500 for each in documents)
    assert gather(documents) == [model_info]
    assert len(model_info.parts()) == 1
    assert gather(ModelInfo(step=0).parts()) == [ModelInfo(step=0)]


def test_facts_of_which_a_part_is_missing_are_left_out() -> None:
    documents = many().parts(1500)
    later = many(7).parts(1500)
    others: list[dict[str, Any]] = [{"what": "capture"}, {"save_config": {}}]
    assert gather(documents[:-1] + later) == [many(7)]
    assert gather(documents[1:] + later) == [many(7)]
    assert gather([*documents[:2], *others, *documents[2:]]) == [many()]
    assert gather([documents[0], documents[2]]) == []


def test_a_run_without_the_event_has_none(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        builder.save(0, "w", np.ones(3))
        builder.end_step(0)
    trial = create_trial(tmp_path / "run")
    assert trial.model_info() == ()


def test_a_trial_gives_them_by_step(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        text = json.dumps({"save_all": True}).encode()
        builder.capture.event(-1, CONFIGURATION, 1, text)
        write(builder, many(0), 1500)
        write(builder, many(2))
        write(builder, dataclasses.replace(FACTS, step=5))
    trial = create_trial(tmp_path / "run")
    assert trial.model_info() == (many(0), dataclasses.replace(FACTS, step=5))
    assert trial.configuration() == {"save_all": True}


def test_workers_are_put_together(tmp_path: Path) -> None:
    """The same model on all, or the stages of a pipeline."""
    other = dataclasses.replace(
        FACTS,
        models=("Head",),
        optimizers=("AdamW",),
        modules={"head": "Linear"},
        kinds={"Own": "relu", "Head": "conv"},
        parameters={"head.weight": WEIGHT},
    )
    for rank, model_info in enumerate([FACTS, FACTS, other]):
        with RunBuilder(tmp_path / "run", rank=rank, world_size=3) as builder:
            write(builder, model_info)
    (found,) = create_trial(tmp_path / "run").model_info()
    assert found.models == ("Net", "Head")
    assert found.optimizers == ("SGD", "AdamW")
    assert found.losses == ("MSELoss", "MSELoss")
    assert found.modules == {**FACTS.modules, "head": "Linear"}
    assert found.kinds == {**FACTS.kinds, "Head": "conv"}
    head = found.parameters["head.weight"]
    assert head == dataclasses.replace(WEIGHT, optimizer=1)
    assert found.parameters["fc.weight"] == WEIGHT


def test_of_an_older_attempt_counts_what_came_before_the_newer(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        for step in range(10):
            builder.save(step, "w", np.ones(3))
            builder.end_step(step)
        write(builder, many(0))
        write(builder, many(8))
    resumed: dict[str, Any] = {"attempt": b"attempt-number-1", "ordinal": 1}
    with RunBuilder(tmp_path / "run", **resumed) as builder:
        builder.save(5, "w", np.ones(3))
        builder.end_step(5)
        write(builder, dataclasses.replace(FACTS, step=5))
    trial = create_trial(tmp_path / "run")
    assert trial.model_info() == (many(0), dataclasses.replace(FACTS, step=5))
