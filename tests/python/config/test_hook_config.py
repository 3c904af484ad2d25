"""Settings of the hook: arguments, variables, files, and which of them holds."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tdbg
import tdbg.pytorch as td
from tdbg.config import HookConfig
from tdbg.errors import ConfigurationError
from torch_helpers import Recorded, digits, mlp, train

pytestmark = pytest.mark.torch

VARIABLES = (
    "TDBG_CONFIG",
    "TDBG_OUT",
    "TDBG_BUDGET",
    "TDBG_DISABLED",
    "SMDEBUG_CONFIG_FILE_PATH",
)


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    td.del_hook()


def written(folder: Path, content: dict[str, Any], name: str = "hook.json") -> str:
    path = folder / name
    path.write_text(json.dumps(content))
    return str(path)


def told(run_dir: Path) -> dict[str, Any]:
    """The hook's part of the configuration as the run tells it."""
    content: dict[str, Any] = Recorded(run_dir).events(1)[-1]["hook"]
    return content


def test_every_argument_of_the_constructor_is_a_setting_and_keyword_only() -> None:
    parameters = inspect.signature(td.Hook.__init__).parameters
    names = [
        name
        for name, each in parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    assert {"out_dir", *names} == {each.name for each in dataclasses.fields(HookConfig)}
    smdebug = "out_dir export_tensorboard tensorboard_dir dry_run reduction_config "
    smdebug += "save_config include_regex include_collections save_all include_workers"
    assert set(smdebug.split()) <= {"out_dir", *names}


def test_every_argument_reaches_the_run(run_dir: Path) -> None:
    hook = td.Hook(
        run_dir,
        include_collections=["weights"],
        include_regex=["relu{1,2}_output"],
        save_config=td.SaveConfig(save_interval=7),
        reduction_config=td.ReductionConfig(save_shape=True),
        save_all=True,
        collections=[
            td.CollectionConfig("biases", {"eval.save_interval": "3"}),
            td.Collection("own", "fc1"),
        ],
        rules=["ExplodingTensor"],
        include_workers=[0],
        on_stop="flag",
        overflow="drop",
        codec="none",
        save_histogram=True,
        precise=True,
        threads=2,
        budget=0.5,
        retention=tdbg.Retention(values="last 5", max_bytes="5 MB"),
    )
    hook.close()
    content = told(run_dir)
    assert content["include_collections"] == [
        *("all", "biases", "default", "losses", "own", "weights")
    ]
    assert content["save_config"]["save_interval"] == 7
    assert content["reduction_config"]["save_shape"] is True
    always, beginning = content["needs"]
    assert always["statistics"] is True
    assert beginning["first_steps"] == 50
    assert Recorded(run_dir).events(1)[-1]["workers"] == [0]
    for name, value in (
        *(("on_stop", "flag"), ("overflow", "drop"), ("codec", "none")),
        *(("precise", True), ("threads", 2), ("budget", 0.5)),
        ("retention", {"values": "last 5", "max_bytes": 5_000_000}),
    ):
        assert content[name] == value
    # What a CollectionConfig leaves out is what the hook was told.
    biases = hook.get_collection("biases").save_config
    assert biases is not None
    assert biases.of(td.ModeKeys.EVAL).save_interval == 3
    assert biases.of(td.ModeKeys.TRAIN).save_interval == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"save_al": True}, "'save_al'; did you mean 'save_all'"),
        ({"include_colections": []}, "did you mean 'include_collections'"),
        ({"include_collections": ["wieghts"]}, "did you mean 'weights'"),
        ({"include_collections": 3}, "include_collections must be a list"),
        ({"include_regex": "("}, r"include_regex: '\(' is not a regular expression"),
        ({"include_regex": 3}, "include_regex must be text"),
        ({"collections": [3]}, "expected a Collection, not 3"),
        ({"collections": 3}, "collections must be a list"),
        ({"save_config": 3}, "save_config must be a SaveConfig"),
        ({"reduction_config": "mean"}, "reduction_config must be a ReductionConfig"),
        ({"save_all": 1}, "save_all must be True or False"),
        ({"dry_run": "yes"}, "dry_run must be True or False"),
        ({"include_workers": "al"}, "include_workers: unknown 'al'; did you mean 'all"),
        ({"include_workers": 3}, "A list of ranks is valid, too"),
        ({"include_workers": [True]}, "include_workers: True is not a rank"),
        ({"tensorboard_dir": "s3://bucket/run"}, "must be a directory of this machine"),
        ({"out_dir": ""}, "out_dir must be the path of a directory"),
        ({"export_tensorboard": "yes"}, "export_tensorboard must be True or False"),
        ({"tensorboard_dir": "s3://x"}, "tensorboard_dir must be a directory of this"),
        ({"rules": ["ExplodingTensr"]}, "did you mean 'ExplodingTensor'"),
    ],
)
def test_a_bad_argument_is_refused_by_name_with_the_nearest(
    run_dir: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        td.Hook(**{"out_dir": run_dir, **arguments})
    assert not run_dir.exists()


def test_a_hook_without_a_run_directory_says_how_to_give_one() -> None:
    with pytest.raises(ConfigurationError, match="give out_dir, or set TDBG_OUT"):
        td.Hook()


def test_an_argument_beats_its_variable_which_beats_the_file_and_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = {"out_dir": "file", "budget": 0.1, "codec": "max", "overflow": "drop"}
    monkeypatch.setenv("TDBG_CONFIG", written(tmp_path, content))
    td.Hook().close()
    found = told(tmp_path / "file")
    assert (found["budget"], found["codec"], found["overflow"]) == (0.1, "max", "drop")
    assert found["on_stop"] == "raise"
    monkeypatch.setenv("TDBG_OUT", "variable")
    monkeypatch.setenv("TDBG_BUDGET", "0.2")
    td.Hook(codec="none").close()
    found = told(tmp_path / "variable")
    assert (found["budget"], found["codec"], found["overflow"]) == (0.2, "none", "drop")
    td.Hook("argument", budget=0.3).close()
    assert told(tmp_path / "argument")["budget"] == 0.3


def test_the_file_changes_what_watch_captures(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {
        "include_collections": ["biases"],
        "save_config": {"statistics_interval": 2},
        "rules": [],
    }
    monkeypatch.setenv("TDBG_CONFIG", written(tmp_path, content))
    monkeypatch.setenv("TDBG_OUT", str(run_dir))
    model, criterion = mlp(), torch.nn.CrossEntropyLoss()
    with td.watch(model, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, criterion, optimizer, digits(8), 4)
    recorded = Recorded(run_dir)
    assert sorted(recorded.rows("fc1.bias")) == [0, 2]
    assert recorded.values("fc1.bias") == {}  # As of watch: the file says nothing.
    assert "fc1.weight" not in recorded.names


def test_a_fault_of_the_file_that_a_variable_names_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, {"save_al": True})
    for variable, make in (
        ("TDBG_CONFIG", lambda: td.Hook(tmp_path / "run")),
        ("SMDEBUG_CONFIG_FILE_PATH", td.Hook.create_from_file),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, path)
            with pytest.raises(ConfigurationError, match="save_all") as refused:
                make()
        assert f"{path} ({variable}): " in str(refused.value)


def test_a_file_can_be_given_and_variables_name_one_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made_from(*arguments: str) -> str:
        with td.Hook.create_from_json_file(*arguments):
            pass
        (run,) = (each for each in tmp_path.iterdir() if (each / "RUN.json").exists())
        run.rename(tmp_path / f"old-{run.name}")
        (tmp_path / f"old-{run.name}" / "RUN.json").unlink()
        return run.name

    with pytest.raises(ConfigurationError, match="set TDBG_CONFIG or SMDEBUG_CONFIG"):
        td.Hook.create_from_json_file()
    smdebug = written(tmp_path, {"LocalPath": str(tmp_path / "a")}, "smdebug.json")
    own = written(tmp_path, {"out_dir": str(tmp_path / "b")}, "own.yaml")
    given = written(tmp_path, {"out_dir": str(tmp_path / "c")}, "given.json")
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", smdebug)
    assert made_from() == "a"
    monkeypatch.setenv("TDBG_CONFIG", own)
    assert made_from() == "b"
    assert made_from(given) == "c"
    # A hook that is made by its constructor does not ask for smdebug's variable.
    monkeypatch.delenv("TDBG_CONFIG")
    with pytest.raises(ConfigurationError, match="no run directory"):
        td.Hook()


def test_a_config_can_be_made_and_given(run_dir: Path) -> None:
    config = td.HookConfig(out_dir=run_dir, include_workers="all", codec="max")
    td.Hook.from_config(config).close()
    assert told(run_dir)["codec"] == "max"


def test_the_hook_of_the_process_is_the_last_one_made_or_set(
    tmp_path: Path,
) -> None:
    assert td.get_hook() is None
    first = td.Hook(tmp_path / "1")
    second = td.Hook(tmp_path / "2")
    assert td.get_hook() is second
    td.set_hook(first)
    assert td.get_hook() is first
    assert td.get_hook(create_if_not_exists=True) is first
    td.del_hook()
    assert td.get_hook() is None
    assert not first.is_closed
    first.close()
    second.close()
    with pytest.raises(ConfigurationError, match="set_hook needs a Hook, not 3"):
        td.set_hook(3)  # type: ignore[arg-type]


def test_get_hook_holds_no_hook_that_others_have_let_go(run_dir: Path) -> None:
    hook = td.Hook(run_dir)
    assert td.get_hook() is hook
    del hook
    gc.collect()
    assert td.get_hook() is None


def test_get_hook_makes_one_from_a_file_or_a_variable_but_not_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert td.get_hook(create_if_not_exists=True) is None
    path = written(tmp_path, {"LocalPath": str(tmp_path / "a")})
    assert td.get_hook(path) is None
    made = td.get_hook(path, create_if_not_exists=True)
    assert made is not None
    gc.collect()
    assert td.get_hook() is made
    made.close()
    # A closed one is as good as none.
    monkeypatch.setenv("TDBG_OUT", str(tmp_path / "b"))
    other = td.get_hook(create_if_not_exists=True)
    assert other is not None
    assert other is not made
    other.close()
    assert (tmp_path / "b" / "RUN.json").exists()
    td.del_hook()
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(tmp_path / "missing"))
    with pytest.raises(ConfigurationError, match=r"missing.*cannot be read"):
        td.get_hook(create_if_not_exists=True)


def test_a_forked_child_has_no_hook_until_it_makes_one(tmp_path: Path) -> None:
    hook = td.Hook(tmp_path / "parent")
    child = os.fork()
    if child == 0:
        os._exit(0 if td.get_hook() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert td.get_hook() is hook
    hook.close()


def test_disabled_nothing_is_looked_at_and_no_configuration_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDBG_DISABLED", "1")
    monkeypatch.setenv("TDBG_CONFIG", str(tmp_path / "missing.yaml"))
    monkeypatch.setenv("TDBG_BUDGET", "never")
    arguments: dict[str, Any] = {
        "include_regex": "(",
        "save_config": 3,
        "collections": [3],
        "rules": ["NoSuchRule"],
        "include_workers": -1,
        "tensorboard_dir": 3,
        "no_such_argument": 1,
    }
    model = mlp()
    hooks = [
        td.Hook(3, **arguments),  # type: ignore[arg-type]
        td.Hook.create_from_json_file(),
        td.Hook.create_from_file(tmp_path / "missing"),
        td.watch(model, rules=["NoSuchRule"], out=tmp_path / "run"),
        td.get_hook(tmp_path / "missing", create_if_not_exists=True),
    ]
    for hook in hooks:
        assert hook is not None
        hook.register_module(model)
        hook.save_scalar("x", 1.0)
        assert hook.close()
    assert not list(tmp_path.iterdir())
    assert not model._forward_hooks


def test_disabled_nothing_heavy_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys, torch, tdbg.pytorch as td\n"
        "known = set(sys.modules)\n"
        "td.Hook('x', rules=['A'], tensorboard_dir='y', save_all=True).close()\n"
        "td.Hook.create_from_file('x.yaml').close()\n"
        "print(sorted(set(sys.modules) - known), 'tdbg._core' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "TDBG_DISABLED": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.stderr == ""
    assert finished.stdout == "[] False\n"
    assert not list(tmp_path.iterdir())
