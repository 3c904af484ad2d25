"""Evaluation of what a training wraps, of parts and of copies: steps of their own."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import nn
from torch.optim.swa_utils import AveragedModel

import tdbg.pytorch as td
from tdbg.modes import EVAL, TRAIN
from tdbg.trial import create_trial
from torch_helpers import EVERYTHING, mlp

pytestmark = pytest.mark.torch

Loss = Callable[[torch.Tensor], None]


class Task(nn.Module):
    """A wrapper with a little of its own."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.scale = nn.Parameter(torch.ones(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(x) * self.scale
        return result


def _inside(task: Task, x: torch.Tensor, loss: Loss) -> None:
    task.body.eval()
    loss(task.body(x))
    task.body.train()


def _all(task: Task, x: torch.Tensor, loss: Loss) -> None:
    task.eval()
    with torch.no_grad():
        loss(task.body(x))
    task.train()


def _without_eval(task: Task, x: torch.Tensor, loss: Loss) -> None:
    with torch.no_grad():
        loss(task.body(x))


def _inference(task: Task, x: torch.Tensor, loss: Loss) -> None:
    with torch.inference_mode():
        loss(task.body(x))


def _layer(task: Task, x: torch.Tensor, loss: Loss) -> None:
    body = task.body
    assert isinstance(body.fc1, nn.Linear)
    assert isinstance(body.fc2, nn.Linear)
    with torch.no_grad():
        loss(body.fc2(body.fc1(x)))


def _copy(task: Task, x: torch.Tensor, loss: Loss) -> None:
    with torch.no_grad():
        loss(copy.deepcopy(task).eval()(x))


def _average(task: Task, x: torch.Tensor, loss: Loss) -> None:
    with torch.no_grad():
        loss(AveragedModel(task).eval()(x))


@pytest.mark.parametrize("is_registered", [False, True])
@pytest.mark.parametrize(
    ("evaluate", "of_model"),
    [
        (_inside, True),
        (_all, True),
        (_without_eval, True),
        (_inference, True),
        (_layer, True),
        (_copy, False),
        (_average, False),
    ],
)
def test_what_is_evaluated_inside_is_a_step_of_evaluation(
    run_dir: Path,
    evaluate: Callable[[Task, torch.Tensor, Loss], None],
    of_model: bool,
    is_registered: bool,
) -> None:
    task, criterion = Task(mlp()), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    measure = criterion if is_registered else F.cross_entropy

    def evaluated(answer: torch.Tensor) -> None:
        measure(answer, torch.zeros(len(answer), dtype=torch.long))

    given = criterion if is_registered else None
    with td.watch(task, given, out=run_dir, save_config=EVERYTHING):
        for _ in range(2):
            for _ in range(3):
                optimizer.zero_grad()
                loss = measure(task(torch.randn(8, 64)), torch.arange(8))
                loss.backward()
                optimizer.step()
            for size in (3, 5):  # Batches of other sizes than in training.
                evaluate(task, torch.randn(size, 64), evaluated)
    trial = create_trial(run_dir)
    assert len(trial.steps(mode=TRAIN)) == 6
    assert len(trial.steps(mode=EVAL)) == 4
    name = "CrossEntropyLoss" if is_registered else "cross_entropy"
    of_layers = {"body.fc1_output_0": 24, "body.fc2_output_0": 10}
    for tensor, width in {**of_layers, f"{name}_input_0": 10}.items():
        found = trial.tensor(tensor)
        counts = [found.stats(step, mode=TRAIN).count for step in range(6)]
        assert counts == [8 * width] * 6, tensor
        if of_model or tensor not in of_layers:
            counts = [found.stats(step, mode=EVAL).count for step in range(4)]
            assert counts == [3 * width, 5 * width] * 2, tensor
        else:
            assert found.steps(mode=EVAL) == []
    assert not [each for each in trial.tensor_names() if "@" in each]


def test_an_evaluation_that_fails_inside_leaves_the_next_step_whole(
    run_dir: Path,
) -> None:
    task = Task(mlp())
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    with td.watch(task, out=run_dir, save_config=EVERYTHING) as hook:
        for step in range(4):
            if step == 2:
                with contextlib.suppress(RuntimeError), torch.no_grad():
                    task.body(torch.randn(3, 7))
            task(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
        assert hook.counters()["internal_errors"] == 0
    trial = create_trial(run_dir)
    assert trial.tensor("body.fc2_output_0").steps(mode=TRAIN) == [0, 1, 2, 3]


class Adjoint(torch.autograd.Function):
    """Calls a field several times, and again for its gradients, as solvers do."""

    @staticmethod
    def forward(ctx, field, x, *parameters):  # type: ignore[no-untyped-def]
        ctx.field = field
        ctx.save_for_backward(x, *parameters)
        for _ in range(3):
            x = x + field(x)
        return x

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        start, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            start = start.detach().requires_grad_()
            x = start
            for _ in range(3):
                x = x + ctx.field(x)
            found = torch.autograd.grad(x, [start, *parameters], gradient)
        return (None, *found)


class NewAdjoint(Adjoint):
    """The same in the newer style, without a context in the forward."""

    @staticmethod
    def forward(field, x, *parameters):  # type: ignore[no-untyped-def, override]
        del parameters
        for _ in range(3):
            x = x + field(x)
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        del output
        ctx.field, *tensors = inputs
        ctx.save_for_backward(*tensors)


@pytest.mark.parametrize("function", [Adjoint, NewAdjoint])
def test_a_field_that_an_adjoint_method_calls_is_trained(
    run_dir: Path, function: type[Adjoint]
) -> None:
    """Both disable gradients: a solver inside of its function, and an evaluation."""
    torch.manual_seed(0)
    field = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    # A solver wraps the field, and calls what is inside.
    wrapper = nn.Sequential(field)
    optimizer = torch.optim.SGD(field.parameters(), lr=0.1)
    x = torch.randn(16, 4)

    def solve() -> torch.Tensor:
        result: torch.Tensor = function.apply(field, x, *field.parameters())
        return result

    with td.Hook(
        run_dir,
        include_collections=["gradients", "outputs"],
        save_config=EVERYTHING,
        budget="off",
    ) as hook:
        hook.register_module(wrapper)
        for _ in range(4):
            optimizer.zero_grad()
            solve().square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                solve()
    trial = create_trial(run_dir)
    assert trial.steps(mode=TRAIN) == [0, 1, 2, 3]
    gradient = trial.tensor("gradient/0.0.weight")
    assert gradient.steps(mode=TRAIN) == [0, 1, 2, 3]
    output = trial.tensor("0.2_output_0")
    assert output.steps(mode=TRAIN) == [0, 1, 2, 3]
    # Three calls of the field in each solution that nobody differentiates.
    assert len(trial.steps(mode=EVAL)) == 12


class InParts(torch.autograd.Function):
    """Sums what a field says of each row, and differentiates row by row."""

    @staticmethod
    def forward(ctx, field, x, *parameters):  # type: ignore[no-untyped-def]
        ctx.field = field
        ctx.save_for_backward(x, *parameters)
        return field(x).sum()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        x, *parameters = ctx.saved_tensors
        total = [torch.zeros_like(each) for each in parameters]
        for row in x:
            with torch.enable_grad():
                part = ctx.field(row).sum()
            found = torch.autograd.grad(part, parameters, gradient)
            total = [old + new for old, new in zip(total, found, strict=True)]
        return (None, None, *total)


@pytest.mark.parametrize("has_optimizer", [False, True])
def test_gradients_of_parts_that_a_backward_computes_are_not_those_of_the_step(
    run_dir: Path, has_optimizer: bool
) -> None:
    torch.manual_seed(0)
    field = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(field.parameters(), lr=0.01) if has_optimizer else None
    expected = []
    with td.Hook(
        run_dir,
        include_collections=["gradients"],
        save_config=EVERYTHING,
        budget="off",
    ) as hook:
        hook.register_module(field)
        for _ in range(3):
            field.zero_grad()
            InParts.apply(field, torch.randn(8, 4), *field.parameters()).backward()
            assert field.weight.grad is not None
            expected.append(field.weight.grad.clone())
            if optimizer is not None:
                optimizer.step()
            else:
                with torch.no_grad():
                    for each in field.parameters():
                        assert each.grad is not None
                        each.sub_(each.grad, alpha=0.01)
    gradient = create_trial(run_dir).tensor("gradient/weight")
    assert gradient.steps(mode=TRAIN) == [0, 1, 2]
    for step, true in enumerate(expected):
        torch.testing.assert_close(torch.tensor(gradient.value(step)), true)
