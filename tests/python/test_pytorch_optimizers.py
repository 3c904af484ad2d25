"""Rows of docs/steps.md about optimizers: scalers, closures, several of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from torch_helpers import Recorded, bits, digits, make_hook, mlp, parts, train

pytestmark = pytest.mark.torch

TRAIN = 1
SKIPPED, INTERRUPTED = 1, 2


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_skips_is_recorded_with_its_gradients(
    run_dir: Path, fused: bool
) -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    batches = digits(16)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    gradients = []
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        for number in range(4):
            optimizer.zero_grad()
            inputs, labels = next(batches)
            loss = criterion(model(inputs), labels)
            if number in (0, 2):
                loss = loss * float("inf")
            scale = scaler.get_scale()
            scaler.scale(loss).backward()
            gradients.append(model.fc2.weight.grad.double().norm() / scale)  # type: ignore[operator,union-attr]
            scaler.step(optimizer)
            scaler.update()
    recorded = Recorded(run_dir)
    assert recorded.steps == [
        (0, TRAIN, 0, SKIPPED),
        (1, TRAIN, 1, 0),
        (2, TRAIN, 2, SKIPPED),
        (3, TRAIN, 3, 0),
    ]
    rows = recorded.rows("gradient/fc2.weight")
    assert all(rows[step][0]["nan"] > 0 for step in (0, 2))
    for step in (1, 3):
        assert rows[step][0]["l2"] == pytest.approx(float(gradients[step]), rel=1e-6)
        assert rows[step][0]["flags"] == int(fused)
    assert hook.counters()["internal_errors"] == 0


def test_a_closure_is_one_step_and_its_first_evaluation_is_recorded(
    run_dir: Path,
) -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    inputs, labels = next(digits(64))
    evaluations: list[tuple[bytes, bytes, float]] = []
    per_step = []
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            weight = bits(model.fc1.weight)  # type: ignore[arg-type,union-attr]
            loss: torch.Tensor = criterion(model(inputs), labels)
            loss.backward()
            gradient = bits(model.fc1.weight.grad)  # type: ignore[arg-type,union-attr]
            evaluations.append((weight, gradient, float(loss.detach())))
            return loss

        for _ in range(2):
            evaluations.clear()
            optimizer.step(closure)
            assert len(evaluations) > 1
            per_step.append(evaluations[0])
    recorded = Recorded(run_dir)
    assert recorded.steps == [(0, TRAIN, 0, 0), (1, TRAIN, 1, 0)]
    for step, (weight, gradient, loss) in enumerate(per_step):
        assert recorded.values("fc1.weight")[step].tobytes() == weight
        assert recorded.values("gradient/fc1.weight")[step].tobytes() == gradient
        assert float(recorded.values("CrossEntropyLoss_output_0")[step]) == loss
        assert len(recorded.rows("CrossEntropyLoss_output_0")[step]) == 1
        assert len(recorded.rows("Net_output_0")[step]) == 1


def test_a_closure_that_raises_gives_its_error_to_the_training(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir) as hook:
        hook.register_module(model)

        def closure() -> float:
            raise LookupError

        with pytest.raises(LookupError):
            optimizer.step(closure)
        train(model, criterion, optimizer, batches, 1)
    assert Recorded(run_dir).steps == [(0, TRAIN, 0, INTERRUPTED), (1, TRAIN, 1, 0)]


def test_of_two_optimizers_in_turn_the_first_ends_the_step(run_dir: Path) -> None:
    model, criterion, _, batches = parts()
    first = torch.optim.SGD(model.fc1.parameters(), lr=0.1)  # type: ignore[union-attr,operator]
    second = torch.optim.SGD(model.fc2.parameters(), lr=0.1)  # type: ignore[union-attr,operator]
    gradients = []
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        for _ in range(3):
            model.zero_grad()
            inputs, labels = next(batches)
            criterion(model(inputs), labels).backward()
            gradients.append(bits(model.fc2.weight.grad))  # type: ignore[arg-type,union-attr]
            first.step()
            second.step()
    recorded = Recorded(run_dir)
    assert recorded.steps == [(n, TRAIN, n, 0) for n in range(3)]
    values = recorded.values("gradient/fc2.weight")
    assert [values[step].tobytes() for step in range(3)] == gradients


class Gan(nn.Module):
    """Two parts that are called by themselves, never through the root."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.generator = nn.Sequential(nn.Linear(4, 64), nn.Sigmoid())
        self.discriminator = nn.Linear(64, 1)


def test_two_optimizers_of_a_gan_that_is_never_called_as_a_whole(run_dir: Path) -> None:
    gan, criterion, batches = Gan(), nn.BCEWithLogitsLoss(), digits(8)
    judge = torch.optim.SGD(gan.discriminator.parameters(), lr=0.1)
    maker = torch.optim.SGD(gan.generator.parameters(), lr=0.1)
    real, fake = torch.ones(8, 1), torch.zeros(8, 1)
    wanted = []
    with make_hook(run_dir) as hook:
        hook.register_module(gan)
        hook.register_loss(criterion)
        hook.register_optimizer(maker, defines_step=True)
        for _ in range(3):
            judge.zero_grad()
            images = gan.generator(torch.randn(8, 4))
            loss = criterion(gan.discriminator(next(batches)[0]), real)
            loss = loss + criterion(gan.discriminator(images.detach()), fake)
            loss.backward()
            wanted.append(bits(gan.discriminator.weight.grad))  # type: ignore[arg-type]
            judge.step()
            maker.zero_grad()
            criterion(gan.discriminator(images), real).backward()
            maker.step()
    recorded = Recorded(run_dir)
    assert recorded.steps == [(n, TRAIN, n, 0) for n in range(3)]
    values = recorded.values("gradient/discriminator.weight")
    assert [values[step].tobytes() for step in range(3)] == wanted
    assert sorted(recorded.values("gradient/generator.0.weight")) == [0, 1, 2]
    assert {
        "BCEWithLogitsLoss_output_0",
        "BCEWithLogitsLoss_output_0@2",
        "BCEWithLogitsLoss_output_0@3",
        "discriminator_output_0@3",
    } <= recorded.names


def test_two_models_with_a_hook_each(run_dir: Path, tmp_path: Path) -> None:
    gan, criterion = Gan(), nn.BCEWithLogitsLoss()
    judge = torch.optim.SGD(gan.discriminator.parameters(), lr=0.1)
    maker = torch.optim.SGD(gan.generator.parameters(), lr=0.1)
    with make_hook(run_dir) as first, make_hook(tmp_path / "other") as second:
        first.register_module(gan.generator)
        second.register_module(gan.discriminator)
        for _ in range(3):
            for optimizer, target in ((judge, 0.0), (maker, 1.0)):
                gan.zero_grad()
                answer = gan.discriminator(gan.generator(torch.randn(8, 4)))
                criterion(answer, torch.full((8, 1), target)).backward()
                optimizer.step()
    for directory in (run_dir, tmp_path / "other"):
        recorded = Recorded(directory)
        assert [step[:3] for step in recorded.steps][:3] == [
            (n, TRAIN, n) for n in range(3)
        ]
