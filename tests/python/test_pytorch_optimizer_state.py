"""The state of optimizers, and the numbers of their parameter groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.pytorch import SaveConfig
from torch_helpers import Recorded, bits, custom, digits, make_hook, mlp, parts, train

pytestmark = pytest.mark.torch

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
