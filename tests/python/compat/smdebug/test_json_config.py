"""``smdebug.core.json_config``, ``hook_utils``, ``config_validator``, and variables."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdbg.compat.smdebug.pytorch as smd
from run_builder import RunBuilder
from tdbg.compat.smdebug.core import (
    access_layer,
    base,
    hook_utils,
    json_config,
    sagemaker_utils,
    singleton_utils,
    utils,
)
from tdbg.compat.smdebug.core.config_validator import (
    get_config_validator,
    reset_config_validator,
)
from tdbg.compat.smdebug.exceptions import (
    SMDebugError,
    SMDebugNotImplementedError,
    SMDebugRuntimeError,
    SMDebugTypeError,
    SMDebugValueError,
)
from tdbg.compat.smdebug.pytorch.utils import (
    get_reduction_of_data,
    is_current_version_supported,
    make_numpy_array,
)
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from torch_helpers import mlp

pytestmark = pytest.mark.torch
TRAIN, EVAL = ModeKeys.TRAIN, ModeKeys.EVAL


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    smd.del_hook()
    reset_config_validator()


@pytest.fixture
def file(run_dir: Path, tmp_path: Path) -> Path:
    settings = {
        "LocalPath": str(run_dir),
        "HookParameters": {"save_steps": "1, 2", "eval.save_interval": "3"},
        "CollectionConfigurations": [
            {"CollectionName": "biases", "CollectionParameters": {"start_step": "4"}}
        ],
    }
    path = tmp_path / "hook.json"
    path.write_text(json.dumps(settings))
    return path


# ---- json_config -----------------------------------------------------------------


def test_a_file_of_settings_is_read_as_it_stands(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SMDEBUG_CONFIG_FILE_PATH", raising=False)
    read = json_config.get_json_config_as_dict(file)
    assert read == json.loads(file.read_text())
    assert json_config.get_include_collections(read) == ["biases"]
    assert json_config.get_include_collections({}) is None
    with pytest.raises(FileNotFoundError):
        json_config.get_json_config_as_dict(None)
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(file))
    assert json_config.get_json_config_as_dict(None) == read
    with pytest.raises(SMDebugValueError, match="CollectionName"):
        json_config.get_include_collections({"CollectionConfigurations": [{}]})
    file.write_text("[1]")
    with pytest.raises(ConfigurationError, match="must be a mapping"):
        json_config.get_json_config_as_dict(None)


def test_the_keys_of_a_mode_take_precedence(file: Path) -> None:
    given = json_config.get_json_config_as_dict(file)["HookParameters"]
    modes = json_config.parse_save_config_modes_dict(given)
    assert modes[TRAIN] == {"save_steps": [1, 2]}
    assert modes[EVAL] == {"save_steps": [1, 2], "save_interval": "3"}
    own = json_config.parse_save_config_modes_dict({"train.start_step": 4}, modes)
    assert own[TRAIN] == {"save_steps": [1, 2], "start_step": 4}
    assert own[EVAL] == modes[EVAL]
    assert smd.SaveConfig.from_dict(own).get_save_config(EVAL).save_interval == 3
    assert json_config.parse_save_config_dict(given, EVAL) == {"save_interval": "3"}


@pytest.mark.parametrize(
    "arguments", [("all",), ({}, "train"), ({"save_steps": "1, two"},)]
)
def test_a_schedule_that_cannot_be_parsed_is_refused(arguments: Any) -> None:
    with pytest.raises(SMDebugValueError):
        json_config.parse_save_config_dict(*arguments)


def test_a_hook_is_made_with_other_defaults(file: Path) -> None:
    """As smdebug's hook of XGBoost, which saves every 10 steps."""
    defaults = {"save_interval": 10, "end_step": 50}
    hook = json_config.create_hook_from_json_config(smd.Hook, file, defaults)
    train, evaluation = map(hook.save_config.get_save_config, (TRAIN, EVAL))
    assert (train.save_interval, train.save_steps, train.end_step) == (10, [1, 2], 50)
    assert (evaluation.save_interval, evaluation.end_step) == (3, 50)
    biases = hook.get_collection("biases").save_config.get_save_config(TRAIN)
    assert (biases.save_interval, biases.start_step, biases.end_step) == (10, 4, 50)
    hook.close()


def test_the_files_of_sagemaker_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENSORBOARD_CONFIG_FILE_PATH", raising=False)
    assert json_config.get_tensorboard_dir_from_json_config() is None
    assert json_config.get_node_id_from_resource_config() is None
    path = tmp_path / "sagemaker.json"
    path.write_text('{"LocalPath": "/plots", "current_host": "algo-1"}')
    monkeypatch.setenv("TENSORBOARD_CONFIG_FILE_PATH", str(path))
    monkeypatch.setattr(json_config, "DEFAULT_RESOURCE_CONFIG_FILE", str(path))
    assert json_config.get_tensorboard_dir_from_json_config() == "/plots"
    assert json_config.get_node_id_from_resource_config() == "algo-1"


# ---- hook_utils, singleton_utils -------------------------------------------------


def test_directories_are_those_that_a_hook_takes(monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert hook_utils.verify_and_get_out_dir("~/run") == "/home/me/run"
    with pytest.raises(SMDebugRuntimeError, match="out_dir"):
        hook_utils.verify_and_get_out_dir(None)
    of = hook_utils.get_tensorboard_dir
    assert of(False, None, "run") is None
    assert of(True, None, "run") == "run/tensorboard"
    assert of(False, "~/plots", "run") == of(True, "~/plots", "run") == "/home/me/plots"


def test_the_hook_of_the_process_is_made_once(file: Path) -> None:
    of_process = singleton_utils.get_hook
    given: dict[str, Any] = {"json_config_path": str(file), "hook_class": smd.Hook}
    assert of_process(**given, create_if_not_exists=False) is None
    with pytest.raises(SMDebugValueError, match="hook_class"):
        of_process(json_config_path=None, hook_class=None, create_if_not_exists=True)
    with pytest.raises(SMDebugTypeError, match="hook_class"):
        of_process(json_config_path=None, hook_class=int, create_if_not_exists=True)
    hook = of_process(**given, create_if_not_exists=True)
    assert of_process(**given, create_if_not_exists=True) is hook is smd.get_hook()
    none: dict[str, Any] = {**given, "hook_class": None}
    assert of_process(**none, create_if_not_exists=False) is hook
    assert hook is not None
    hook.close()  # type: ignore[attr-defined]


def test_a_hook_says_what_it_captures(run_dir: Path) -> None:
    hook = smd.Hook(run_dir)
    assert not hook.has_registered_module
    hook.register_module(mlp())
    assert hook.has_registered_module
    assert not hook.has_registered_loss_module
    hook.register_loss(torch.nn.MSELoss())
    assert hook.has_registered_loss_module
    assert hook.logger.name == "tdbg"
    hook.close()


# ---- config_validator, sagemaker_utils, utils ------------------------------------


@pytest.mark.parametrize("word", ["0", "False", "f", "OFF", "no", "N"])
def test_a_training_that_is_switched_off_is_to_have_no_hook(
    file: Path, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    validator = get_config_validator(utils.FRAMEWORK.PYTORCH)
    assert validator.validate_training_job()
    monkeypatch.setenv("USE_SMDEBUG", word)
    assert get_config_validator(utils.FRAMEWORK.XGBOOST) is validator
    assert not validator.validate_training_job()
    assert smd.get_hook(str(file), create_if_not_exists=True) is None


def test_only_a_framework_that_tdbg_captures_is_supported() -> None:
    assert not get_config_validator(utils.FRAMEWORK.TENSORFLOW).validate_training_job()
    assert utils.is_framework_version_supported(utils.FRAMEWORK.PYTORCH)
    assert is_current_version_supported()
    assert not is_current_version_supported("1.13.1")
    with pytest.raises(SMDebugNotImplementedError):
        utils.is_framework_version_supported("torch")  # type: ignore[arg-type]


def test_variables_of_sagemaker_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRAINING_JOB_NAME", "AWS_REGION", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert not sagemaker_utils.is_sagemaker_job()
    assert utils.get_region() is None
    assert utils.get_distributed_worker() is None
    for name, text in (
        ("TRAINING_JOB_NAME", "job"),
        ("AWS_REGION", "eu-west-1"),
        ("RANK", "2"),
        ("WORLD_SIZE", "4"),
    ):
        monkeypatch.setenv(name, text)
    assert sagemaker_utils.is_sagemaker_job()
    assert utils.get_region() == "eu-west-1"
    assert utils.get_distributed_worker() == 2


def test_a_custom_value_is_valid_if_an_array_can_be_made_of_it() -> None:
    assert utils.validate_custom_tensor_value(torch.ones(2), make_numpy_array)
    assert not utils.validate_custom_tensor_value(object(), make_numpy_array)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mean", -0.5), ("l1", 3.0), ("l2", 5**0.5), ("min", -2.0), ("variance", 2.25)],
)
def test_a_tensor_is_reduced_as_a_trial_does(name: str, expected: float) -> None:
    values = torch.tensor([[-2.0], [1.0]], dtype=torch.bfloat16, requires_grad=True)
    found = get_reduction_of_data(name, values, "w")
    assert found == pytest.approx(expected)
    with pytest.raises(SMDebugError):
        get_reduction_of_data("mode", values, "w")
    assert get_reduction_of_data("min", values, "w", abs=True) == 1.0


def test_files_are_looked_for_on_this_machine(tmp_path: Path) -> None:
    assert access_layer.file_exists(tmp_path)
    assert not access_layer.file_exists(str(tmp_path / "no"))
    with pytest.raises(SMDebugNotImplementedError, match="boto3"):
        access_layer.file_exists("s3://bucket/key")


# ---- variables -------------------------------------------------------------------


@pytest.mark.parametrize(
    "variable", ["SMDEBUG_INCOMPLETE_STEP_WAIT_WINDOW", "INCOMPLETE_STEP_WAIT_WINDOW"]
)
def test_a_rank_is_waited_for_as_the_variable_says(
    run_dir: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunBuilder(run_dir, rank=0, world_size=2)
    for step in range(3):
        run.step(step, {"w": np.ones(3, np.float32)})
    run.flush()
    assert smd.create_trial(str(run_dir)).steps() == []
    monkeypatch.setenv(variable, "3")
    assert smd.create_trial(str(run_dir)).steps() == [0, 1, 2]
    monkeypatch.setenv(variable, "4")
    assert smd.create_trial(str(run_dir)).steps() == []
    monkeypatch.setenv(variable, "many")
    with pytest.raises(SMDebugValueError, match=variable):
        smd.create_trial(str(run_dir))
    run.close()


def test_the_variable_of_the_level_is_that_of_tdbgs_logger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logger = logging.getLogger("tdbg")
    before = logger.level
    try:
        for text, level in (("Error", logging.ERROR), ("off", logging.CRITICAL + 1)):
            monkeypatch.setenv("SMDEBUG_LOG_LEVEL", text)
            assert base.get_logger().getEffectiveLevel() == level
        monkeypatch.setenv("SMDEBUG_LOG_LEVEL", "loud")
        assert base.get_logger().getEffectiveLevel() == logging.CRITICAL + 1
    finally:
        logger.setLevel(before)
