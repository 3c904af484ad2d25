"""What a training says of its model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.facts import Facts
from tdbg.needs import Needs
from tdbg.pytorch import Hook
from tdbg.rules import Judgement, Rule, Window
from tdbg.trial import Trial, create_trial
from torch_helpers import digits, mlp


@dataclass(frozen=True, slots=True, kw_only=True)
class Units(Rule):
    """Needs units of a module that has none by default."""

    @property
    def needs(self) -> Needs:
        return Needs(
            collections=frozenset({"outputs"}),
            modules=frozenset({"Tanh"}),
            unit_summaries=True,
            interval=1,
        )

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        del window
        yield from ()


def begin(path: Path, model: nn.Module, **options: Any) -> tuple[Hook, nn.Module]:
    hook = Hook(path, min_free_bytes=0, **options)
    hook.register_module(model)
    criterion = nn.CrossEntropyLoss()
    hook.register_loss(criterion)
    return hook, criterion


def step(
    model: nn.Module, criterion: nn.Module, *optimizers: torch.optim.Optimizer
) -> None:
    inputs, labels = next(digits(8))
    model.zero_grad()
    criterion(model(inputs), labels).backward()
    for optimizer in optimizers:
        optimizer.step()


def facts_of(hook: Hook, path: Path) -> tuple[Facts, ...]:
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    return create_trial(path).facts()


def test_facts_are_written_at_the_end_of_the_first_step(tmp_path: Path) -> None:
    model = mlp()
    model.fc1.bias.requires_grad_(False)  # type: ignore[union-attr]
    hook, criterion = begin(tmp_path, model)
    optimizer = torch.optim.AdamW(model.fc2.parameters(), lr=0.1)  # type: ignore[union-attr]
    step(model, criterion, optimizer)
    hook.flush()
    assert len(create_trial(tmp_path).facts()) == 1
    for _ in range(25):
        step(model, criterion, optimizer)
    (facts,) = facts_of(hook, tmp_path)
    assert facts.step == 0
    assert facts.complete
    assert facts.models == ("Net",)
    assert facts.losses == ("CrossEntropyLoss",)
    assert facts.optimizers == ("AdamW",)
    assert facts.modules == {
        "Net": "Net",
        "fc1": "Linear",
        "relu": "ReLU",
        "fc2": "Linear",
    }
    weight, bias = facts.parameters["fc1.weight"], facts.parameters["fc1.bias"]
    assert (weight.shape, weight.dtype, weight.module) == (
        (24, 64),
        "float32",
        "Linear",
    )
    assert (weight.requires_grad, weight.optimizer) == (True, None)
    assert not bias.requires_grad
    assert facts.parameters["fc2.weight"].optimizer == 0
    assert facts.module_of("relu_output_0") == "ReLU"


def test_a_parameter_that_is_unfrozen_later_is_told(tmp_path: Path) -> None:
    model = mlp()
    model.fc1.requires_grad_(False)  # type: ignore[operator]
    hook, criterion = begin(tmp_path, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(30):
        if number == 12:
            model.fc1.requires_grad_(True)  # type: ignore[operator]
        step(model, criterion, optimizer)
    first, second = facts_of(hook, tmp_path)
    assert not first.parameters["fc1.weight"].requires_grad
    assert second.parameters["fc1.weight"].requires_grad
    assert 12 <= second.step < 25


def test_an_optimizer_that_comes_later_is_told_at_once(tmp_path: Path) -> None:
    model = mlp()
    hook, criterion = begin(tmp_path, model)
    first_optimizer = torch.optim.SGD(model.fc1.parameters(), lr=0.1)  # type: ignore[union-attr]
    for _ in range(3):
        step(model, criterion, first_optimizer)
    other = torch.optim.Adam(model.fc2.parameters())  # type: ignore[union-attr]
    step(model, criterion, first_optimizer, other)
    step(model, criterion, first_optimizer, other)
    first, second = facts_of(hook, tmp_path)
    assert first.optimizers == ("SGD",)
    assert first.parameters["fc2.weight"].optimizer is None
    assert second.optimizers == ("SGD", "Adam")
    assert second.parameters["fc2.weight"].optimizer == 1
    assert second.step in {3, 4}


def test_a_training_without_an_optimizer_tells_that_too(tmp_path: Path) -> None:
    model = mlp()
    hook, criterion = begin(tmp_path, model)
    for _ in range(2):
        step(model, criterion)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)  # type: ignore[arg-type]
    (facts,) = facts_of(hook, tmp_path)
    assert not facts.complete
    assert facts.parameters["fc1.weight"].optimizer is None


def test_two_models_keep_their_names(tmp_path: Path) -> None:
    first, second = mlp(), mlp()
    hook, criterion = begin(tmp_path, first)
    hook.register_module(second)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    step(nn.Sequential(first), criterion, optimizer)
    (facts,) = facts_of(hook, tmp_path)
    assert facts.models == ("Net", "Net")
    assert facts.modules["Net_2"] == "Net"
    assert facts.modules["Net_2.fc1"] == "Linear"
    assert facts.parameters["Net_2.fc1.weight"].optimizer == 0
    assert facts.module_of("Net_2.relu_output_0") == "ReLU"


def test_a_model_of_many_parameters_is_told_in_parts(tmp_path: Path) -> None:
    layers = [nn.Linear(1, 1) for _ in range(4000)]
    model = nn.ModuleDict({f"{'long' * 10}{i}": each for i, each in enumerate(layers)})
    hook = Hook(tmp_path, min_free_bytes=0)
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hook.forward_pass():
        layers[0](torch.ones(1)).backward()
    optimizer.step()
    (facts,) = facts_of(hook, tmp_path)
    assert len(facts.parameters) == 8000
    assert len(facts.modules) == 4001
    assert len(create_trial(tmp_path).events("configuration")) > 2


@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_training_tells_the_same(whole: bool, tmp_path: Path) -> None:
    """And its rules get what they need."""
    trials: list[Trial] = []
    for compiles in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
        path = tmp_path / str(compiles)
        rules = [Units()] if whole else ["ClassImbalance"]
        hook, criterion = begin(path, model, rules=rules)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        called: Any = model
        if compiles:
            called = torch.compile(model, backend="eager")
        for _ in range(3):
            step(called, criterion, optimizer)
        assert hook.counters()["internal_errors"] == 0
        hook.close()
        trials.append(create_trial(path))
    eager, compiled = trials
    assert eager.facts() == compiled.facts()
    assert eager.tensor_names() == compiled.tensor_names()
    if whole:
        values = [t.tensor("unit/1_output_0").value(0) for t in trials]
        assert (values[0] == values[1]).all()
    else:
        assert "CrossEntropyLoss_input_1" in eager.tensor_names()
