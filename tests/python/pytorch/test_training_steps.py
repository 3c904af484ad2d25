"""What people read are the steps of their loop, whatever is evaluated in between."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import tdbg
import tdbg.pytorch as td
from tdbg.cli import _tdbg
from tdbg.modes import EVAL, TRAIN
from tdbg.rules import check
from tdbg.trial import Trial, create_trial
from tdbg.ui import series
from tdbg.ui.documents import described
from tdbg.view import view_of

EPOCHS, STEPS, EVALUATED = 4, 15, 10
FAULT = 37


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 steps, an evaluation of 10 forwards after each 15, NaN weights at step 37."""
    path = tmp_path_factory.mktemp("loop") / "run"
    torch.manual_seed(0)
    model, criterion = nn.Linear(4, 2), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = td.Hook(path, save_all=True, save_config=td.SaveConfig(save_interval=1))
    hook.register_module(model)
    hook.register_loss(criterion)
    for i in range(EPOCHS * STEPS):
        if i == FAULT:
            model.weight.data[0, 0] = float("nan")
        for _ in range(2):  # Gradients accumulate over two micro-batches.
            x = torch.randn(8, 4)
            criterion(model(x), x[:, :2]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (i + 1) % STEPS == 0:
            model.eval()
            with torch.no_grad():
                for _ in range(EVALUATED):
                    x = torch.randn(8, 4)
                    criterion(model(x), x[:, :2])
            model.train()
    hook.close()
    return path


@pytest.fixture
def trial(run: Path) -> Trial:
    return create_trial(run)


def tdbg_says(*arguments: object) -> str:
    return CliRunner().invoke(_tdbg, [str(each) for each in arguments]).stdout


def test_a_fault_is_found_at_the_step_of_the_loop_on_every_surface(
    run: Path, trial: Trial
) -> None:
    recorded = FAULT + 2 * EVALUATED
    report = check(str(run), ["ExplodingTensor"])
    of_weight, in_evaluation = (
        each for each in report.findings if each.tensor == "weight"
    )
    assert (in_evaluation.mode, in_evaluation.first_step) == (EVAL, 45)
    assert (of_weight.first_step, of_weight.first_global_step) == (FAULT, recorded)
    held = [each.first_step for each in trial.findings() if each.tensor == "weight"]
    assert held == [FAULT, 45]
    page = [each for each in described(trial)["findings"] if each["tensor"] == "weight"]
    assert [each["first_step"] for each in page] == [FAULT, 45]
    assert [each["first_global_step"] for each in page] == [recorded, 65]
    text = tdbg_says("check", run, "--rule", "ExplodingTensor", "--all")
    assert f"ExplodingTensor at step {FAULT}:" in text
    assert "judged 60 recorded steps of training and 40 of evaluation" in text
    assert f"{recorded}" not in text


def test_a_printed_step_is_taken_by_the_other_surfaces_and_means_the_same(
    run: Path, trial: Trial
) -> None:
    document = json.loads(tdbg_says("show", run, "weight", "--step", FAULT, "--json"))
    numbers = {"step": FAULT, "mode": "TRAIN", "mode_step": FAULT}
    recorded = FAULT + 2 * EVALUATED
    assert document.items() >= {**numbers, "global_step": recorded}.items()
    weight = trial.tensor("weight")
    shown = np.array(document["values"], np.float32)
    np.testing.assert_array_equal(weight.value(FAULT), shown)
    np.testing.assert_array_equal(weight.value(recorded, "GLOBAL"), shown)
    assert np.isnan(weight.value(FAULT)).any()
    assert not np.isnan(weight.value(FAULT - 1)).any()
    (row,) = series.rows(trial, "weight", FAULT, FAULT + 1)["rows"]
    assert (row["step"], row["global_step"], row["nan"]) == (FAULT, recorded, 1)


def test_the_axis_has_training_steps_and_evaluation_stands_where_it_ran(
    trial: Trial,
) -> None:
    head = view_of(trial).head
    assert (head.steps, head.evaluated) == (60, 40)
    assert (head.first_step, head.last_step) == (0, 60)
    assert (head.first_global_step, head.last_global_step) == (0, 99)
    table = trial.step_table()
    evaluated = table["training_step"][table["mode"] == EVAL.value]
    assert evaluated.tolist() == np.repeat([15, 30, 45, 60], EVALUATED).tolist()
    loss = "MSELoss_output_0"
    for mode, places in ((TRAIN, list(range(60))), (EVAL, [15, 30, 45, 60])):
        found = trial.envelope([loss], mode=mode, by="training", fields="mean")
        assert found.edges[:-1][found.rows[0] > 0].tolist() == places


def test_the_short_forms_of_the_trial_are_about_training(trial: Trial) -> None:
    weight, loss = trial.tensor("weight"), trial.tensor("MSELoss_output_0")
    assert trial.steps() == list(range(60))
    for step in trial.steps():
        assert weight.value(step).shape == (2, 4)
    assert list(loss.values()) == list(range(60))
    assert list(loss.values("EVAL")) == list(range(40))
    assert len(loss.values("GLOBAL")) == 100
    assert trial.steps(mode=TRAIN) == list(range(60))


def test_the_loop_over_the_steps_reads_values_where_losses_are_denser(
    tmp_path: Path,
) -> None:
    model, criterion = nn.Linear(4, 2), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    config = td.SaveConfig(save_interval=10, statistics_interval=5)
    hook = td.Hook(
        tmp_path / "run", include_collections=["weights"], save_config=config
    )
    hook.register_module(model)
    hook.register_loss(criterion)
    for _ in range(30):
        x = torch.randn(8, 4)
        criterion(model(x), x[:, :2]).backward()
        optimizer.step()
        hook.save_scalar("accuracy", 0.5)
    hook.close()
    trial = tdbg.create_trial(tmp_path / "run")
    for mode in (None, TRAIN, "train", "GLOBAL"):
        assert trial.steps(mode) == [0, 10, 20]
        found = [trial.tensor("weight").value(s, mode) for s in trial.steps(mode)]
        assert [value.shape for value in found] == 3 * [(2, 4)]
    assert trial.steps(mode=TRAIN, what="any") == list(range(30))
    assert trial.steps(what="statistics") == list(range(30))  # Losses have some.


def test_the_steps_that_were_made_count_and_not_only_the_recorded_ones(
    tmp_path: Path,
) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    config = td.SaveConfig(save_interval=100, statistics_interval=100, start_step=200)
    hook = td.Hook(
        tmp_path / "run", include_collections=["weights"], save_config=config
    )
    hook.register_module(model)
    for _ in range(593):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
    hook.close()
    trial = create_trial(tmp_path / "run")
    assert trial.steps_made() == {TRAIN: (0, 593)}
    assert view_of(trial).verdict.sentence.startswith("Trained for 593 steps.")


def test_a_training_that_continues_in_a_new_run_counts_its_own_steps(
    tmp_path: Path,
) -> None:
    state: dict[str, Any] = {}
    for part in range(2):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        hook = td.Hook(tmp_path / str(part))
        if state:
            hook.load_state_dict(state)
        hook.register_module(model)
        for _ in range(20):
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
        state = hook.state_dict()
        hook.close()
        made = create_trial(tmp_path / str(part)).steps_made()
        assert made == {TRAIN: (20 * part, 20 * part + 20)}, os.fspath(tmp_path)


def test_the_steps_in_the_messages_of_rules_are_those_of_the_loop(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with td.Hook(tmp_path / "run", save_all=True) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for i in range(60):
            x = torch.randn(8, 4)
            criterion(model(x), x[:, :2]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if i == 20:
                model.eval()  # And never train() again.
                with torch.no_grad():
                    for _ in range(EVALUATED):
                        model(torch.randn(8, 4))
    (found,) = check(str(tmp_path / "run"), ["TrainedInEvalMode"]).findings
    assert "since step 21, the optimizer" in found.message
