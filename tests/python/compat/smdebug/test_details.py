"""What scripts for smdebug do now and then: each of these was once wrong somewhere."""

from __future__ import annotations

import json
import logging
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdbg
import tdbg.compat.smdebug.pytorch as smd
from tdbg.compat.smdebug import install
from tdbg.compat.smdebug.exceptions import RuleEvaluationConditionMet
from tdbg.compat.smdebug.rules import Rule, invoke_rule
from torch_helpers import Recorded, digits, mlp, train

pytestmark = pytest.mark.torch
EVERY = smd.SaveConfig(save_interval=1)


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    smd.del_hook()


def trained(hook: Any, model: nn.Module | None = None, n_steps: int = 2) -> None:
    model = model or mlp()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, nn.CrossEntropyLoss(), optimizer, digits(8), n_steps)
    assert hook.counters()["internal_errors"] == 0
    hook.close()


def test_no_histogram_is_stored_that_nobody_asked_for(run_dir: Path) -> None:
    """Collections allow them by default; the hook has to ask."""
    hook = smd.Hook(run_dir, save_config=EVERY, include_collections=["weights"])
    hook.add_collection(smd.Collection("mine", "bias", save_histogram=True))
    trained(hook)
    trial = tdbg.create_trial(run_dir)
    assert trial.tensor("Net_fc1.weight").steps(what="histograms") == []


def test_a_copy_of_a_hook_is_not_the_hook_of_a_process_without_one(
    run_dir: Path,
) -> None:
    hook = smd.Hook(run_dir)
    text = pickle.dumps(hook)
    hook.close()
    smd.del_hook()
    pickle.loads(text)  # noqa: S301
    assert smd.get_hook() is None


def test_modules_inside_a_wrapper_have_their_names(run_dir: Path) -> None:
    model = mlp()
    hook = smd.Hook(run_dir, save_config=EVERY, include_collections=["picked"])
    picked = hook.get_collection("picked")
    picked.add_module_tensors(model.relu)  # type: ignore[arg-type]
    trained(hook, nn.DataParallel(model))
    assert Recorded(run_dir).names == {"relu_output_0"}


def test_a_module_is_picked_anew_and_by_its_whole_name(run_dir: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Sequential(nn.Linear(64, 10))
            self.x_0 = nn.Identity()

        def forward(self, inputs: torch.Tensor) -> Any:
            return self.x_0(self.x(inputs))

    model = Net()
    hook = smd.Hook(run_dir, save_config=EVERY, include_collections=["picked"])
    hook.register_module(model)
    picked = hook.get_collection("picked")
    picked.add_module_tensors(model.x[0])
    picked.add_module_tensors(model.x[0], inputs=True)
    trained(hook, model)
    # The dot of `x.0` is one.
    assert Recorded(run_dir).names == {"x.0_input_0", "x.0_output_0"}


def test_only_a_product_without_values_is_told(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook = smd.Hook(
        run_dir,
        include_collections=["weights"],
        reduction_config=smd.ReductionConfig(reductions=["prod"], save_raw_tensor=True),
    )
    with caplog.at_level(logging.WARNING, "tdbg"):
        trained(hook, n_steps=1)
    assert not caplog.records
    tensor = smd.create_trial(run_dir).tensor("Net_fc2.weight")
    value = tensor.value(0).astype(np.float64)
    for absolute in (False, True):
        found = tensor.reduction_value(0, "median", abs=absolute)
        assert found == np.median(np.abs(value) if absolute else value)


def test_a_schedule_that_is_assigned_again_holds_from_then_on(run_dir: Path) -> None:
    hook = smd.Hook(run_dir, include_collections=["weights"])
    weights = hook.get_collection("weights")
    model = mlp()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    train(model, criterion, optimizer, digits(8), 2)
    only_training = smd.SaveConfig({smd.modes.TRAIN: smd.SaveConfigMode(1)})
    weights.save_config = only_training
    train(model, criterion, optimizer, digits(8), 2)
    assert hook.should_save_tensor_or_collection("Net_fc1.weight", "weights")
    assert hook.save_config.get_save_config(smd.modes.TRAIN).save_interval == 500
    hook.close()
    assert smd.create_trial(run_dir).tensor("Net_fc1.weight").steps() == [0, 2, 3]


def test_what_a_file_says_of_ranks_and_dry_runs_holds(tmp_path: Path) -> None:
    settings = {
        "LocalPath": str(tmp_path / "run"),
        "HookParameters": {"dry_run": "true", "include_workers": "all"},
    }
    (tmp_path / "hook.json").write_text(json.dumps(settings))
    hook = smd.Hook.create_from_json_file(str(tmp_path / "hook.json"))
    trained(hook)
    assert hook.dry_run
    assert not (tmp_path / "run").exists()


def test_collections_hold_no_scalars_but_the_one_of_all(run_dir: Path) -> None:
    hook = smd.Hook(run_dir, save_config=EVERY, save_all=True)
    hook.save_scalar("accuracy", 0.5)
    trained(hook)
    trial = smd.create_trial(run_dir)
    assert "scalar/accuracy" in trial.collection("all").tensor_names
    weights = trial.collection("weights").tensor_names
    assert weights == {"Net_fc1.weight", "Net_fc2.weight"}
    assert trial.tensor_names(regex="scalar") == ["scalar/accuracy"], "no group's"


def test_a_collection_of_tdbgs_own_is_taken(run_dir: Path) -> None:
    hook = smd.Hook(run_dir, save_config=EVERY, include_collections=["mine"])
    hook.add_collection(tdbg.Collection("mine", r"relu_output"))
    trained(hook)
    assert Recorded(run_dir).names == {"relu_output_0"}
    assert isinstance(hook.get_collection("mine"), smd.Collection)


def test_a_rule_sees_one_state_of_the_run_and_may_end(run_dir: Path) -> None:
    trained(smd.Hook(run_dir, save_config=EVERY, save_all=True), n_steps=4)
    seen = []

    class Judge(Rule):
        def invoke_at_step(self, step: int) -> bool:
            seen.append((step, self.base_trial.dynamic_refresh))
            if step == 2:
                name = self.rule_name
                raise RuleEvaluationConditionMet(name, step, end_of_rule=True)
            return False

    trial = smd.create_trial(run_dir)
    invoke_rule(Judge(trial))
    assert seen == [(0, False), (1, False), (2, False)]
    assert trial.dynamic_refresh


def test_inputs_of_a_trial_are_ordered_by_their_index(run_dir: Path) -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> Any:
            return self.last(x + sum(rest))

    model = Many()
    hook = smd.Hook(run_dir, save_config=EVERY, include_collections=["inputs"])
    hook.get_collection("inputs").include("^Many_input")
    hook.register_module(model)
    model(*(torch.full((1, 64), float(i)) for i in range(12)))
    hook.close()
    values = smd.create_trial(run_dir).inputs(0)
    assert [int(each[0, 0]) for each in values] == list(range(12))


def test_a_second_install_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    install()
    install()
    roots = [getattr(each, "root", None) for each in sys.meta_path]
    assert roots.count("smdebug") == 1


def test_modes_that_a_schedule_leaves_out_have_the_default_one(run_dir: Path) -> None:
    train_only = {smd.modes.TRAIN: smd.SaveConfigMode(save_interval=1)}
    with_one = smd.SaveConfig(mode_save_configs=train_only)
    hook = smd.Hook(run_dir, save_config=with_one, include_collections=["weights"])
    assert hook.save_config.get_save_config(smd.modes.EVAL).save_interval == 500
    assert hook.save_config.get_save_config(smd.modes.TRAIN).save_interval == 1
    assert with_one.mode_save_configs[smd.modes.EVAL] is None, "it is the caller's"
    trained(hook, n_steps=2)
    assert smd.create_trial(str(run_dir)).steps(mode=smd.modes.TRAIN) == [0, 1]
