"""smdebug's hook from smdebug's JSON files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import tdbg.compat.smdebug.pytorch as smd
from tdbg.errors import ConfigurationError
from tensorboard_helpers import Board
from torch_helpers import Recorded, digits, mlp, train


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


def test_a_misspelt_key_of_a_json_file_is_named(run_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "hook.json"
    write_settings(file, run_dir, save_intervall="3")
    with pytest.raises(ConfigurationError, match="save_interval"):
        smd.get_hook(file, create_if_not_exists=True)
    assert smd.get_hook() is None


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
    board = Board(out / "TRAIN")
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
