"""What broke, or was recorded wrongly, under smdebug 1.0.34 and PyTorch 2.13.

Each test is a program on which smdebug raised or recorded something else; the right
answer is computed beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import tdbg.compat.smdebug.pytorch as smd
from tdbg.compat.smdebug.trials import Trial
from torch_helpers import digits, mlp

EVERY = smd.SaveConfig(save_interval=1)


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    smd.del_hook()


class Training:
    """A model with a hook of smdebug's, and an optimizer."""

    def __init__(self, run_dir: Path, model: nn.Module, **options: Any) -> None:
        if "include_collections" not in options:
            options.setdefault("save_all", True)
        self.run_dir, self.model = run_dir, model
        self.hook = smd.Hook(run_dir, **{"save_config": EVERY, **options})
        self.hook.register_module(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self, *inputs: Any, **keywords: Any) -> None:
        """One step whose loss is the sum of all outputs."""
        self.optimizer.zero_grad()
        _sum(self.model(*inputs, **keywords)).backward()
        self.optimizer.step()

    def read(self) -> Trial:
        assert self.hook.counters()["internal_errors"] == 0
        assert self.hook.close()
        return smd.create_trial(self.run_dir)


def _sum(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output.float().sum()
    values = output.values() if isinstance(output, dict) else output
    total = torch.zeros(())
    for each in values:
        total = total + _sum(each)
    return total


def test_bfloat16_and_autocast_to_it_are_captured(run_dir: Path) -> None:
    model = mlp().to(torch.bfloat16)
    training = Training(run_dir, model)
    before = model.fc1.weight.detach().clone()
    training.step(torch.ones(2, 64, dtype=torch.bfloat16))
    value = training.read().tensor("Net_fc1.weight").value(0)
    assert value.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(value.astype(np.float32), before.float().numpy())


def test_activations_under_autocast_are_captured(run_dir: Path) -> None:
    training = Training(run_dir, mlp())
    with torch.autocast("cpu", torch.bfloat16):
        training.step(torch.ones(2, 64))
    trial = training.read()
    assert trial.tensor("fc1_output_0").value(0).dtype == ml_dtypes.bfloat16
    assert trial.tensor("fc1_input_0").value(0).dtype == np.float32


def test_integer_labels_have_statistics(run_dir: Path) -> None:
    reduction = smd.ReductionConfig(["mean", "std"])
    training = Training(run_dir, mlp(), reduction_config=reduction)
    criterion = nn.CrossEntropyLoss()
    training.hook.register_loss(criterion)
    inputs, labels = next(digits(16))
    criterion(training.model(inputs), labels).backward()
    training.optimizer.step()
    found = training.read().tensor("CrossEntropyLoss_input_1")
    numbers = labels.numpy()
    assert found.reduction_value(0, "mean") == pytest.approx(numbers.mean())
    assert found.reduction_value(0, "std") == pytest.approx(numbers.std())


def test_a_tensor_saved_into_two_new_collections_is_in_both(run_dir: Path) -> None:
    training = Training(run_dir, mlp(), include_collections=[])
    training.hook.save_tensor("mine", torch.arange(3.0), ["c1", "c2"])
    training.step(torch.ones(2, 64))
    trial = training.read()
    for name in ("c1", "c2"):
        assert trial.tensor_names(collection=name) == ["mine"]
    assert trial.tensor("mine").value(0).tolist() == [0, 1, 2]


def test_scalars_are_recorded_at_their_steps_whatever_the_interval(
    run_dir: Path,
) -> None:
    config = smd.SaveConfig(save_interval=2)
    training = Training(run_dir, mlp(), save_config=config, include_collections=[])
    training.hook.set_mode(smd.modes.TRAIN)
    for step in range(5):
        training.step(torch.ones(2, 64))
        training.hook.save_scalar("number", step)
    found = training.read().tensor("scalar/number")
    values = found.values(smd.modes.TRAIN)
    assert {step: float(value) for step, value in values.items()} == {
        step: step for step in range(5)
    }


def test_sparse_gradients_are_those_of_the_dense_gradient(run_dir: Path) -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    training = Training(run_dir, model, include_collections=["weights", "gradients"])
    model(torch.tensor([[1, 2], [3, 3]])).square().sum().backward()
    assert model[0].weight.grad is not None
    gradient = model[0].weight.grad.to_dense().double().numpy()
    training.optimizer.step()
    trial = training.read()
    found = trial.tensor("gradient/Sequential_0.weight")
    assert found.reduction_value(0, "l2") == pytest.approx(np.linalg.norm(gradient))
    assert found.reduction_value(0, "mean") == pytest.approx(gradient.mean())
    np.testing.assert_allclose(found.value(0), gradient, rtol=1e-6)
    assert trial.tensor("gradient/Sequential_1.weight").steps() == [0]


def test_an_in_place_relu_does_not_change_what_was_saved(run_dir: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True))
    with torch.no_grad():
        model[0].weight.copy_(-torch.eye(8))
        model[0].bias.zero_()
    training = Training(run_dir, model)
    training.step(torch.ones(2, 8))
    trial = training.read()
    assert (trial.tensor("1_input_0").value(0) == -1).all()
    assert (trial.tensor("0_output_0").value(0) == -1).all()
    assert (trial.tensor("1_output_0").value(0) == 0).all()


def test_micro_batches_are_one_step_with_the_accumulated_gradient(
    run_dir: Path,
) -> None:
    model = mlp()
    training = Training(run_dir, model, include_collections=["gradients"])
    gradients = []
    for _ in range(2):
        training.optimizer.zero_grad()
        for part in range(3):
            model(torch.full((2, 64), 0.1 * (part + 1))).sum().backward()
        assert model.fc1.weight.grad is not None
        gradients.append(model.fc1.weight.grad.clone().numpy())
        training.optimizer.step()
    trial = training.read()
    found = trial.tensor("gradient/Net_fc1.weight")
    assert trial.steps() == found.steps() == [0, 1]
    for step, gradient in enumerate(gradients):
        np.testing.assert_array_equal(found.value(step), gradient)


def test_models_of_one_class_do_not_share_names(run_dir: Path) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    training = Training(run_dir, first, include_collections=["weights"])
    training.hook.register_module(second)
    training.optimizer.add_param_group({"params": list(second.parameters())})
    expected = [first.weight.detach().clone(), second.weight.detach().clone()]
    second(first(torch.ones(1, 2))).sum().backward()
    training.optimizer.step()
    trial = training.read()
    for name, value in zip(("Linear", "Linear_2"), expected, strict=True):
        found = trial.tensor(f"{name}_weight").value(0)
        np.testing.assert_array_equal(found, value.numpy())


def test_dict_outputs_and_keyword_inputs_are_captured(run_dir: Path) -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, *, x: torch.Tensor) -> dict[str, torch.Tensor]:
            y = self.fc(x)
            return {"a": y, "b": 2 * y}

    training = Training(run_dir, Heads())
    training.step(x=torch.ones(2, 4))
    trial = training.read()
    assert (trial.tensor("Heads_input_0").value(0) == 1).all()
    first, second = (trial.tensor(f"Heads_output_{i}").value(0) for i in (0, 1))
    np.testing.assert_array_equal(second, 2 * first)


def test_gradients_of_a_parameter_that_is_unfrozen_later_are_captured(
    run_dir: Path,
) -> None:
    model = mlp()
    model.fc1.requires_grad_(False)
    training = Training(run_dir, model, include_collections=["gradients"])
    training.step(torch.ones(2, 64))
    model.fc1.requires_grad_(True)
    training.step(torch.ones(2, 64))
    trial = training.read()
    assert trial.tensor("gradient/Net_fc2.weight").steps() == [0, 1]
    assert trial.tensor("gradient/Net_fc1.weight").steps() == [1]


def test_no_hook_stays_on_the_model_after_close(run_dir: Path) -> None:
    model = mlp()
    training = Training(run_dir, model)
    criterion = nn.CrossEntropyLoss()
    training.hook.register_loss(criterion)
    training.step(torch.ones(2, 64))
    assert any(each._forward_hooks for each in model.modules())
    training.read()
    for each in (*model.modules(), criterion):
        assert not each._forward_hooks
        assert not each._forward_pre_hooks
    for parameter in model.parameters():
        assert not parameter._backward_hooks
    training.step(torch.ones(2, 64))


def test_a_loss_of_any_class_or_none_is_captured(run_dir: Path) -> None:
    class Mine(nn.Module):
        def forward(self, output: torch.Tensor) -> torch.Tensor:
            return output.square().mean()

    def penalty(output: torch.Tensor) -> torch.Tensor:
        return output.abs().mean()

    training = Training(run_dir, mlp(), include_collections=[])
    mine = Mine()
    for _ in range(2):
        training.hook.register_loss(mine)
    wrapped = training.hook.register_loss(penalty)
    output = training.model(torch.ones(2, 64))
    losses = mine(output), wrapped(output)
    sum(losses).backward()  # type: ignore[union-attr]
    training.optimizer.step()
    trial = training.read()
    for name, loss in zip(("Mine", "penalty"), losses, strict=True):
        found = trial.tensor(f"{name}_output_0").value(0)
        assert float(found) == float(loss.detach())


def test_a_shared_module_has_all_its_names(run_dir: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = self.first

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.second(self.first(x))
            return result

    training = Training(run_dir, Tied())
    training.step(torch.ones(2, 4))
    trial = training.read()
    for one, other in (
        ("Tied_first.weight", "Tied_second.weight"),
        ("gradient/Tied_first.weight", "gradient/Tied_second.weight"),
        ("first_output_0", "second_output_0"),
        ("first_output_1", "second_output_1"),
    ):
        values = [trial.tensor(name).value(0) for name in (one, other)]
        np.testing.assert_array_equal(*values)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 3, 3)])
@pytest.mark.parametrize("name", ["std", "variance", "l1", "l2"])
def test_a_reduction_is_the_same_stored_and_computed(
    run_dir: Path, shape: tuple[int, ...], name: str
) -> None:
    hook = smd.Hook(run_dir, save_config=EVERY)
    value = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    hook.get_collection("rows").reduction_config = smd.ReductionConfig(["mean"])
    hook.save_tensor("stored", value, "rows")
    hook.save_tensor("raw", value)
    hook.close()
    trial = smd.create_trial(run_dir)
    flat = value.double().numpy().ravel()
    expected = {
        "std": flat.std(),
        "variance": flat.var(),
        "l1": np.abs(flat).sum(),
        "l2": np.sqrt((flat**2).sum()),
    }[name]
    for tensor in ("stored", "raw"):
        found = trial.tensor(tensor).reduction_value(0, name)
        assert found == pytest.approx(expected, rel=1e-7)
