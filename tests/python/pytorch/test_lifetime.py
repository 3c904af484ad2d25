"""A hook around its training: resumed, run again in a notebook, copied, by parts."""

from __future__ import annotations

import copy
import gc
import io
import logging
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module
from torch.optim.optimizer import _global_optimizer_pre_hooks

from tdbg.errors import ConfigurationError, TrainingStopped
from tdbg.pytorch import Hook, create_trial, modes
from tdbg.run.requests import request_stop
from torch_helpers import Recorded, digits, make_hook, mlp, parts, train

pytestmark = pytest.mark.torch


def hooked(run_dir: Path, **options: Any) -> tuple[Any, ...]:
    model, criterion, optimizer, batches = parts()
    hook = make_hook(run_dir, **options)
    hook.register_module(model)
    hook.register_loss(criterion)
    return hook, model, criterion, optimizer, batches


def evaluate(model: nn.Module, n_steps: int) -> None:
    model.eval()
    with torch.no_grad():
        for _ in range(n_steps):
            model(torch.ones(1, 64))
    model.train()


def test_a_resumed_training_goes_on_at_its_checkpoint(run_dir: Path) -> None:
    hook, *training = hooked(run_dir)
    train(*training, 3)
    evaluate(training[0], 2)
    buffer = io.BytesIO()
    torch.save({"model": training[0].state_dict(), "tdbg": hook.state_dict()}, buffer)
    train(*training, 4)  # Is lost: the process dies.
    assert hook.close()

    buffer.seek(0)
    checkpoint = torch.load(buffer)  # weights_only: nothing but plain numbers.
    hook, *training = hooked(run_dir)
    training[0].load_state_dict(checkpoint["model"])
    hook.load_state_dict(checkpoint["tdbg"])
    losses = train(*training, 2)
    evaluate(training[0], 1)
    assert hook.close()

    newest = Recorded(run_dir)
    assert [step[:3] for step in newest.steps] == [(5, 1, 3), (6, 1, 4), (7, 2, 2)]
    trial = create_trial(run_dir)
    assert trial.steps(mode=modes.TRAIN) == [0, 1, 2, 3, 4]
    assert trial.steps(mode=modes.EVAL) == [0, 1, 2]
    loss = trial.tensor("CrossEntropyLoss_output_0")
    values = [float(loss.value(step, mode=modes.TRAIN)) for step in (3, 4)]
    assert values == pytest.approx(losses)


def test_a_step_under_way_at_the_checkpoint_is_repeated(run_dir: Path) -> None:
    hook, model, criterion, optimizer, batches = hooked(run_dir)
    train(model, criterion, optimizer, batches, 2)
    inputs, labels = next(batches)
    criterion(model(inputs), labels).backward()
    state = hook.state_dict()
    optimizer.step()
    assert state == {"version": 1, "step": 2, "modes": {"TRAIN": 2}}
    assert hook.state_dict()["step"] == 3
    assert hook.close()


def test_a_training_can_resume_with_nothing_but_its_number_of_steps(
    run_dir: Path,
) -> None:
    hook, *training = hooked(run_dir)
    hook.resume_at(100)
    train(*training, 2)
    assert hook.close()
    assert [step[:3] for step in Recorded(run_dir).steps] == [
        (100, 1, 100),
        (101, 1, 101),
    ]


def test_steps_never_go_back(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    hook, *training = hooked(run_dir)
    train(*training, 3)
    with caplog.at_level(logging.WARNING, "tdbg"):
        hook.resume_at(1)
    assert "load it before the first step" in caplog.text
    train(*training, 1)
    assert hook.close()
    assert [step[0] for step in Recorded(run_dir).steps] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"version": 2, "step": 0, "modes": {}},
        {"version": 1, "step": 0},
        {"version": 1, "step": -1, "modes": {}},
        {"version": 1, "step": True, "modes": {}},
        {"version": 1, "step": 1 << 63, "modes": {}},
        {"version": 1, "step": 0, "modes": {"TRIAN": 1}},
        {"version": 1, "step": 0, "modes": {"TRAIN": "1"}},
    ],
)
def test_a_checkpoint_of_something_else_is_refused(run_dir: Path, state: Any) -> None:
    with make_hook(run_dir) as hook, pytest.raises(ConfigurationError):
        hook.load_state_dict(state)


def test_a_cell_that_is_run_again_replaces_its_hook(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *training = hooked(run_dir)
    train(*training, 3)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    for _ in range(2):  # The cell makes everything anew.
        hook, *training = hooked(run_dir)
        train(*training, 2)
    assert not first.counters()["is_live"]
    assert hook.close()
    trial = create_trial(run_dir)
    assert trial.steps(mode=modes.TRAIN) == [0, 1]
    assert len(trial.attempts()) == 3


def test_a_cell_that_only_hooks_again_replaces_the_hook_of_its_model(
    tmp_path: Path,
) -> None:
    model, criterion, optimizer, batches = parts()
    for number in range(3):
        hook = make_hook(tmp_path / str(number))
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
    assert hook.close()
    for number in range(3):
        assert len(Recorded(tmp_path / str(number)).steps) == 2
    n_left = len(model._forward_pre_hooks) + len(optimizer._optimizer_step_pre_hooks)
    assert n_left == 0


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", ["root", "relu", "fc1", "criterion"])
def test_a_hook_that_is_closed_while_the_model_is_called_lets_it_go_on(
    run_dir: Path, at: str, when: str
) -> None:
    """PyTorch still calls what it was about to, and without the keywords."""
    hook, model, criterion, optimizer, batches = hooked(run_dir, save_all=True)
    place = {"root": model, "criterion": criterion}.get(at) or getattr(model, at)

    def close(*_: Any) -> None:
        hook.close()

    if when == "before":
        place.register_forward_pre_hook(close, prepend=True)
    else:
        place.register_forward_hook(close, prepend=True)
    train(model, criterion, optimizer, batches, 2)
    assert hook.counters()["internal_errors"] == 0


class Talkative(nn.Module):
    """A model that knows its hook."""

    def __init__(self, hook: Hook) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)
        self.hook = hook

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(x)
        self.hook.save_tensor("inside", result)
        return result


def test_a_copy_of_a_hook_does_nothing(run_dir: Path) -> None:
    hook = make_hook(run_dir)
    model = Talkative(hook)
    hook.register_module(model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(model),
        copy.copy(hook),
        pickle.loads(pickle.dumps(hook)),  # noqa: S301 - made here
        torch.load(buffer, weights_only=False),
    ]
    for each in copies:
        silent = each.hook if isinstance(each, Talkative) else each
        if isinstance(each, Talkative):
            each(torch.ones(1, 64))
        assert type(silent) is Hook
        silent.register_module(mlp())
        silent.register_optimizer(torch.optim.SGD(mlp().parameters(), lr=0.1))
        silent.save_scalar("x", 1.0)
        silent.load_state_dict(hook.state_dict())
        assert not silent.counters()["is_live"]
        assert silent.close()
    model(torch.ones(1, 64))
    assert hook.close()
    assert len(Recorded(run_dir).steps) == 1


def test_parts_of_a_model_called_one_by_one_are_one_forward(run_dir: Path) -> None:
    model: Any = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = digits(8)
    hook = make_hook(run_dir)
    hook.register_module(model)
    for _ in range(2):
        for _ in range(2):  # Two micro-batches.
            inputs, labels = next(batches)
            with hook.forward_pass():
                hidden = model.relu(model.fc1(inputs))
                loss = nn.functional.cross_entropy(model.fc2(hidden), labels)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with hook.forward_pass(), torch.no_grad():
        model.relu(model.fc1(inputs))
    assert hook.close()
    recorded = Recorded(run_dir)
    assert [step[:3] for step in recorded.steps] == [(0, 1, 0), (1, 1, 1), (2, 2, 0)]
    assert {"relu_output_0", "fc1_input_0", "gradient/fc2.weight"} <= recorded.names
    assert not any("@" in name for name in recorded.names)
    assert [int(n) for n in recorded.step_table["micro_batches"]] == [2, 2, 1]


def test_a_stop_is_raised_before_a_pass_begins(run_dir: Path) -> None:
    hook = make_hook(run_dir)
    hook.register_module(mlp())
    request_stop(run_dir, reason="enough")
    with pytest.raises(TrainingStopped, match="enough"), hook.forward_pass():
        pytest.fail("the pass has begun")
    assert hook.close()


def test_a_hook_that_nobody_closed_leaves_nothing_in_pytorch(run_dir: Path) -> None:
    """What it hung on all modules and optimizers would be called for ever."""

    def hooks() -> list[int]:
        kinds = (
            module._global_module_registration_hooks,
            module._global_parameter_registration_hooks,
            _global_optimizer_pre_hooks,
        )
        return [len(kind) for kind in kinds]

    before = hooks()
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = make_hook(run_dir)
    hook.register_module(model)
    train(model, criterion, optimizer, digits(8), 1)
    assert hooks() != before
    del hook, model, optimizer
    gc.collect()
    assert hooks() == before
