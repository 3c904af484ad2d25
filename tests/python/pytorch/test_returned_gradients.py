"""Trainings whose gradients a function returns: torch.func, torch.autograd.grad."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import grad as gradients_of
from torch.func import functional_call, grad, grad_and_value, vjp, vmap
from torch.nn import functional

from tdbg.modes import EVAL, TRAIN
from tdbg.pytorch import Hook, watch
from tdbg.trial import create_trial
from torch_helpers import Recorded, digits, make_hook, mlp

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*vmap")]

N_STEPS = 4
RATE = 0.1

Parameters = dict[str, torch.Tensor]
Compute = Callable[[Parameters], tuple[Parameters, torch.Tensor]]


def own(model: nn.Module) -> Parameters:
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def loss_of(
    model: nn.Module, given: Parameters, inputs: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    answer = functional_call(model, given, (inputs,))
    return functional.cross_entropy(answer, labels)


def by_grad(
    model: nn.Module, given: Parameters, inputs: torch.Tensor, labels: torch.Tensor
) -> tuple[Parameters, torch.Tensor]:
    return grad_and_value(lambda each: loss_of(model, each, inputs, labels))(given)


def by_vjp(
    model: nn.Module, given: Parameters, inputs: torch.Tensor, labels: torch.Tensor
) -> tuple[Parameters, torch.Tensor]:
    loss, pull = vjp(lambda each: loss_of(model, each, inputs, labels), given)
    (found,) = pull(torch.ones_like(loss))
    return found, loss


@pytest.mark.parametrize("compute", [by_grad, by_vjp])
def test_a_functional_training_is_captured_as_one_with_backward_passes(
    run_dir: Path, compute: Callable[..., tuple[Parameters, torch.Tensor]]
) -> None:
    model, held = mlp(), []
    parameters = own(model)
    with make_hook(run_dir, save_all=True) as hook:
        hook.register_module(model)
        batches = digits(8)
        for _ in range(N_STEPS):
            inputs, labels = next(batches)
            found, loss = compute(model, parameters, inputs, labels)
            held.append((parameters, found, inputs, loss))
            parameters = {
                name: each - RATE * found[name] for name, each in parameters.items()
            }
    assert hook.counters()["internal_errors"] == 0
    assert hook.counters()["refused_tensors"] == 0
    run = Recorded(run_dir)
    for step, (before, found, inputs, _) in enumerate(held):
        for name, each in before.items():
            assert np.array_equal(run.values(name)[step], each.numpy())
            gradient = run.values(f"gradient/{name}")[step]
            assert np.array_equal(gradient, found[name].detach().numpy())
        assert np.array_equal(
            run.values(f"{type(model).__name__}_input_0")[step], inputs
        )


def test_losses_of_a_functional_training_are_recorded_written_by_hand_too(
    run_dir: Path,
) -> None:
    model, losses = mlp(), []
    parameters = own(model)

    def squares(given: Parameters, inputs: torch.Tensor) -> torch.Tensor:
        return functional_call(model, given, (inputs,)).square().mean()  # type: ignore[no-any-return]

    with watch(model, out=run_dir, budget="off"):
        for _ in range(N_STEPS):
            inputs, _labels = next(digits(8))
            found, loss = grad_and_value(squares)(parameters, inputs)
            losses.append(float(loss))
            parameters = {
                name: each - RATE * found[name] for name, each in parameters.items()
            }
    loss = create_trial(run_dir).tensor("loss_output_0")
    assert [loss.reduction_value(step, "mean") for step in range(N_STEPS)] == losses


def test_gradients_of_each_sample_have_a_dimension_more(run_dir: Path) -> None:
    model = mlp()
    parameters = own(model)
    inputs, labels = next(digits(8))

    def of_one(
        given: Parameters, one: torch.Tensor, label: torch.Tensor
    ) -> torch.Tensor:
        return loss_of(model, given, one[None], label[None])

    with make_hook(run_dir, save_all=True) as hook:
        hook.register_module(model)
        found = vmap(grad(of_one), (None, 0, 0))(parameters, inputs, labels)
    assert hook.counters()["internal_errors"] == 0
    run = Recorded(run_dir)
    for name, each in found.items():
        assert np.array_equal(run.values(f"gradient/{name}")[0], each.numpy())
        assert np.array_equal(run.values(name)[0], parameters[name].numpy())


def test_what_vmap_maps_is_captured_with_all_samples(run_dir: Path) -> None:
    model, inputs = mlp(), torch.rand(4, 64)
    expected = vmap(model)(inputs)
    with make_hook(run_dir, save_all=True) as hook:
        hook.register_module(model)
        assert torch.equal(vmap(model)(inputs), expected)
    assert hook.counters()["internal_errors"] == 0
    name = f"{type(model).__name__}_output_0"
    assert np.array_equal(Recorded(run_dir).values(name)[0], expected.detach())


def test_evaluation_of_a_functional_training_is_no_step_of_it(run_dir: Path) -> None:
    model = mlp()
    parameters = own(model)
    with watch(model, out=run_dir, budget="off"):
        for _ in range(N_STEPS):
            inputs, labels = next(digits(8))
            found = grad(lambda each: loss_of(model, each, inputs, labels))(parameters)  # noqa: B023
            parameters = {
                name: each - RATE * found[name] for name, each in parameters.items()
            }
            functional_call(model, parameters, (inputs,))
    trial = create_trial(run_dir)
    assert trial.count_steps(TRAIN) == trial.count_steps(EVAL) == N_STEPS


def returned(hook: Hook, model: nn.Module) -> list[list[torch.Tensor]]:
    """Train by hand, with gradients that ``torch.autograd.grad`` returns."""
    hook.register_module(model)
    held, batches = [], digits(8)
    for _ in range(N_STEPS):
        inputs, labels = next(batches)
        loss = functional.cross_entropy(model(inputs), labels)
        found = gradients_of(
            loss, model.parameters()
        )  # What it is given is an iterator.
        held.append([each.clone() for each in found])
        with torch.no_grad():
            for parameter, each in zip(model.parameters(), found, strict=True):
                parameter.sub_(RATE * each)
    return held


def test_gradients_that_autograd_grad_returns_are_captured(run_dir: Path) -> None:
    model = mlp()
    with make_hook(run_dir, save_all=True) as hook:
        held = returned(hook, model)
    run = Recorded(run_dir)
    for number, (name, _) in enumerate(model.named_parameters()):
        values = run.values(f"gradient/{name}")
        assert sorted(values) == list(range(N_STEPS))
        for step, found in enumerate(held):
            assert np.array_equal(values[step], found[number].numpy())


def test_a_gradient_penalty_is_neither_a_loss_nor_a_gradient_of_weights(
    run_dir: Path,
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with watch(model, out=run_dir, budget="off"):
        for _ in range(N_STEPS):
            inputs = next(digits(8))[0].requires_grad_()
            score = model(inputs).mean()
            (of_inputs,) = gradients_of(score, inputs, create_graph=True)
            total = score + of_inputs.square().sum()
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
    trial = create_trial(run_dir)
    assert trial.tensor("loss_output_0").steps() == list(range(N_STEPS))
    loss = trial.tensor("loss_output_0").reduction_value(N_STEPS - 1, "mean")
    assert loss == pytest.approx(float(total.detach()))


def test_the_function_is_left_as_it_was(run_dir: Path) -> None:
    code = torch.autograd.grad.__code__
    with make_hook(run_dir) as hook:
        hook.register_module(mlp())
        assert torch.autograd.grad.__code__ is not code
    assert torch.autograd.grad.__code__ is code
