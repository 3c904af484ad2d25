"""smdebug's configuration classes: their arguments, rules, JSON and errors."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdbg.compat.smdebug.pytorch as smd
from tdbg import errors
from tdbg.compat.smdebug import (
    CollectionKeys,
    ReductionConfig,
    SaveConfig,
    SaveConfigMode,
    exceptions,
    modes,
)
from tdbg.compat.smdebug.analysis.utils import parse_bool, parse_list_from_str
from tdbg.compat.smdebug.core.collection import Collection
from tdbg.compat.smdebug.core.modes import str_to_mode_keys
from tdbg.config import Role
from tdbg.errors import ConfigurationError
from tensorboard_helpers import KeyValueStore
from torch_helpers import Recorded, digits, mlp, train


def test_a_save_config_has_smdebugs_defaults() -> None:
    config = SaveConfig().get_save_config(modes.TRAIN)
    assert config.to_json_dict() == {
        "save_interval": 500,
        "save_steps": [],
        "start_step": 0,
        "end_step": None,
    }


def test_save_steps_add_to_the_interval_whose_phase_is_absolute() -> None:
    config = SaveConfig(None, 5, 3, 16, [7, 30])
    saved = [step for step in range(40) if config.should_save_step(modes.EVAL, step)]
    assert saved == [5, 7, 10, 15, 30]


def test_an_end_step_of_zero_disables() -> None:
    assert not SaveConfigMode(1, end_step=0).should_save_step(0)


def test_text_is_accepted_for_numbers() -> None:
    assert SaveConfigMode("10", "2", "30").to_json_dict() == {
        "save_interval": 10,
        "save_steps": [],
        "start_step": 2,
        "end_step": 30,
    }


def test_values_and_statistics_are_saved_at_the_same_steps() -> None:
    native = SaveConfig(save_interval=7).native().of(modes.TRAIN)
    assert (native.save_interval, native.statistics_interval) == (7, 7)


def test_modes_that_are_left_out_follow_the_hook() -> None:
    config = SaveConfig({modes.TRAIN: SaveConfigMode(3)})
    with pytest.raises(exceptions.SMDebugValueError, match="EVAL follows the hook"):
        config.get_save_config(modes.EVAL)
    hook = SaveConfigMode(11).native
    assert config.of(modes.EVAL, hook) is hook
    config.merge_default_save_config(SaveConfig(save_interval=9))
    assert config.get_save_config(modes.EVAL) == SaveConfigMode(9)
    assert config.get_save_config(modes.TRAIN) == SaveConfigMode(3)


def test_a_save_config_survives_json() -> None:
    config = SaveConfig({modes.TRAIN: SaveConfigMode(3, 1, 9, [4])})
    assert SaveConfig.from_json(config.to_json()) == config
    assert json.loads(config.to_json())["EVAL"] is None
    assert SaveConfig.parse({modes.EVAL: {"save_interval": 2}}).get_save_config(
        modes.EVAL
    ) == SaveConfigMode(2)
    assert SaveConfig.parse(SaveConfigMode(2)) == SaveConfig(save_interval=2)
    assert SaveConfig.of_native(SaveConfig(None, 4, 1).native()) == SaveConfig(
        None, 4, 1
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SaveConfig(save_interval=0), "save_interval must be at least 1"),
        (lambda: SaveConfig(save_interval="x"), "save_interval must be a whole"),
        (lambda: SaveConfig({"TRAIN": SaveConfigMode()}), "'TRAIN' is not a mode"),
        (lambda: SaveConfig({modes.TRAIN: 3}), "3 is not a SaveConfigMode"),
        (lambda: SaveConfigMode(save_steps=3), "save_steps must be a list"),
        (lambda: SaveConfig.from_dict({"TRIAN": {}}), "did you mean 'TRAIN'"),
        (
            lambda: SaveConfigMode.from_dict({"save_intervall": 3}),
            "did you mean 'save_interval'",
        ),
        (lambda: ReductionConfig(["maen"]), "did you mean 'mean'"),
        (lambda: ReductionConfig(norms=["l3"]), "unknown 'l3'"),
        (lambda: ReductionConfig.from_dict({"reductions": "mean,l7"}), "unknown 'l7'"),
        (lambda: ReductionConfig(save_raw_tensor="yes"), "must be True or False"),
        (lambda: Collection.from_dict({"include_regex": []}), "with a name"),
        (lambda: str_to_mode_keys("traning"), "is not a mode"),
        (lambda: parse_bool("maybe", True), "expected True or False"),
    ],
)
def test_a_bad_value_is_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert isinstance(caught.value, exceptions.SMDebugError)
    assert isinstance(caught.value, errors.ConfigurationError)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReductionConfig("mean"),
        lambda: ReductionConfig(norms=3),
        lambda: SaveConfig.parse(3),
        lambda: Collection("c", tensor_names="name"),
        lambda: Collection("c", save_config=3),
        lambda: Collection("c", reduction_config=3),
        lambda: Collection("c").include(3),
        lambda: SaveConfigMode.from_dict([1]),
    ],
)
def test_a_value_of_the_wrong_type_is_a_type_error(make: Any) -> None:
    with pytest.raises(TypeError) as caught:
        make()
    assert isinstance(caught.value, exceptions.SMDebugTypeError)


def test_a_reduction_config_survives_json() -> None:
    config = ReductionConfig(["mean"], ["max"], ["l2"], ["l1"], True)
    assert config.to_json_dict() == {
        "save_raw_tensor": True,
        "reductions": "mean,l2_norm,abs_max,abs_l1_norm",
        "save_shape": False,
    }
    assert ReductionConfig.from_json(config.to_json()) == config
    assert config.reductions == ["mean"]
    # As smdebug's documentation has it.
    assert ReductionConfig.from_dict({"reductions": "l1,abs_l2"}) == ReductionConfig(
        norms=["l1"], abs_norms=["l2"]
    )


def test_a_collection_survives_json() -> None:
    collection = Collection(
        "custom",
        ["relu", "a{1,3}"],
        ["x"],
        ReductionConfig(["min"]),
        {modes.TRAIN: SaveConfigMode(2)},
        False,
    )
    again = Collection.from_json(collection.to_json())
    assert again == collection
    assert again != Collection("custom")
    assert hash(again) == hash(collection)
    assert again.include_regex == ["relu", "a{1,3}"]


def test_names_are_put_into_a_collection_and_taken_out() -> None:
    collection = Collection("custom")
    collection.add_tensor_name("a")
    collection.tensor_names = [*collection.tensor_names, "b"]
    assert collection.has_tensor_name("a")
    collection.remove_tensor_name("a")
    collection.remove_tensor_name("a")
    assert collection.tensor_names == {"b"}
    assert collection.has("b", Role.OTHER)


def test_a_name_of_another_framework_is_a_custom_collection() -> None:
    collection = Collection(CollectionKeys.INPUTS, "first_input")
    assert collection.has("first_input_0", Role.INPUT)
    assert not collection.has("second_input_0", Role.INPUT)


def test_what_smdebug_never_captured_is_only_found_by_name() -> None:
    collection = Collection("custom", "fc1")
    for role in (Role.UPDATE, Role.OPTIMIZER_STATE, Role.BUFFER, Role.SCALAR):
        assert not collection.may_hold(role)
    assert not collection.has("update/Net_fc1.weight", Role.UPDATE)
    collection.include(["^update/", "optimizer/exp_avg/", "scalar/optimizer"])
    assert collection.has("update/Net_fc1.weight", Role.UPDATE)
    assert collection.may_hold(Role.OPTIMIZER_STATE)
    assert collection.may_hold(Role.SCALAR)
    assert not Collection("all").may_hold(Role.SCALAR)
    assert Collection("all").has("scalar/x", Role.SCALAR)


def test_losses_are_told_by_role_and_by_name() -> None:
    losses = Collection(CollectionKeys.LOSSES)
    assert losses.has("MyCriterion_output_0", Role.LOSS)
    assert losses.has("head.loss_output_0", Role.OUTPUT)
    assert not losses.has("head.loss_input_0", Role.INPUT)
    assert not losses.has("glossy_output_0", Role.WEIGHT)


@pytest.mark.parametrize(
    ("text", "items"), [(None, []), ("", []), ("a,b", ["a", "b"]), (["a"], ["a"])]
)
def test_a_list_is_read_from_text(text: Any, items: list[str]) -> None:
    assert parse_list_from_str(text) == items


@pytest.mark.parametrize(
    ("error", "native"),
    [
        (exceptions.StepUnavailable(3, modes.TRAIN), errors.StepUnavailable),
        (exceptions.StepNotYetAvailable(3, modes.TRAIN), errors.StepNotYetAvailable),
        (exceptions.TensorUnavailable("t"), errors.TensorUnavailable),
        (
            exceptions.TensorUnavailableForStep("t", 3, has_reductions=True),
            errors.TensorUnavailableForStep,
        ),
        (exceptions.ShapeUnavailableForStep("t", 3), errors.ShapeUnavailableForStep),
        (exceptions.InvalidWorker("worker_9"), errors.InvalidWorker),
        (exceptions.NoMoreData(3, modes.EVAL, 2), errors.NoMoreData),
        (exceptions.RuleEvaluationConditionMet("R", 3), errors.TdbgError),
        (exceptions.InvalidCollectionConfiguration("c"), errors.ConfigurationError),
        (
            exceptions.InsufficientInformationForRuleInvocation("R", "why"),
            errors.InsufficientInformationForRuleInvocation,
        ),
        (exceptions.NoMoreProfilerData(3), errors.TdbgError),
        (exceptions.MissingCollectionFiles(), errors.NotARun),
        (exceptions.IndexReaderException("why"), errors.TdbgError),
    ],
)
def test_an_exception_is_tdbgs_too_and_says_what_it_holds(
    error: exceptions.SMDebugError, native: type[Exception]
) -> None:
    assert isinstance(error, native)
    assert str(error)
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)  # noqa: S301
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301


# ---- JSON files ------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    smd.del_hook()


def write_settings(path: Path, run_dir: Path, **parameters: str) -> None:
    collections = [
        {"CollectionName": "losses"},
        {"CollectionName": "inputs", "CollectionParameters": {"include_regex": "fc1"}},
        {"CollectionName": "biases", "CollectionParameters": {"end_step": "0"}},
    ]
    settings = {
        "LocalPath": str(run_dir),
        "HookParameters": parameters,
        "CollectionConfigurations": collections,
    }
    path.write_text(json.dumps(settings))


def test_a_hook_is_made_from_a_json_file(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hook.json"
    write_settings(
        file,
        run_dir,
        save_interval="3",
        reductions="mean,abs_max,l2_norm",
        save_raw_tensor="true",
        include_regex="relu_output",
    )
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(file))
    hook = smd.get_hook(create_if_not_exists=True)
    assert hook is not None
    assert smd.get_hook() is hook
    assert hook.out_dir == str(run_dir)
    assert hook.save_config == smd.SaveConfig(save_interval=3)
    assert hook.reduction_config == smd.ReductionConfig(
        ["mean"], ["max"], ["l2"], save_raw_tensor=True
    )
    model, criterion = mlp(), nn.CrossEntropyLoss()
    hook.register_module(model)
    hook.register_loss(criterion)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, criterion, optimizer, digits(16), 5)
    hook.close()
    found = Recorded(run_dir)
    names = {"relu_output_0", "CrossEntropyLoss_output_0"}
    names |= {f"Net_fc1.{kind}" for kind in ("weight", "bias")}
    names |= {f"gradient/Net_fc1.{kind}" for kind in ("weight", "bias")}
    assert found.names == names | {"fc1_input_0", "fc1_output_0"}
    assert {tuple(found.values(name)) for name in found.names} == {(0, 3)}
    assert {len(found.rows(name)) for name in found.names} == {2}


def test_a_file_that_is_not_there_makes_no_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing.json"
    with pytest.raises(FileNotFoundError, match=r"missing\.json"):
        smd.Hook.create_from_json_file(str(missing))
    with pytest.raises(FileNotFoundError):
        smd.Hook.hook_from_config(missing)
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(missing))
    assert smd.get_hook(create_if_not_exists=True) is None
    assert smd.get_hook(str(missing), True) is None


@pytest.mark.parametrize("says", ["parameters", "sagemaker"])
def test_files_of_tensorboard_go_where_the_json_file_or_sagemaker_says(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    file, out = tmp_path / "hook.json", tmp_path / "tb"
    of_sagemaker = tmp_path / "output.json"
    monkeypatch.setenv("TENSORBOARD_CONFIG_FILE_PATH", str(of_sagemaker))
    if says == "parameters":  # The other file is not there: then it says nothing.
        parameters = {"export_tensorboard": "true", "tensorboard_dir": str(out)}
    else:
        of_sagemaker.write_text(json.dumps({"LocalPath": str(out)}))
        parameters = {"tensorboard_dir": str(tmp_path / "not here")}
    write_settings(file, run_dir, save_interval="1", **parameters)
    hook = smd.Hook.create_from_json_file(file)
    model, criterion = mlp(), nn.CrossEntropyLoss()
    hook.register_module(model)
    hook.register_loss(criterion)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = train(model, criterion, optimizer, digits(16), 2)
    hook.close()
    board = KeyValueStore(out / "TRAIN")
    assert list(board.scalars("CrossEntropyLoss_output_0").values()) == losses
    assert not (tmp_path / "not here").exists()


def test_a_file_of_sagemaker_that_says_nothing_sensible_is_refused(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, of_sagemaker = tmp_path / "hook.json", tmp_path / "output.json"
    write_settings(file, run_dir)
    monkeypatch.setenv("TENSORBOARD_CONFIG_FILE_PATH", str(of_sagemaker))
    of_sagemaker.write_text('{"LocalPath": 3}')
    with pytest.raises(ConfigurationError, match=r"output.json: LocalPath: must be te"):
        smd.Hook.create_from_json_file(file)
    assert not run_dir.exists()
