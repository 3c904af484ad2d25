"""Trainings in evaluation mode: what is a step of training, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tdbg.modes import ModeKeys
from torch_helpers import Recorded, digits, make_hook, parts, train

pytestmark = pytest.mark.torch

TRAIN, EVAL = 1, 2


def modes_of(run_dir: Path) -> list[tuple[int, int]]:
    """Mode and mode step of each step."""
    return [(step[1], step[2]) for step in sorted(Recorded(run_dir).steps)]


@pytest.mark.parametrize("is_said", [False, True])
def test_what_an_optimizer_uses_is_a_step_of_training(run_dir: Path, is_said: bool):
    """Sabotaged: forwards that stay steps of evaluation, with updates of their own."""
    model, criterion, optimizer, batches = parts()
    model.eval()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        if is_said:
            hook.set_mode(ModeKeys.TRAIN)
        train(model, criterion, optimizer, batches, 4)
        assert hook.counters()["internal_errors"] == 0
    assert modes_of(run_dir) == [(TRAIN, n) for n in range(4)]
    recorded = Recorded(run_dir)
    for name in (
        "fc1_output_0",
        "fc1.weight",
        "gradient/fc1.weight",
        "update/fc1.weight",
    ):
        assert sorted(recorded.values(name)) == [0, 1, 2, 3], name
    assert sorted(recorded.values("CrossEntropyLoss_output_0")) == [0, 1, 2, 3]
    assert all(len(rows) == 1 for rows in recorded.rows("fc1.weight").values())


def test_the_weights_of_such_a_step_are_those_before_its_update(run_dir: Path):
    model, criterion, optimizer, batches = parts()
    model.eval()
    before = []
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        for _ in range(3):
            before.append(model.get_parameter("fc1.weight").detach().clone().numpy())
            train(model, criterion, optimizer, batches, 1)
    values = Recorded(run_dir).values("fc1.weight")
    for step, expected in enumerate(before):
        assert (values[step] == expected).all()


def test_validation_that_is_never_taken_back(run_dir: Path):
    """model.eval() after the first epoch, and no model.train()."""
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for _ in range(2):
            train(model, criterion, optimizer, batches, 2)
            model.eval()
            with torch.no_grad():
                inputs, labels = next(batches)
                criterion(model(inputs), labels)
        train(model, criterion, optimizer, batches, 1)
        model.train()
        train(model, criterion, optimizer, batches, 1)
        model.eval()
        model(next(batches)[0])
    assert modes_of(run_dir) == [
        *[(TRAIN, 0), (TRAIN, 1), (EVAL, 0)],
        *[(TRAIN, 2), (TRAIN, 3), (EVAL, 1)],
        *[(TRAIN, 4), (TRAIN, 5), (EVAL, 2)],
    ]


def test_accumulation_in_evaluation_mode(run_dir: Path):
    """Of the first step only the last micro-batch; nobody knew before it."""
    model, criterion, optimizer, batches = parts()
    model.eval()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        for _ in range(3):
            for _ in range(2):
                inputs, labels = next(batches)
                criterion(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert modes_of(run_dir) == [(EVAL, 0), (TRAIN, 0), (TRAIN, 1), (TRAIN, 2)]
    micro_batches = Recorded(run_dir).step_table["micro_batches"]
    assert list(micro_batches) == [1, 1, 2, 2]


def test_a_closure_is_training_whatever_the_mode(run_dir: Path):
    model, criterion, _, batches = parts()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    model.eval()
    inputs, labels = next(batches)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = criterion(model(inputs), labels)
        loss.backward()
        return loss

    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_optimizer(optimizer)
        model(inputs)  # Of which the closure knows nothing.
        for _ in range(2):
            optimizer.step(closure)
    assert modes_of(run_dir) == [(EVAL, 0), (TRAIN, 0), (TRAIN, 1)]
    assert sorted(Recorded(run_dir).rows("fc1_output_0")) == [0, 1, 2]


def validate(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """With gradients, by somebody who has not heard of no_grad."""
    del optimizer
    model.eval()
    model(next(digits(4))[0])
    model.train()


def attack(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """An adversarial example, made in evaluation mode."""
    model.eval()
    inputs = next(digits(4))[0].requires_grad_()
    model(inputs).sum().backward()
    model.train()
    optimizer.zero_grad()


def step_alone(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """An optimizer that steps once more after a validation without gradients."""
    model.eval()
    with torch.no_grad():
        model(next(digits(4))[0])
    optimizer.step()
    model.train()


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        (validate, [(TRAIN, 0), (EVAL, 0), (TRAIN, 1), (EVAL, 1)]),
        (attack, [(TRAIN, 0), (EVAL, 0), (TRAIN, 1), (EVAL, 1)]),
        (
            step_alone,
            [(TRAIN, 0), (EVAL, 0), (TRAIN, 1), (TRAIN, 2), (EVAL, 1), (TRAIN, 3)],
        ),
    ],
)
def test_other_forwards_stay_steps_of_evaluation(
    between: Callable[[nn.Module, torch.optim.Optimizer], None],
    expected: list[tuple[int, int]],
    run_dir: Path,
):
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        for _ in range(2):
            train(model, criterion, optimizer, batches, 1)
            between(model, optimizer)
    assert modes_of(run_dir) == expected


def test_a_mode_that_was_said_holds(run_dir: Path):
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.set_mode(ModeKeys.EVAL)
        train(model, criterion, optimizer, batches, 2)
    assert modes_of(run_dir) == [(EVAL, 0), (TRAIN, 0), (EVAL, 1), (TRAIN, 1)]
