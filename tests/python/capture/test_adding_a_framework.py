"""The framework of docs/adding-a-framework.md, as it stands there, captures a run."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdbg
from tdbg.config import Kind, SaveConfig
from tdbg.errors import ConfigurationError, TrainingStopped
from tdbg.modes import ModeKeys
from tdbg.rules import check
from tdbg.run.requests import request_stop

PAGE = Path(__file__).parents[3] / "docs" / "adding-a-framework.md"
EVERY_STEP = SaveConfig(save_interval=1)


@pytest.fixture(scope="module")
def framework() -> dict[str, Any]:
    (code,) = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    names: dict[str, Any] = {"__name__": "numpy_hooks"}
    exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 - ours, from the page
    return names


def make_hook(framework: dict[str, Any], run_dir: Path | None, **options: Any) -> Any:
    given = {
        "include_collections": ["weights", "biases", "gradients"],
        "save_config": EVERY_STEP,
        "min_free_bytes": 0,
        **options,
    }
    return framework["Hook"](run_dir, **given)


def test_the_run_has_all_tensors_at_all_steps(
    framework: dict[str, Any], run_dir: Path
) -> None:
    hook = make_hook(framework, run_dir)
    framework["train"](hook, 20)
    assert hook.close()
    counters = hook.counters()
    assert counters["internal_errors"] == counters["refused_tensors"] == 0
    trial = tdbg.create_trial(run_dir)
    assert trial.tensor_names(collection="weights") == ["linear.weight"]
    assert trial.tensor_names(collection="biases") == ["linear.bias"]
    assert trial.tensor_names(collection="gradients") == [
        "gradient/linear.bias",
        "gradient/linear.weight",
    ]
    assert trial.tensor_names(collection="losses") == ["loss"]
    assert trial.steps() == list(range(20))
    losses = [float(trial.tensor("loss").value(step)) for step in range(20)]
    assert losses[0] > 2.0
    assert losses == sorted(losses, reverse=True)
    weight = trial.tensor("linear.weight")
    assert not weight.value(0).any()
    gradient = trial.tensor("gradient/linear.weight").value(0)
    np.testing.assert_allclose(weight.value(1), -0.1 * gradient)


def test_the_run_knows_the_framework_and_the_model(
    framework: dict[str, Any], run_dir: Path
) -> None:
    hook = make_hook(framework, run_dir, rules=["LossNotDecreasing"])
    framework["train"](hook, 20)
    hook.close()
    trial = tdbg.create_trial(run_dir)
    (info,) = trial.model_info()
    assert info.optimizers == ("SGD",)
    assert info.parameters["linear.weight"].shape == (3,)
    assert info.kind_of("gradient/linear.weight") == Kind.LINEAR
    configuration = trial.events()[0].data
    assert configuration["framework"] == {"name": "numpy", "version": np.__version__}
    assert not check(run_dir, ["LossNotDecreasing"]).findings


def test_a_step_of_evaluation_is_one(framework: dict[str, Any], run_dir: Path) -> None:
    hook = make_hook(framework, run_dir)
    framework["train"](hook, 3)
    hook.set_mode(ModeKeys.EVAL)
    framework["train"](hook, 2)
    hook.close()
    trial = tdbg.create_trial(run_dir)
    assert len(trial.steps(mode=ModeKeys.TRAIN)) == 3
    assert len(trial.steps(mode=ModeKeys.EVAL)) == 2


def test_a_request_stops_the_training(framework: dict[str, Any], run_dir: Path) -> None:
    hook = make_hook(framework, run_dir)
    framework["train"](hook, 1)
    request_stop(run_dir, reason="enough")
    # It looks for requests every 0.1 s: long before so many steps are over.
    with pytest.raises(TrainingStopped, match="enough"):
        framework["train"](hook, 10**6)
    assert hook.should_stop
    hook.close()


def test_it_resumes_where_its_checkpoint_was(
    framework: dict[str, Any], run_dir: Path
) -> None:
    first = make_hook(framework, run_dir)
    framework["train"](first, 3)
    state = first.state_dict()
    first.close()
    second = make_hook(framework, run_dir)
    second.load_state_dict(state)
    framework["train"](second, 2)
    second.close()
    assert tdbg.create_trial(run_dir).steps() == list(range(5))


def test_a_dry_run_writes_nothing(framework: dict[str, Any], run_dir: Path) -> None:
    hook = make_hook(framework, run_dir, dry_run=True)
    framework["train"](hook, 3)
    assert "weights" in str(hook.dry_run_summary())
    assert not run_dir.exists()
    hook.close()


def test_numbers_and_tensors_are_recorded_by_hand(
    framework: dict[str, Any], run_dir: Path
) -> None:
    hook = make_hook(framework, run_dir)
    hook.save_scalar("accuracy", 0.5)
    hook.save_tensor("mine", np.arange(3.0), "mine")
    hook.record_tensor_value("my_loss", np.array(2.0))
    hook.close()
    trial = tdbg.create_trial(run_dir)
    assert trial.tensor_names() == ["mine", "my_loss_output_0", "scalar/accuracy"]


def test_a_copy_is_inert_and_a_disabled_hook_too(
    framework: dict[str, Any], run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(framework, run_dir)
    framework["train"](copy.copy(hook), 3)
    hook.close()
    assert not tdbg.create_trial(run_dir).steps()
    monkeypatch.setenv("TDBG_DISABLED", "1")
    disabled = make_hook(framework, None)
    framework["train"](disabled, 3)
    assert disabled.close()


def test_the_hook_of_the_process_is_the_one_made_last(
    framework: dict[str, Any], run_dir: Path
) -> None:
    hook = make_hook(framework, run_dir)
    assert framework["get_hook"](create_if_not_exists=True) is hook
    framework["set_hook"](hook)
    with pytest.raises(ConfigurationError, match="needs a Hook"):
        framework["set_hook"]("none")
    hook.close()
    framework["process_hook"].del_hook()
    assert framework["get_hook"]() is None
