"""JSON files that smdebug took: what tdbg does not know is told, and stops nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdbg.compat.smdebug.pytorch as smd
from tdbg.errors import ConfigurationError
from torch_helpers import Recorded, digits, mlp, train

pytestmark = pytest.mark.torch
OF_SAGEMAKER = "/opt/ml/output/tensors"


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    smd.del_hook()


@pytest.fixture
def made(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., smd.Hook]:
    """Makes the hook of a document, as SageMaker's containers do."""

    def make(
        *collections: dict[str, Any], parameters: Any = None, **rest: Any
    ) -> smd.Hook:
        file = tmp_path / "hook.json"
        settings = {
            "LocalPath": str(run_dir),
            "HookParameters": parameters or {"save_interval": "1"},
            "CollectionConfigurations": list(collections),
            **rest,
        }
        file.write_text(json.dumps(settings))
        monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(file))
        hook = smd.get_hook(create_if_not_exists=True)
        assert hook is not None
        return hook

    return make


def collection(name: str, **parameters: str) -> dict[str, Any]:
    return {"CollectionName": name, "CollectionParameters": parameters}


def trained(hook: smd.Hook, n_steps: int = 4) -> Recorded:
    model = mlp()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, nn.CrossEntropyLoss(), optimizer, digits(8), n_steps)
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    return Recorded(Path(hook.out_dir))


@pytest.mark.parametrize("name", ["default", "metrics", "mine"])
def test_a_collection_without_an_expression_is_told_when_the_training_begins(
    made: Any, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    hook = made(collection(name, save_interval="2"), {"CollectionName": "biases"})
    found = trained(hook)
    assert found.names == {"Net_fc1.bias", "Net_fc2.bias"}
    told = [each for each in caplog.messages if "select nothing" in each]
    assert len(told) == (name != "default")  # smdebug's hook has that one anyway.
    assert all(repr(name) in each for each in told)


def test_the_script_fills_a_collection_that_the_file_only_names(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hook = made(collection("mine", save_interval="2"))
    hook.get_collection("mine").include("relu_output")
    found = trained(hook)
    assert found.names == {"relu_output_0"}
    assert list(found.values("relu_output_0")) == [0, 2]
    assert "select nothing" not in caplog.text


def test_a_collection_that_is_named_twice_has_both_expressions(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hook = made(
        collection("mine", include_regex="fc1.*bias", save_interval="3"),
        collection("mine", include_regex="relu_output", save_interval="2"),
        {"CollectionName": "mine"},
        parameters={"save_interval": "4"},
    )
    assert "[1].CollectionName: 'mine' appears twice" in caplog.text
    assert hook.get_collection("mine").save_config is None  # As the hook says.
    found = trained(hook, 5)
    assert found.names == {"Net_fc1.bias", "gradient/Net_fc1.bias", "relu_output_0"}
    assert list(found.values("relu_output_0")) == [0, 4]


def test_expressions_of_the_file_add_to_those_of_the_collection_default(
    made: Any,
) -> None:
    parameters = {"save_interval": "1", "include_regex": "fc1.*weight"}
    hook = made(collection("default", include_regex="relu_out"), parameters=parameters)
    assert trained(hook).names == {
        "Net_fc1.weight",
        "gradient/Net_fc1.weight",
        "relu_output_0",
    }


def test_an_unknown_key_is_ignored_and_told_with_the_nearest(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hook = made(
        collection("mine", include_regex="relu_output", save_intervall="7"),
        {"CollectionName": "biases", "Comment": "for later"},
        parameters={"save_interval": "2", "save_al": "true"},
        RuleConfigurations=[],
    )
    told = [each.partition("hook.json: ")[2] for each in caplog.messages]
    assert [each.partition(";")[0] for each in told if "unknown key" in each] == [
        "unknown key 'RuleConfigurations' is ignored",
        "HookParameters: unknown key 'save_al' is ignored",
        (
            "CollectionConfigurations[0].CollectionParameters: unknown key "
            "'save_intervall' is ignored"
        ),
        "CollectionConfigurations[1]: unknown key 'Comment' is ignored",
    ]
    assert "did you mean 'save_interval'?" in caplog.text
    found = trained(hook)
    assert list(found.values("relu_output_0")) == [0, 2]


@pytest.mark.parametrize(
    ("rest", "directory"),
    [
        ({"LocalPath": None}, OF_SAGEMAKER),
        ({"LocalPath": None, "S3OutputPath": "s3://b/p"}, OF_SAGEMAKER),
        ({"LocalPath": None, "S3OutputPath": "file:///of/a"}, "/of/a"),
        ({"LocalPath": None, "S3OutputPath": "runs/a"}, "runs/a"),
        ({"LocalPath": "/of/b", "S3OutputPath": "file:///of/a"}, "/of/b"),
    ],
)
def test_without_a_local_path_the_run_is_where_sagemaker_looks_for_it(
    made: Any, rest: dict[str, Any], directory: str
) -> None:
    hook = made(parameters={"dry_run": "true"}, **rest)
    hook.close()
    assert hook.out_dir == directory


def test_an_empty_document_is_smdebugs_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_dir: Path
) -> None:
    file = tmp_path / "hook.json"
    file.write_text("{}")
    monkeypatch.setenv("TDBG_OUT", str(run_dir))  # Takes precedence over any file.
    hook = smd.Hook.create_from_json_file(file)
    assert hook.out_dir == str(run_dir)
    assert hook.save_config == smd.SaveConfig(save_interval=500)
    assert hook.has_default_configuration()
    hook.close()


def test_a_file_in_tdbgs_own_form_is_read_as_strictly_as_ever(tmp_path: Path) -> None:
    file = tmp_path / "hook.json"
    file.write_text(json.dumps({"out_dir": "x", "save_al": True}))
    with pytest.raises(ConfigurationError, match="did you mean 'save_all'"):
        smd.Hook.create_from_json_file(file)


@pytest.mark.parametrize(
    ("collections", "message"),
    [
        ({}, "CollectionConfigurations: must be a list"),
        ([3], r"CollectionConfigurations\[0\]: must be a mapping"),
        ([{}], r"CollectionConfigurations\[0\]: must have a 'CollectionName'"),
        ([collection("a", reductions="meen")], "unknown 'meen'; did you mean 'mean'"),
        (
            [{"CollectionName": "a", "CollectionParameters": 3}],
            "CollectionParameters: must be a mapping",
        ),
    ],
)
def test_what_stopped_smdebug_stops_here_and_is_named(
    made: Any, caplog: pytest.LogCaptureFixture, collections: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        made(CollectionConfigurations=collections)
    assert smd.get_hook() is None
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
