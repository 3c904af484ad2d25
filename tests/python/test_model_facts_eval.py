"""What a training says of a model that is trained in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tdbg.hooks.pytorch.evaluating import evaluating
from tdbg.modes import ModeKeys
from tdbg.pytorch import Hook
from tdbg.trial import create_trial
from torch_helpers import digits, mlp, train

pytestmark = pytest.mark.torch


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


def test_a_model_that_trains_has_chosen_which_layers_do_not():
    """Though its own mode is not that of the training: another was registered first."""
    model = normed()[:3]
    model[1].eval()
    parameters = {id(each) for each in model.parameters()}
    assert evaluating(model, parameters) == []
    assert evaluating(model.eval(), parameters) == ["1"]


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


def test_a_model_that_the_step_has_not_called_is_not_what_is_trained(run_dir: Path):
    """A generator in evaluation mode, whose mode it is, beside what learns."""
    generator, learner = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64)), normed()
    of_generator = torch.optim.SGD(generator.parameters(), 0.01)
    optimizer = torch.optim.SGD(learner.parameters(), 0.01)
    hook = Hook(run_dir, min_free_bytes=0)
    hook.register_module(generator)
    hook.register_module(learner)
    hook.register_optimizer(of_generator)
    hook.register_optimizer(optimizer, defines_step=True)
    generator.eval()
    for _ in range(3):
        learner(generator(torch.randn(8, 4)).detach()).sum().backward()
        optimizer.step()
    hook.close()
    assert [each.evaluating for each in create_trial(run_dir).facts()] == [()]
