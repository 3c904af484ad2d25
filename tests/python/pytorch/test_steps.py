"""Every situation of docs/steps.md, with real trainings of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_helpers import Recorded, bits, digits, make_hook, mean_of, mlp, parts, train

pytestmark = pytest.mark.torch

TRAIN, EVAL, PREDICT = 1, 2, 3
INTERRUPTED = 2


def test_one_optimizer(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        train(model, criterion, optimizer, batches, 3)
    assert Recorded(run_dir).steps == [(n, TRAIN, n, 0) for n in range(3)]


def test_the_parameters_of_a_step_are_those_it_used(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    before = bits(model.fc1.weight)  # type: ignore[arg-type,union-attr]
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 1)
    after = bits(model.fc1.weight)  # type: ignore[arg-type,union-attr]
    assert Recorded(run_dir).values("fc1.weight")[0].tobytes() == before != after


def test_gradients_are_as_the_optimizer_uses_them(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    optimizer.register_step_pre_hook(
        lambda *_: nn.utils.clip_grad_norm_(model.parameters(), 1e-3) and None
    )
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
    recorded = Recorded(run_dir)
    for step in range(2):
        squares = [
            float(row["l2"]) ** 2
            for name in recorded.names
            if name.startswith("gradient/")
            for row in recorded.rows(name)[step]
        ]
        assert np.sqrt(sum(squares)) == pytest.approx(1e-3, rel=1e-3)


def test_gradient_accumulation_is_one_step_of_several_micro_batches(
    run_dir: Path,
) -> None:
    model, criterion, optimizer, batches = parts()
    outputs = []
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(4):
                inputs, labels = next(batches)
                outputs.append(model(inputs).detach())
                criterion(model.fc2(model.relu(model.fc1(inputs))), labels).backward()
            gradient = bits(model.fc2.weight.grad)
            optimizer.step()
    recorded = Recorded(run_dir)
    assert recorded.steps == [(0, TRAIN, 0, 0), (1, TRAIN, 1, 0)]
    assert list(recorded.step_table["micro_batches"]) == [4, 4]
    rows = recorded.rows("Net_output_0")[1]
    assert [int(row["micro_batch"]) for row in rows] == [0, 1, 2, 3]
    expected = torch.cat(outputs[4:]).double().mean()
    assert mean_of(rows) == pytest.approx(float(expected), rel=1e-6)
    assert recorded.values("Net_output_0")[1].tobytes() == bits(outputs[4])
    assert len(recorded.rows("CrossEntropyLoss_output_0")[0]) == 4
    assert recorded.values("gradient/fc2.weight")[1].tobytes() == gradient
    assert len(recorded.rows("gradient/fc2.weight")[1]) == 1


def test_accumulation_is_seen_before_the_first_step_of_the_optimizer(
    run_dir: Path,
) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        for _ in range(3):
            inputs, labels = next(batches)
            criterion(model(inputs), labels).backward()
        optimizer.step()
    assert Recorded(run_dir).steps == [(0, TRAIN, 0, 0)]


def test_evaluation_between_steps_has_steps_of_its_own(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for _ in range(2):
            train(model, criterion, optimizer, batches, 2)
            model.eval()
            with torch.no_grad():
                for _ in range(2):
                    inputs, labels = next(batches)
                    criterion(model(inputs), labels)
            model.train()
    recorded = Recorded(run_dir)
    assert sorted(recorded.steps) == [
        (0, TRAIN, 0, 0),
        (1, TRAIN, 1, 0),
        (2, EVAL, 0, 0),
        (3, EVAL, 1, 0),
        (4, TRAIN, 2, 0),
        (5, TRAIN, 3, 0),
        (6, EVAL, 2, 0),
        (7, EVAL, 3, 0),
    ]
    assert sorted(recorded.values("CrossEntropyLoss_output_0")) == list(range(8))
    assert sorted(recorded.values("fc1.weight")) == list(range(8))
    assert sorted(recorded.values("gradient/fc1.weight")) == [0, 1, 4, 5]


def test_evaluation_in_the_middle_of_a_step_leaves_it_open(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    inputs, labels = next(batches)
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        loss = criterion(model(inputs), labels)
        model.eval()
        with torch.no_grad():
            model(inputs)
        model.train()
        loss.backward()
        optimizer.step()
    recorded = Recorded(run_dir)
    assert recorded.steps == [(0, TRAIN, 0, 0), (1, EVAL, 0, 0)]
    assert sorted(recorded.values("gradient/fc1.weight")) == [0]
    assert sorted(recorded.values("fc1_output_0")) == [0, 1]


def test_a_mode_set_by_hand_holds_until_it_is_taken_back(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    from tdbg.pytorch import ModeKeys

    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.set_mode(ModeKeys.PREDICT)
        model(next(batches)[0])
        hook.set_mode(None)
        train(model, criterion, optimizer, batches, 1)
    assert Recorded(run_dir).steps == [(0, PREDICT, 0, 0), (1, TRAIN, 0, 0)]


def test_without_an_optimizer_each_forward_is_a_step(run_dir: Path) -> None:
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    gradients, weights = [], []
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for _ in range(3):
            inputs, labels = next(batches)
            weights.append(bits(model.fc1.weight))  # type: ignore[arg-type,union-attr]
            criterion(model(inputs), labels).backward()
            gradients.append(bits(model.fc1.weight.grad))  # type: ignore[arg-type,union-attr]
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(0.1 * parameter.grad)  # type: ignore[operator]
                    parameter.grad = None
    recorded = Recorded(run_dir)
    assert recorded.steps == [(n, TRAIN, n, 0) for n in range(3)]
    for name, expected in (("fc1.weight", weights), ("gradient/fc1.weight", gradients)):
        values = recorded.values(name)
        assert [values[step].tobytes() for step in range(3)] == expected


def test_an_optimizer_made_after_the_first_forward_is_seen_when_it_steps(
    run_dir: Path,
) -> None:
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        inputs, labels = next(batches)
        loss = criterion(model(inputs), labels)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss.backward()
        optimizer.step()
        train(model, criterion, optimizer, batches, 2)
    recorded = Recorded(run_dir)
    assert recorded.steps == [(n, TRAIN, n, 0) for n in range(3)]
    assert sorted(recorded.values("gradient/fc1.weight")) == [0, 1, 2]


def test_a_forward_that_raises_is_an_interrupted_step(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 3))
        train(model, criterion, optimizer, batches, 1)
    assert Recorded(run_dir).steps == [(0, TRAIN, 0, INTERRUPTED), (1, TRAIN, 1, 0)]


@pytest.mark.parametrize("evaluating", [False, True])
def test_an_interrupt_inside_a_forward_is_an_interrupted_step(
    run_dir: Path, evaluating: bool
) -> None:
    model, criterion, optimizer, batches = parts()
    model.train(not evaluating)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with make_hook(run_dir) as hook:
        hook.register_module(model)
        handle = model.fc2.register_forward_pre_hook(interrupt)  # type: ignore[union-attr,operator]
        with pytest.raises(KeyboardInterrupt):
            model(next(batches)[0])
        handle.remove()
        model(next(batches)[0])
        model.train()
        train(model, criterion, optimizer, batches, 1)
    mode = EVAL if evaluating else TRAIN
    assert Recorded(run_dir).steps[0] == (0, mode, 0, INTERRUPTED)
    assert Recorded(run_dir).steps[1][3] == 0


def test_a_checkpointed_forward_is_recorded_once(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    inner = mlp()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.inner, x, use_reentrant=False)

    model = Outer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
    recorded = Recorded(run_dir)
    assert recorded.steps == [(0, TRAIN, 0, 0), (1, TRAIN, 1, 0)]
    assert [len(rows) for rows in recorded.rows("inner.fc1_output_0").values()] == [
        1,
        1,
    ]
    assert not any("@" in name for name in recorded.names)


def test_parameters_that_are_unfrozen_later_are_recorded_from_then_on(
    run_dir: Path,
) -> None:
    model, criterion, optimizer, batches = parts()
    model.fc1.requires_grad_(False)  # type: ignore[union-attr,operator]
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
        model.fc1.requires_grad_(True)  # type: ignore[union-attr,operator]
        train(model, criterion, optimizer, batches, 2)
    recorded = Recorded(run_dir)
    assert sorted(recorded.values("gradient/fc1.weight")) == [2, 3]
    assert sorted(recorded.values("gradient/fc2.weight")) == [0, 1, 2, 3]


def test_a_step_that_saves_nothing_is_recorded_once_a_second(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir, include_collections=[]) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 20)
    assert 1 <= len(Recorded(run_dir).steps) < 20
