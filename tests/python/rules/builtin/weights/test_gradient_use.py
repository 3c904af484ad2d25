"""OptimizerMisuse, on trainings that use gradients otherwise than losses make them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import SGD, Adam, AdamW, Optimizer

import tdbg
import tdbg.pytorch as td
from tdbg.rules import OptimizerMisuse
from tdbg.run.findings import Finding, Severity

N = 16
Train = Callable[[Callable[[nn.Module], None]], None]


def found(run: Path, train: Train) -> list[Finding]:
    """What the rule says of a training that registers its model."""
    torch.manual_seed(0)
    hook = td.Hook(out_dir=run)
    train(hook.register_module)
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    return list(tdbg.rules.check(run, [OptimizerMisuse()], record=False).findings)


def mlp(*sizes: int) -> nn.Sequential:
    pairs = itertools.pairwise(sizes)
    layers = [[nn.Linear(a, b), nn.Tanh()] for a, b in pairs]
    return nn.Sequential(*itertools.chain(*layers))


def descend(optimizer: Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


Descend = Callable[[Optimizer, Tensor], None]


def descending(how: Descend, n: int = 8) -> Train:
    """Train with another use of the gradients in each step."""

    def train(register: Callable[[nn.Module], None]) -> None:
        model = mlp(8, 8, 8)
        register(model)
        optimizer = AdamW(model.parameters(), 1e-3)
        for _ in range(n):
            loss = F.mse_loss(model(torch.randn(N, 8)), torch.randn(N, 8))
            how(optimizer, loss)

    return train


def clears_early(optimizer: Optimizer, loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.zero_grad()
    optimizer.step()


def zeroes_early(optimizer: Optimizer, loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()


def steps_twice(optimizer: Optimizer, loss: Tensor) -> None:
    descend(optimizer, loss)
    optimizer.step()


@pytest.mark.parametrize("how", [clears_early, zeroes_early])
def test_gradients_that_are_cleared_before_their_step_are_named(
    tmp_path: Path, how: Descend
) -> None:
    (finding,) = found(tmp_path, descending(how))
    assert finding.severity == Severity.WARNING
    assert "cleared before the optimizer (AdamW) uses them" in finding.message
    assert "zero_grad() before the backward pass" in finding.advice


def test_gradients_that_are_used_twice_are_named(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, descending(steps_twice))
    assert "used twice: after one backward pass, two steps of AdamW" in finding.message
    assert "scaler.step(optimizer)" in finding.advice


def test_two_optimizers_of_the_same_parameters_are_named(tmp_path: Path) -> None:
    def train(register: Callable[[nn.Module], None]) -> None:
        model = mlp(8, 8)
        register(model)
        both = SGD(model.parameters(), 0.1), Adam(model.parameters(), 1e-3)
        for _ in range(8):
            both[0].zero_grad()
            F.mse_loss(model(torch.randn(N, 8)), torch.ones(N, 8)).backward()  # type: ignore[no-untyped-call]
            both[0].step()
            both[1].step()

    (finding,) = found(tmp_path, train)
    assert "a step of SGD and one of another optimizer (Adam)" in finding.message


def scaled(*, by_scaler: bool) -> Train:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def how(optimizer: Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if by_scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()

    return descending(how)


def test_gradients_that_are_still_scaled_are_named(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, scaled(by_scaler=False))
    assert "still multiplied by the scale of GradScaler (1,020)" in finding.message
    assert "scaler.step(optimizer), then scaler.update()" in finding.advice


def of_model(make: Callable[[nn.Module], nn.Module]) -> Train:
    """Train with an optimizer of something that is made of the model."""

    def train(register: Callable[[nn.Module], None]) -> None:
        model = mlp(8, 8, 8)
        register(model)
        other = make(model)
        optimizer = Adam(other.parameters(), 1e-3)
        for _ in range(8):
            descend(optimizer, F.mse_loss(model(torch.randn(N, 8)), torch.ones(N, 8)))

    return train


@pytest.mark.parametrize("make", [copy.deepcopy, lambda _: mlp(8, 8, 8)])
def test_an_optimizer_of_another_model_is_named(
    tmp_path: Path, make: Callable[[nn.Module], nn.Module]
) -> None:
    (finding,) = found(tmp_path, of_model(make))
    assert "(Adam) has the parameters of another model: its 4 par" in finding.message
    assert "Create the optimizer after the last line that makes" in finding.advice


def test_an_optimizer_of_a_wrapped_model_is_right(tmp_path: Path) -> None:
    assert found(tmp_path, of_model(nn.Sequential)) == []


def clips(optimizer: Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.1)
    optimizer.step()


def clears_late(optimizer: Optimizer, loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def skips_some() -> Descend:
    counted = itertools.count()

    def how(optimizer: Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if next(counted) % 3 == 2:
            optimizer.zero_grad()
        optimizer.step()

    return how


def unscales_by_hand(optimizer: Optimizer, loss: Tensor) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer.zero_grad()
    scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    scaler.unscale_(optimizer)
    optimizer.step()


def perturbs(optimizer: Optimizer, loss: Tensor) -> None:
    """Step along noise between two steps along gradients, as Langevin dynamics do."""
    descend(optimizer, loss)
    for each in optimizer.param_groups[0]["params"]:
        each.grad = torch.randn_like(each)
    optimizer.step()


@pytest.mark.parametrize(
    "train",
    [
        descending(clips),
        descending(clears_late),
        descending(skips_some()),
        descending(unscales_by_hand),
        descending(perturbs),
        scaled(by_scaler=True),
    ],
    ids=["clips", "clears late", "skips", "unscales", "perturbs", "scaler"],
)
def test_gradients_that_are_used_as_they_are_meant(
    tmp_path: Path, train: Train
) -> None:
    assert found(tmp_path, train) == []
