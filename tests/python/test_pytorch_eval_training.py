"""Trainings in evaluation mode: what is a step, and what the hook says of the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tdbg.modes import ModeKeys
from tdbg.pytorch import Hook
from tdbg.trial import create_trial
from torch_helpers import Recorded, digits, make_hook, mlp, parts, train

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


# ---- what is said of the model -----------------------------------------------------


def normed() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(16, 10),
    )  # fmt: skip


def told(
    run_dir: Path,
    model: nn.Module,
    prepare: Callable[[nn.Module], object],
    *learning: nn.Parameter,
) -> tuple[str, ...]:
    """What is said at last of a model that was prepared so before each step."""
    hook = Hook(run_dir, min_free_bytes=0)
    hook.register_module(model)
    criterion = nn.CrossEntropyLoss()
    hook.register_loss(criterion)
    optimizer = torch.optim.SGD(learning or model.parameters(), 0.01)
    batches = digits(8)
    for _ in range(3):
        prepare(model)
        train(model, criterion, optimizer, batches, 1)
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    return create_trial(run_dir).facts()[-1].evaluating


def test_the_layers_that_mind_are_named(run_dir: Path):
    assert told(run_dir, normed(), nn.Module.eval) == ("1", "3")


def test_of_a_model_that_trains_none_are(run_dir: Path):
    assert told(run_dir, normed(), lambda _: None) == ()


def normalization(model: nn.Module) -> None:
    """As in detection: the model trains, its normalization keeps its statistics."""
    model.train()
    model.get_submodule("1").eval()


def but_for_dropout(model: nn.Module) -> None:
    model.eval()
    model.get_submodule("3").train()


def frozen_scales(model: nn.Module) -> None:
    model.eval()
    model.get_submodule("1").requires_grad_(False)


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [(normalization, ()), (but_for_dropout, ()), (frozen_scales, ("3",))],
)
def test_what_somebody_has_chosen_is_not_named(
    prepare: Callable[[nn.Module], object], expected: tuple[str, ...], run_dir: Path
):
    assert told(run_dir, normed(), prepare) == expected


def test_the_features_of_a_frozen_trunk_are_to_stay_as_they_are(run_dir: Path):
    model = normed()
    assert told(run_dir, model, nn.Module.eval, *model[4].parameters()) == ()


class Block(nn.Module):
    """Layers that mind, or do not, by how they are made."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(64, 10)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.first(x)
        return out


class DropPath(nn.Module):
    """Of another package."""

    drop_prob = 0.1


def test_which_layers_mind(run_dir: Path):
    mind = [
        nn.BatchNorm1d(2, affine=False),
        nn.InstanceNorm1d(2, track_running_stats=True),
        nn.LSTM(2, 2, 2, dropout=0.1),
        nn.MultiheadAttention(2, 1, dropout=0.1),
        nn.RReLU(),
        nn.Dropout2d(0.1),
        DropPath(),
    ]
    do_not = [
        nn.BatchNorm1d(2, track_running_stats=False),
        nn.InstanceNorm1d(2),
        nn.LSTM(2, 2, 2),
        nn.LSTM(2, 2),
        nn.MultiheadAttention(2, 1),
        nn.Dropout(0.0),
        nn.LayerNorm(2),
        nn.GELU(),
    ]
    model = Block(*mind, *do_not)
    model.add_module("own", nn.Linear(1, 1))
    expected = tuple(f"layers.{i}" for i in range(len(mind)))
    assert told(run_dir, model, nn.Module.eval) == expected


def test_without_such_layers_there_is_nothing_to_say(run_dir: Path):
    assert told(run_dir, mlp(), nn.Module.eval) == ()


def test_it_is_said_from_the_step_on_at_which_it_is_so(run_dir: Path):
    model = normed()
    hook = Hook(run_dir, min_free_bytes=0)
    hook.register_module(model)
    criterion, batches = nn.CrossEntropyLoss(), digits(8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for mode in (True, False, True):
        model.train(mode)
        train(model, criterion, optimizer, batches, 4)
    hook.close()
    facts = create_trial(run_dir).facts()
    assert [(each.step, each.evaluating) for each in facts] == [
        (0, ()),
        (4, ("1", "3")),
        (8, ()),
    ]


def test_a_teacher_in_evaluation_mode_is_not_what_is_trained(run_dir: Path):
    """Registered first, so that the mode is its mode."""
    teacher, student = normed().eval().requires_grad_(False), normed()
    optimizer = torch.optim.SGD(student.parameters(), 0.01)
    hook = Hook(run_dir, min_free_bytes=0)
    hook.register_module(teacher)
    hook.register_module(student)
    batches = digits(8)
    for _ in range(4):
        inputs = next(batches)[0]
        with torch.no_grad():
            said = teacher(inputs)
        (student(inputs) - said).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    hook.close()
    assert create_trial(run_dir).facts()[-1].evaluating == ()


def test_who_goes_in_and_out_of_it_at_every_step_means_it(run_dir: Path):
    """And the run does not grow by all that is known of the model at every step."""
    model = normed()
    hook = Hook(run_dir, min_free_bytes=0)
    hook.register_module(model)
    criterion, batches = nn.CrossEntropyLoss(), digits(8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(120):
        model.train(step % 2 == 0)
        train(model, criterion, optimizer, batches, 1)
    hook.close()
    facts = create_trial(run_dir).facts()
    assert (facts[1].step, facts[1].evaluating) == (1, ("1", "3"))
    assert facts[-1].evaluating == ()
    assert len(facts) <= 65


def test_who_says_the_mode_later_has_the_last_word(run_dir: Path):
    model = normed().eval()
    hook = Hook(run_dir, min_free_bytes=0)
    hook.register_module(model)
    criterion, batches = nn.CrossEntropyLoss(), digits(8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    train(model, criterion, optimizer, batches, 3)
    hook.set_mode(ModeKeys.TRAIN)
    train(model, criterion, optimizer, batches, 3)
    hook.close()
    facts = create_trial(run_dir).facts()
    assert [(each.step, each.evaluating) for each in facts] == [
        (0, ("1", "3")),
        (3, ()),
    ]
