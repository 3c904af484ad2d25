"""SageMaker's LossNotDecreasing: when it checks, and what it compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import tdbg
import tdbg.compat.smdebug.pytorch as smd
from tdbg.compat.smdebug.exceptions import RuleEvaluationConditionMet, SMDebugValueError
from tdbg.compat.smdebug.rules import LossNotDecreasing
from tdbg.compat.smdebug.trials import create_trial
from tdbg.errors import ConfigurationError

pytestmark = pytest.mark.torch
EXAMPLE = (0.3, 0.33, 0.31, 0.30, 0.28)


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    smd.del_hook()


def record(
    run_dir: Path,
    losses: Sequence[float],
    interval: int,
    *,
    mode: Any = smd.modes.TRAIN,
    name: str = "loss",
    **options: Any,
) -> None:
    """Record losses at each step that *interval* divides."""
    config = smd.SaveConfig(save_interval=interval)
    hook = smd.Hook(run_dir, save_config=config, **options)
    model = torch.nn.Linear(1, 1)
    hook.register_module(model)
    hook.set_mode(mode)
    for step in range((len(losses) - 1) * interval + 1):
        model(torch.zeros(1))
        hook.record_tensor_value(name, torch.tensor(losses[step // interval]))
    hook.close()


def fired(run_dir: Path, **parameters: Any) -> list[int]:
    trial = create_trial(str(run_dir))
    rule = LossNotDecreasing(trial, **parameters)
    found = []
    for step in trial.steps():
        try:
            rule.invoke(step)
        except RuleEvaluationConditionMet:
            found.append(step)
    return found


def test_a_loss_is_compared_with_the_newest_that_is_far_enough_back(
    run_dir: Path,
) -> None:
    record(run_dir, EXAMPLE, 4)
    assert fired(run_dir) == [12]  # With the loss of step 0, which is 0.3 too.
    assert fired(run_dir, num_steps=4) == [4]  # Then 8, 12 and 16 are below.
    assert fired(run_dir, num_steps="16", diff_percent="7") == [16]
    assert fired(run_dir, num_steps="16", diff_percent="6") == []
    assert fired(run_dir, num_steps=17) == []


def test_the_next_check_is_at_the_first_step_that_is_far_enough_on(
    run_dir: Path,
) -> None:
    """Each three steps saved, a check at 12 and 24: 15, 18 and 21 are none."""
    record(run_dir, [9, 8, 7, 6, 9, 9, 9, 9, 9, 9, 9, 9, 9], 3)
    assert fired(run_dir) == [12, 24, 36]
    assert fired(run_dir, diff_percent=50) == [12, 24, 36]


def test_findings_of_an_engine_are_those_of_the_rule(run_dir: Path) -> None:
    record(run_dir, EXAMPLE, 4)
    rule = tdbg.rules.resolve([LossNotDecreasing.__tdbg_rule__()(num_steps=10)])
    (finding,) = tdbg.rules.check(run_dir, rule).findings
    assert finding.first_step == 12


def test_statistics_are_enough(run_dir: Path) -> None:
    record(run_dir, EXAMPLE, 4, reduction_config=smd.ReductionConfig(["mean"]))
    assert fired(run_dir) == [12]


def test_other_tensors_are_judged_where_they_are_named(run_dir: Path) -> None:
    record(
        run_dir, EXAMPLE, 4, name="error", include_regex="error", include_collections=[]
    )
    assert fired(run_dir) == []
    assert fired(run_dir, tensor_regex="nothing, error_out") == [12]
    assert fired(run_dir, collection_names="default") == [12]


def test_steps_of_the_mode_are_judged(run_dir: Path) -> None:
    record(run_dir, EXAMPLE, 4, mode=smd.modes.EVAL)
    for mode in (None, "EVAL", smd.modes.EVAL, "GLOBAL"):
        assert fired(run_dir, mode=mode) == [12]
    assert fired(run_dir, mode="train") == []


@pytest.mark.parametrize(
    "parameters", [{"num_steps": 0}, {"diff_percent": -1}, {"mode": "eva"}]
)
def test_a_parameter_out_of_its_range_is_refused(
    run_dir: Path, parameters: dict[str, Any]
) -> None:
    record(run_dir, EXAMPLE, 1)
    with pytest.raises(SMDebugValueError):
        LossNotDecreasing(create_trial(str(run_dir)), **parameters)


@pytest.mark.parametrize("name", ["num_steps", "diff_percent"])
def test_tdbgs_own_rule_does_not_take_parameters_that_would_mean_something_else(
    name: str,
) -> None:
    with pytest.raises(ConfigurationError, match=name):
        tdbg.rules.resolve([{"name": "LossNotDecreasing", name: 10}])
