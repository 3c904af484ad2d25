"""Situations of docs/steps.md about optimizers: scalers, closures, several of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.pytorch import SaveConfig
from torch_helpers import Recorded, bits, custom, digits, make_hook, mlp, parts, train

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
    requested = []
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
            requested.append(bits(gan.discriminator.weight.grad))  # type: ignore[arg-type]
            judge.step()
            maker.zero_grad()
            criterion(gan.discriminator(images), real).backward()
            maker.step()
    recorded = Recorded(run_dir)
    assert recorded.steps == [(n, TRAIN, n, 0) for n in range(3)]
    values = recorded.values("gradient/discriminator.weight")
    assert [values[step].tobytes() for step in range(3)] == requested
    assert sorted(recorded.values("gradient/generator.0.weight")) == [0, 1, 2]
    assert {
        "BCEWithLogitsLoss_output_0",
        "BCEWithLogitsLoss_2_output_0",
        "BCEWithLogitsLoss_3_output_0",
        "discriminator_output_0@3",
    } <= recorded.names


def test_a_step_of_a_gan_is_an_iteration_of_its_loop(run_dir: Path) -> None:
    gan, criterion = Gan(), nn.BCEWithLogitsLoss()
    judge = torch.optim.SGD(gan.discriminator.parameters(), lr=0.1)
    maker = torch.optim.SGD(gan.generator.parameters(), lr=0.1)
    gradients: list[tuple[Any, Any]] = []
    with make_hook(run_dir) as hook:
        hook.register_module(gan.generator)
        hook.register_module(gan.discriminator)
        for _ in range(5):
            images = gan.generator(torch.randn(8, 4))
            for optimizer, given, target in (
                (judge, images.detach(), 0.0),
                (maker, images, 1.0),
            ):
                optimizer.zero_grad()
                answer = gan.discriminator(given)
                criterion(answer, torch.full((8, 1), target)).backward()
                optimizer.step()
                if optimizer is judge:
                    of_judge = bits(gan.discriminator.weight.grad)  # type: ignore[arg-type]
            of_maker = bits(gan.generator[0].weight.grad)
            gradients.append((of_judge, of_maker))
    recorded = Recorded(run_dir)
    assert recorded.steps == [(n, TRAIN, n, 0) for n in range(5)]
    for i, name in enumerate(("Linear.weight", "0.weight")):
        values = recorded.values(f"gradient/{name}")
        # Which optimizer comes last is known from the second iteration on.
        for step in range(2, 5):
            assert values[step].tobytes() == gradients[step][i], (name, step)


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


# ---- states and the numbers of parameter groups ----------------------------------


STATES: dict[str, tuple[Any, set[str]]] = {
    "sgd": (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), {"momentum_buffer"}),
    "adam": (lambda p: torch.optim.Adam(p, 0.01), {"exp_avg", "exp_avg_sq"}),
    "fused": (
        lambda p: torch.optim.AdamW(p, 0.01, fused=True),
        {"exp_avg", "exp_avg_sq"},
    ),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, 0.01), {"square_avg"}),
    # Of the shapes of rows and columns, not of the parameter's.
    "adafactor": (
        lambda p: torch.optim.Adafactor(p, 0.01),
        {"row_var", "col_var", "variance"},
    ),
}


@pytest.mark.parametrize("kind", STATES)
def test_the_state_of_a_step_is_that_after_it(run_dir: Path, kind: str) -> None:
    make, kinds = STATES[kind]
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    optimizer = make(model.parameters())
    expected: list[dict[str, bytes]] = []
    with make_hook(run_dir, include_collections=["optimizer_variables"]) as hook:
        hook.register_module(model)
        for _ in range(2):
            train(model, criterion, optimizer, batches, 1)
            expected.append(
                {
                    f"optimizer/{key}/{name}": bits(value)
                    for name, parameter in model.named_parameters()
                    for key, value in optimizer.state[parameter].items()
                    if isinstance(value, torch.Tensor) and value.dim()
                }
            )
    recorded = Recorded(run_dir)
    names = {name for name in recorded.names if name.startswith("optimizer/")}
    assert names == set(expected[0])
    assert {name.split("/")[1] for name in names} == kinds
    for name in names:
        values = recorded.values(name)
        assert {step: each.tobytes() for step, each in values.items()} == {
            step: each[name] for step, each in enumerate(expected)
        }
        assert sorted(recorded.rows(name)) == [0, 1]
    assert recorded.collections["optimizer_variables"]["tensor_names"] == sorted(names)
    assert hook.counters()["internal_errors"] == 0
    assert hook.counters()["refused_tensors"] == 0


def test_a_custom_collection_finds_one_kind_of_state(run_dir: Path) -> None:
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    optimizer = torch.optim.Adam(model.parameters())
    with make_hook(run_dir, collections=custom("exp_avg_sq/fc1")) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
    names = Recorded(run_dir).names
    assert names == {
        "optimizer/exp_avg_sq/fc1.weight",
        "optimizer/exp_avg_sq/fc1.bias",
    }


def test_state_that_comes_later_is_recorded_from_then_on(run_dir: Path) -> None:
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    optimizer = torch.optim.Adam(model.parameters())
    model.fc1.requires_grad_(False)  # type: ignore[union-attr,operator]
    with make_hook(run_dir, collections=custom("exp_avg/fc1")) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
        model.fc1.requires_grad_(True)  # type: ignore[union-attr,operator]
        train(model, criterion, optimizer, batches, 2)
    assert sorted(Recorded(run_dir).rows("optimizer/exp_avg/fc1.weight")) == [2, 3]


def test_evaluation_has_no_state(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts(momentum=0.9)
    with make_hook(run_dir, include_collections=["optimizer_variables"]) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 1)
        model.eval()
        model(next(batches)[0])
        model.train()
        train(model, criterion, optimizer, batches, 1)
    assert sorted(Recorded(run_dir).rows("optimizer/momentum_buffer/fc1.weight")) == [
        0,
        2,
    ]


# ---- parameter groups ----------------------------------------------------------------


def lr_of(recorded: Recorded) -> list[tuple[int, float]]:
    return recorded.scalars("scalar/optimizer/group_0/lr")


def test_numbers_of_groups_are_recorded_when_they_change_and_where_statistics_are_due(
    run_dir: Path,
) -> None:
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    schedule = SaveConfig(statistics_interval=5)
    with make_hook(
        run_dir, include_collections=["scalars"], save_config=schedule
    ) as hook:
        hook.register_module(model)
        for step in range(12):
            if step == 3:
                optimizer.param_groups[0]["lr"] = 0.25
            if step == 8:
                optimizer.param_groups[0]["betas"] = (0.9, 0.75)
            train(model, criterion, optimizer, batches, 1)
    recorded = Recorded(run_dir)
    assert lr_of(recorded) == [(0, 0.5), (3, 0.25), (5, 0.25), (10, 0.25)]
    assert recorded.scalars("scalar/optimizer/group_0/betas_1") == [
        (0, 0.999),
        (5, 0.999),
        (8, 0.75),
        (10, 0.75),
    ]
    assert {name for name in recorded.names if name.startswith("scalar/")} == {
        f"scalar/optimizer/group_0/{key}"
        for key in ("lr", "betas_0", "betas_1", "eps", "weight_decay")
    }


def test_a_scheduler_is_followed_step_by_step(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    rates = []
    with make_hook(
        run_dir, include_collections=["scalars"], save_config=SaveConfig()
    ) as hook:
        hook.register_module(model)
        for _ in range(4):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            train(model, criterion, optimizer, batches, 1)
            scheduler.step()
    assert lr_of(Recorded(run_dir)) == list(enumerate(rates))


def test_a_learning_rate_that_is_a_tensor_is_followed(run_dir: Path) -> None:
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    rate = torch.tensor(0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    with make_hook(
        run_dir, include_collections=["scalars"], save_config=SaveConfig()
    ) as hook:
        hook.register_module(model)
        for step in range(5):
            if step == 2:
                rate.fill_(0.25)
            if step == 4:
                optimizer.param_groups[0]["lr"] = torch.tensor(0.125)
            train(model, criterion, optimizer, batches, 1)
    assert lr_of(Recorded(run_dir)) == [(0, 0.5), (2, 0.25), (4, 0.125)]


def test_groups_go_by_their_own_names_and_optimizers_by_their_order(
    run_dir: Path,
) -> None:
    model, criterion, _, batches = parts()
    first = torch.optim.SGD(
        [
            {"params": model.fc1.parameters(), "name": "body", "lr": 0.1},  # type: ignore[union-attr,operator]
            {"params": model.fc2.weight, "lr": 0.2},  # type: ignore[union-attr]
        ]
    )
    second = torch.optim.SGD([model.fc2.bias], lr=0.3)  # type: ignore[union-attr,list-item]
    with make_hook(
        run_dir, include_collections=["scalars"], save_config=SaveConfig()
    ) as hook:
        hook.register_module(model)
        hook.register_optimizer(first)
        hook.register_optimizer(second, defines_step=True)
        for _ in range(2):
            model.zero_grad()
            inputs, labels = next(batches)
            criterion(model(inputs), labels).backward()
            first.step()
            second.step()
    recorded = Recorded(run_dir)
    for name, rate in (
        ("optimizer/body", 0.1),
        ("optimizer/group_1", 0.2),
        ("optimizer_2/group_0", 0.3),
    ):
        assert recorded.scalars(f"scalar/{name}/lr") == [(0, rate)]


def test_a_group_that_is_added_later_is_followed(run_dir: Path) -> None:
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    optimizer = torch.optim.SGD(model.fc1.parameters(), lr=0.1)  # type: ignore[union-attr,operator]
    with make_hook(
        run_dir, include_collections=["scalars"], save_config=SaveConfig()
    ) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
        optimizer.add_param_group({"params": model.fc2.parameters(), "lr": 0.2})  # type: ignore[union-attr,operator]
        train(model, criterion, optimizer, batches, 2)
    recorded = Recorded(run_dir)
    assert lr_of(recorded) == [(0, 0.1)]
    assert recorded.scalars("scalar/optimizer/group_1/lr") == [(2, 0.2)]


def test_a_hook_that_is_not_asked_records_no_numbers_of_groups(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir, include_collections=["weights"]) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
        hook.save_scalar("mine", 1.0)
    names = Recorded(run_dir).names
    assert {name for name in names if name.startswith("scalar/")} == {"scalar/mine"}


def test_one_number_is_recorded_by_an_expression(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir, collections=custom("optimizer.*/lr$")) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 1)
    assert Recorded(run_dir).names == {"scalar/optimizer/group_0/lr"}


class Foreign:
    """An optimizer that is none of PyTorch's, with groups as fastai's has them."""

    def __init__(self, parameters: Any, **numbers: float) -> None:
        self.parameters, self.numbers = list(parameters), numbers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [{"params": self.parameters, **self.numbers}]

    def zero_grad(self) -> None:
        for each in self.parameters:
            each.grad = None

    def step(self) -> None:
        with torch.no_grad():
            for each in self.parameters:
                each.add_(each.grad, alpha=-self.numbers["lr"])


class Unrelated:
    """Something else with a step, which nobody may ask for anything."""

    def step(self) -> None:
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def test_numbers_of_an_optimizer_that_is_not_pytorchs_are_followed(
    run_dir: Path,
) -> None:
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    optimizer = Foreign(model.parameters(), lr=0.5, mom=0.9)
    others = [Unrelated(), Foreign(mlp().parameters(), lr=3.0)]
    with make_hook(
        run_dir, include_collections=["scalars"], save_config=SaveConfig()
    ) as hook:
        hook.register_module(model)
        for number in range(4):
            optimizer.numbers["lr"] = 0.5 if number < 2 else 0.25
            inputs, labels = next(batches)
            criterion(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert others
    recorded = Recorded(run_dir)
    assert lr_of(recorded) == [(0, 0.5), (2, 0.25)]
    assert recorded.scalars("scalar/optimizer/group_0/mom") == [(0, 0.9)]
    assert {name for name in recorded.names if name.startswith("scalar/")} == {
        f"scalar/optimizer/group_0/{key}" for key in ("lr", "mom")
    }
    assert hook.counters()["internal_errors"] == 0


def test_where_pytorchs_optimizer_trains_what_wraps_it_is_not_read(
    run_dir: Path,
) -> None:
    model, criterion, optimizer, batches = parts()
    wrapper = Foreign(model.parameters(), lr=7.0)
    with make_hook(
        run_dir, include_collections=["scalars"], save_config=SaveConfig()
    ) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 3)
    assert wrapper.numbers == {"lr": 7.0}
    assert lr_of(Recorded(run_dir)) == [(0, optimizer.param_groups[0]["lr"])]
