"""Ways to ask for rules, and what is said of what they would have needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rules_asked import Net, asks, need, run
from tdbg import rules
from tdbg.config import Needs, missing
from tdbg.errors import ConfigurationError, UnknownRule
from tdbg.pytorch import Hook
from tdbg.trial import Trial, create_trial
from torch_helpers import digits


def test_rules_by_name_by_value_and_by_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["VanishingGradient", {"name": "DeadRelu", "threshold_layer": 80}]
    told = run(tmp_path / "a", asked, 1).configuration()["hook"]["rules"]
    assert [each["name"] for each in told] == ["VanishingGradient", "DeadRelu"]
    assert told[1]["threshold_layer"] == 80
    told = run(tmp_path / "b", "DeadRelu", 1).configuration()["hook"]["rules"]
    assert [each["name"] for each in told] == ["DeadRelu"]
    monkeypatch.setenv("TDBG_RULES", "DeadRelu, ExplodingTensor")
    told = run(tmp_path / "c", None, 1).configuration()["hook"]["rules"]
    assert [each["name"] for each in told] == ["DeadRelu", "ExplodingTensor"]
    told = run(tmp_path / "d", ["default"], 1).configuration()["hook"]["rules"]
    assert len(told) == len(rules.default_rules())


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (["DeadReluu"], UnknownRule, "did you mean 'DeadRelu"),
        ([{"name": "DeadRelu", "treshold": 1}], ConfigurationError, "'treshold'"),
        ([{"name": "DeadRelu", "min_steps": 0}], ConfigurationError, "min_steps is 0"),
        ([{"name": "DeadRelu", "min_steps": "x"}], ConfigurationError, "min_steps"),
        ([{"threshold": 1}], ConfigurationError, "has a name and parameters"),
        ([3], ConfigurationError, "3 is neither a rule nor"),
        (3, ConfigurationError, "3 is neither a rule nor"),
    ],
)
def test_what_is_no_rule_is_refused_by_name(
    asked: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        Hook(tmp_path / "run", rules=asked)
    assert not (tmp_path / "run").exists()


def test_rules_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tdbg.yaml"
    text = f"out_dir: {tmp_path / 'run'}\nmin_free_bytes: 0\nrules:\n"
    path.write_text(text + "- VanishingGradient\n- {name: DeadRelu, min_steps: 4}\n")
    with Hook.create_from_file(path):
        pass
    told = create_trial(tmp_path / "run").configuration()["hook"]["rules"]
    assert [each["name"] for each in told] == ["VanishingGradient", "DeadRelu"]
    assert told[1]["min_steps"] == 4
    path.write_text(f"out_dir: {tmp_path / 'again'}\nrules: default\n")
    with Hook.create_from_file(path):
        pass
    told = create_trial(tmp_path / "again").configuration()["hook"]["rules"]
    assert len(told) == len(rules.default_rules())


@pytest.mark.parametrize(
    ("bad", "error", "where", "message"),
    [
        ("- {min_steps: 4}", ConfigurationError, "[0]", "needs the rule's name"),
        ("- 3", ConfigurationError, "[0]", "must be the name of a rule"),
        ("- AllZero\n- DeadReluu", UnknownRule, "[1]", "did you mean 'DeadRelu'?"),
        (" DeadReluu", UnknownRule, "", "did you mean 'DeadRelu'?"),
        ("- DeadRelu(4)", ConfigurationError, "[0]", "write NAME or 'NAME("),
        ("- {name: DeadRelu, min_step: 4}", ConfigurationError, "[0]", "'min_step'"),
        (
            "- AllZero\n- {name: DeadRelu, min_steps: 0}",
            ConfigurationError,
            "[1]",
            "DeadRelu.min_steps is 0",
        ),
    ],
)
def test_a_bad_rule_of_a_file_is_told_with_its_place(
    bad: str,
    error: type[Exception],
    where: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "tdbg.yaml"
    between = "" if bad.startswith(" ") else "\n"
    path.write_text(f"out_dir: {tmp_path / 'run'}\nrules:{between}{bad}\n")
    with pytest.raises(error) as told:
        Hook.create_from_file(path)
    assert str(told.value).startswith(f"{path}: rules{where}: "), told.value
    assert message in str(told.value)
    monkeypatch.setenv("TDBG_CONFIG", str(path))
    with pytest.raises(error) as told:
        Hook()
    assert str(told.value).startswith(f"{path} (TDBG_CONFIG): rules{where}: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ("AllZero, DeadReluu", UnknownRule, "did you mean 'DeadRelu'?"),
        ("DeadRelu(min_steps=0, max_steps=9)", ConfigurationError, "min_steps is 0"),
        ("DeadRelu(min_step=4)", ConfigurationError, "no parameter 'min_step'"),
        ("nowhere.py:Mine", ConfigurationError, "there is no file"),
    ],
)
def test_a_bad_rule_of_the_environment_is_told_with_its_variable(
    bad: str,
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TDBG_RULES", bad)
    with pytest.raises(error) as told:
        Hook(tmp_path / "run")
    assert str(told.value).startswith("TDBG_RULES: "), told.value
    assert message in str(told.value)
    assert not (tmp_path / "run").exists()
    # An argument beats the variable, which is then of no interest.
    with Hook(tmp_path / "run", rules=["AllZero"]):
        pass


def test_a_dry_run_shows_what_rules_need(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = digits(16)
    asked = asks(
        need("labels", statistics=False, raw=True, interval=5),
        need("weights", raw=True, raw_limit=2000, interval=10),
        need("outputs", statistics=False, unit_summaries=True),
    )
    with Hook(tmp_path / "run", rules=[asked], dry_run=True) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for _ in range(2):
            inputs, labels = next(batches)
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            optimizer.step()
        summary = hook.dry_run_summary()
    assert summary.rules == ("Asks",)
    assert "rules: Asks" in str(summary)
    labels_part, weights = summary.part("labels"), summary.part("weights")
    assert labels_part.raw_bytes == 16 * 8
    assert labels_part.bytes_per_1000_steps > 200 * 16
    # Only those of fc2, fc3 and fc4 are small enough.
    assert weights.tensors == 4
    assert 100 * 1000 < weights.bytes_per_1000_steps < 100 * 6144
    assert summary.part("units").histogram_bytes > 0
    assert summary.part("units").bytes_per_1000_steps > 0
    names = {part.name for part in summary.parts}
    assert names == {"losses", "labels", "outputs", "weights", "units", "total"} - (
        set() if "outputs" in names else {"outputs"}
    )
    assert not (tmp_path / "run").exists()


def told_missing(trial: Trial, needs: Needs, rule: str = "") -> list[str]:
    return missing(needs, trial.collections(), trial.configuration(), rule)


def test_what_was_not_captured_is_said_with_the_setting(tmp_path: Path) -> None:
    trial = run(tmp_path / "run", ["VanishingGradient"], 1)
    assert told_missing(trial, need("gradients")) == []
    (text,) = told_missing(trial, need("weights"), "WeightUpdateRatio")
    assert 'include_collections=["weights"]' in text
    assert 'rules=["WeightUpdateRatio"]' in text
    (text,) = told_missing(
        trial, need("outputs", statistics=False, unit_summaries=True)
    )
    assert "units of outputs were not counted" in text
    (text,) = told_missing(trial, need("gradients", histogram=True))
    assert "save_histogram=True" in text
    every = run(tmp_path / "all", None, 1, save_all=True)
    assert told_missing(every, need("weights", "outputs", raw=True)) == []
    assert missing(need("weights"), {}, {}) == []


def test_what_was_asked_for_and_never_came_is_said(tmp_path: Path) -> None:
    asked = asks(need("labels", raw=True))
    with Hook(tmp_path / "run", rules=[asked], min_free_bytes=0) as hook:
        hook.register_module(nn.Linear(2, 2))
    trial = create_trial(tmp_path / "run")
    (text,) = told_missing(trial, need("labels", raw=True))
    assert "hook.register_loss(criterion)" in text


def names_of(asked: Any) -> list[str]:
    return [rule.name for rule in rules.parse_rules(asked)]


def test_a_rule_that_is_left_out_is_taken_from_those_before_it() -> None:
    every = names_of(None)
    others = [name for name in every if name not in ("DeadRelu", "AllZero")]
    assert names_of(["-DeadRelu", "-AllZero"]) == others
    assert names_of(["default", "-DeadRelu", " - AllZero "]) == others
    assert names_of(["AllZero", "DeadRelu", "-AllZero"]) == ["DeadRelu"]
    assert names_of(["-DeadRelu", "-AllZero", "Below(loss, 1)"]) == [*others, "Below"]


def test_hooks_variables_and_files_leave_rules_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(name: str, asked: Any) -> list[str]:
        hook = run(tmp_path / name, asked, 1).configuration()["hook"]
        return [each["name"] for each in hook["rules"]]

    others = [name for name in names_of(None) if name != "DeadRelu"]
    assert told("a", "-DeadRelu") == others
    monkeypatch.setenv("TDBG_RULES", "default, -DeadRelu")
    assert told("b", None) == others


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (["-DeadReluu"], UnknownRule, "did you mean 'DeadRelu"),
        (["AllZero", "-DeadRelu"], ConfigurationError, "not among the rules before it"),
        (["-DeadRelu", "-DeadRelu"], ConfigurationError, "'-DeadRelu' leaves out noth"),
        (["-"], UnknownRule, "there is no rule ''"),
    ],
)
def test_a_rule_that_is_not_there_cannot_be_left_out(
    asked: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        rules.parse_rules(asked)
