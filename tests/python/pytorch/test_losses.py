"""Losses of every kind: modules, functions, and whatever else can be called."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tdbg import create_trial
from torch_helpers import Recorded, digits, make_hook, mlp

pytestmark = pytest.mark.torch

LOSSES_ONLY: dict[str, Any] = {"include_collections": []}


class Weighted:
    """A loss that is an object, with attributes and methods."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x.mean()

    def squared(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x**2).mean()


def module_level(x: torch.Tensor) -> torch.Tensor:
    """The sum."""
    return x.sum()


def test_whatever_can_be_called_is_a_loss_by_its_own_name(run_dir: Path) -> None:
    x = torch.tensor([1.0, 3.0])
    weighted = Weighted(2.0)
    losses: dict[str, Any] = {
        "module_level": module_level,
        "lambda": lambda x: x.max(),
        "mse_loss": functools.partial(functional.mse_loss, target=torch.zeros(2)),
        "Weighted": weighted,
        "squared": weighted.squared,
        "L1Loss": functools.partial(nn.L1Loss(), target=torch.zeros(2)),
    }
    with make_hook(run_dir, **LOSSES_ONLY) as hook:
        answers = {name: hook.register_loss(f)(x).item() for name, f in losses.items()}
    assert answers == {name: float(f(x)) for name, f in losses.items()}
    recorded = Recorded(run_dir)
    for name, answer in answers.items():
        assert recorded.values(f"{name}_output_0")[0] == answer
    assert len(recorded.names) == len(losses)
    assert create_trial(run_dir).tensor("lambda_output_0").role == "loss"


def test_a_loss_that_is_registered_twice_is_recorded_once(run_dir: Path) -> None:
    """Whichever of the two answers is used."""
    x, weighted, module = torch.ones(3), Weighted(2.0), nn.MSELoss()
    with make_hook(run_dir, **LOSSES_ONLY) as hook:
        for loss in (module_level, weighted, weighted.squared):
            first = hook.register_loss(loss)
            second = hook.register_loss(loss)
            third = hook.register_loss(second)
            for each in (first, second, third):
                each(x)
            # The method of the same object is asked for anew.
            hook.register_loss(weighted.squared)
        assert hook.register_loss(module) is hook.register_loss(module) is module
        module(x, x)
    recorded = Recorded(run_dir)
    assert {name for name in recorded.names if not name.endswith(("@2", "@3"))} == {
        "module_level_output_0",
        "Weighted_output_0",
        "squared_output_0",
        "MSELoss_output_0",
    }
    # Three calls of each but the module, one record a call.
    assert len(recorded.names) == 3 * 3 + 1


def test_what_stands_in_for_a_loss_is_like_it(run_dir: Path, tmp_path: Path) -> None:
    class Model(nn.Module):
        method = None

        def __init__(self, criterion: Any) -> None:
            super().__init__()
            self.criterion = criterion

    weighted = Weighted(2.0)
    with make_hook(run_dir, **LOSSES_ONLY) as hook:
        function = hook.register_loss(functional.cross_entropy)
        instance: Any = hook.register_loss(weighted)
        assert function.__name__ == "cross_entropy"
        assert inspect.signature(function) == inspect.signature(
            functional.cross_entropy
        )
        assert instance.weight == 2.0
        assert instance.squared(torch.ones(2)) == 2.0
        with pytest.raises(AttributeError):
            _ = instance.missing
        Model.method = hook.register_loss(lambda self: self.training)
        assert Model(None).method() is True
        # Copies are what it stands for, and are not captured.
        for copied in (
            copy.deepcopy(Model(function)),
            pickle.loads(pickle.dumps(Model.__new__(Model) and function)),  # noqa: S301
        ):
            found = copied.criterion if isinstance(copied, Model) else copied
            assert found is functional.cross_entropy
        assert type(copy.deepcopy(instance)) is Weighted
        torch.save(function, tmp_path / "loss.pt")
    program = (
        "import sys, torch\n"
        "sys.modules['tdbg'] = None\n"
        "loss = torch.load(sys.argv[1], weights_only=False)\n"
        "print(loss is torch.nn.functional.cross_entropy)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "loss.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


def test_a_loss_of_several_parts_has_each_of_them(run_dir: Path) -> None:
    def parts(x: torch.Tensor) -> dict[str, Any]:
        return {"total": x.sum(), "of which": (x.mean(), None), "n": 3}

    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.sum(), x.mean()

    x = torch.tensor([1.0, 3.0])
    with make_hook(run_dir, **LOSSES_ONLY) as hook:
        assert hook.register_loss(parts)(x)["n"] == 3
        hook.register_loss(Pair())(x)
    recorded = Recorded(run_dir)
    assert {name: float(recorded.values(name)[0]) for name in recorded.names} == {
        "parts_output_0": 4.0,
        "parts_output_1": 2.0,
        "Pair_output_0": 4.0,
        "Pair_output_1": 2.0,
    }
    assert create_trial(run_dir).tensor("parts_output_1").role == "loss"


def test_a_loss_that_is_not_reduced_has_statistics_of_its_elements(
    run_dir: Path,
) -> None:
    inputs, labels = next(digits(16))
    criterion = nn.CrossEntropyLoss(reduction="none")
    with make_hook(run_dir, **LOSSES_ONLY) as hook:
        hook.register_loss(criterion)
        each = criterion(mlp()(inputs), labels).detach().numpy()
    recorded = Recorded(run_dir)
    (row,) = recorded.rows("CrossEntropyLoss_output_0")[0]
    assert row["count"] == 16
    assert row["mean"] == pytest.approx(each.mean(dtype=np.float64), rel=1e-6)
    assert recorded.values("CrossEntropyLoss_output_0")[0].tobytes() == each.tobytes()


def test_integer_labels_and_bfloat16_of_a_loss_have_statistics(run_dir: Path) -> None:
    inputs, labels = next(digits(8))
    model, criterion = mlp().to(torch.bfloat16), nn.CrossEntropyLoss()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        criterion(model(inputs.to(torch.bfloat16)), labels).backward()
    assert hook.counters()["internal_errors"] == 0
    assert hook.counters()["refused_tensors"] == 0
    trial = create_trial(run_dir)
    target = trial.tensor("CrossEntropyLoss_input_1")
    assert target.reduction_value(0, "mean") == labels.double().mean().item()
    assert target.reduction_value(0, "std") == pytest.approx(
        labels.double().std(correction=0).item()
    )
    weight = model.get_parameter("fc1.weight").detach().double()
    found = trial.tensor("fc1.weight").reduction_value(0, "mean")
    assert found == pytest.approx(weight.mean().item(), rel=1e-5)
    assert trial.tensor("CrossEntropyLoss_output_0").value(0).dtype.name == "bfloat16"


def test_after_close_a_function_is_merely_called(run_dir: Path) -> None:
    hook = make_hook(run_dir, **LOSSES_ONLY)
    loss = hook.register_loss(module_level)
    loss(torch.ones(2))
    hook.close()
    assert loss(torch.ones(2)) == 2
    assert len(Recorded(run_dir).names) == 1
