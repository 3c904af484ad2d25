"""``tdbg run`` obeys its options, then variables, then the file of settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tdbg.pytorch as td
from tdbg.cli.run import command
from tdbg.launch.settings import open_hook

pytestmark = pytest.mark.torch


def opened(out: Path, **settings: Any) -> Mapping[str, Any]:
    """Return how a hook is configured that a search opens."""
    hook, path = open_hook(
        td.Hook, {"out_dir": str(out), **settings}, ("weights",), is_first=True
    )
    included = hook._session.policy.as_json()["include_collections"]
    hook.close()
    configuration = td.create_trial(path).configuration()["hook"]
    return {**configuration, "include_collections": included}


def test_a_search_takes_what_variables_say_and_then_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged: the default of the launch is an argument, and wins against both."""
    monkeypatch.delenv("TDBG_BUDGET", raising=False)
    default = opened(tmp_path / "default")
    assert default["budget"] == 0.05
    assert len(default["rules"]) > 5
    assert "weights" in default["include_collections"]
    file = tmp_path / "hook.yaml"
    file.write_text(
        "budget: 0.2\nrules: [AllZero]\ninclude_collections: [gradients]\n"
        "save_config: {statistics_interval: 3}\n"
    )
    monkeypatch.setenv("TDBG_CONFIG", str(file))
    found = opened(tmp_path / "file")
    assert found["budget"] == 0.2
    assert [each["name"] for each in found["rules"]] == ["AllZero"]
    assert "gradients" in found["include_collections"]
    assert "weights" not in found["include_collections"]
    assert found["save_config"]["statistics_interval"] == 3
    monkeypatch.setenv("TDBG_BUDGET", "off")
    monkeypatch.setenv("TDBG_RULES", "DeadRelu")
    found = opened(tmp_path / "variables")
    assert found["budget"] is None
    assert [each["name"] for each in found["rules"]] == ["DeadRelu"]
    found = opened(tmp_path / "options", budget=0.3, rules=["AllZero"])
    assert found["budget"] == 0.3
    assert [each["name"] for each in found["rules"]] == ["AllZero"]


def test_further_collections_are_captured_beside_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hook.yaml"
    file.write_text("include_collections: [gradients]\n")
    monkeypatch.setenv("TDBG_CONFIG", str(file))
    found = opened(tmp_path / "run", include_collections=["inputs"], save_interval=7)
    assert {"gradients", "inputs"} <= set(found["include_collections"])


class Become(Exception):
    """Stands for the program that takes the place of ``tdbg run``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.environment = environment


def launched(
    monkeypatch: pytest.MonkeyPatch, *options: str
) -> tuple[str, Mapping[str, str]]:
    """Return what ``tdbg run`` prints, and the environment of the program."""

    def become(_: str, __: list[str], environment: Mapping[str, str]) -> None:
        raise Become(environment)

    monkeypatch.setattr(os, "execvpe", become)
    result = CliRunner().invoke(command, [*options, "--", "python", "train.py"])
    assert isinstance(result.exception, Become), result.output
    return result.output, result.exception.environment


def test_the_directory_is_that_of_the_option_the_variable_or_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "hook.yaml"
    file.write_text("out_dir: of-file\n")
    given = ("--config", str(file))
    for options, variable, expected in (
        ((), "", "runs/"),
        (given, "", "of-file"),
        (given, "of-variable", "of-variable"),
        (("--out", "of-option", *given), "of-variable", "of-option"),
    ):
        monkeypatch.setenv("TDBG_OUT", variable)
        output, environment = launched(monkeypatch, *options)
        assert f"writing the run to {expected}" in output
        assert str(tmp_path / expected) in environment["TDBG_LAUNCH"]
    monkeypatch.setenv("TDBG_CONFIG", str(file))
    monkeypatch.delenv("TDBG_OUT")
    assert "writing the run to of-file" in launched(monkeypatch)[0]


def test_a_bad_file_is_refused_before_the_program_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hook.yaml"
    file.write_text("save_config: {save_intervall: 5}\n")
    monkeypatch.setattr(os, "execvpe", None)
    result = CliRunner().invoke(command, ["--config", str(file), "--", "python", "x"])
    assert "unknown key 'save_intervall'" in str(result.exception)


def test_a_disabled_launch_says_so_and_leaves_the_program_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDBG_DISABLED", "1")
    output, environment = launched(monkeypatch, "--out", str(tmp_path / "run"))
    assert output == "tdbg: nothing will be captured: TDBG_DISABLED is set\n"
    assert "TDBG_LAUNCH" not in environment
    assert environment.get("PYTHONPATH") == os.environ.get("PYTHONPATH")
