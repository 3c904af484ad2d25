"""Further situations of docs/steps.md: unusual loops, changing parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.capture.recorder import Recorder
from tdbg.pytorch import watch
from tdbg.trial import create_trial
from torch_helpers import Recorded, bits, digits, make_hook, mlp, parts, train

pytestmark = pytest.mark.torch

TRAIN, EVAL = 1, 2
INTERRUPTED = 2


def test_forwards_without_gradients_in_training_are_micro_batches(
    run_dir: Path,
) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        for _ in range(2):
            with torch.no_grad():
                model(next(batches)[0])
            train(model, criterion, optimizer, batches, 1)
    recorded = Recorded(run_dir)
    assert recorded.steps == [(0, TRAIN, 0, 0), (1, TRAIN, 1, 0)]
    assert list(recorded.step_table["micro_batches"]) == [2, 2]


def test_a_module_called_outside_any_root_opens_a_step(run_dir: Path) -> None:
    model, _, optimizer, _ = parts()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_optimizer(optimizer)
        for _ in range(2):
            model.fc1(torch.ones(2, 64)).sum().backward()  # type: ignore[union-attr,operator]
            model.fc2(torch.ones(2, 24)).sum().backward()  # type: ignore[union-attr,operator]
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        model.fc1(torch.ones(2, 64))  # type: ignore[union-attr,operator]
    recorded = Recorded(run_dir)
    assert recorded.steps == [(0, TRAIN, 0, 0), (1, TRAIN, 1, 0), (2, EVAL, 0, 0)]
    for name in ("fc2_output_0", "gradient/fc1.weight"):
        assert sorted(recorded.rows(name)) == [0, 1]
    assert sorted(recorded.rows("fc1_output_0")) == [0, 1, 2]


def test_a_root_within_a_root_is_part_of_it(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_module(model.fc1)  # type: ignore[arg-type]
        train(model, criterion, optimizer, batches, 2)
    recorded = Recorded(run_dir)
    assert recorded.steps == [(0, TRAIN, 0, 0), (1, TRAIN, 1, 0)]
    assert list(recorded.step_table["micro_batches"]) == [1, 1]


def test_an_optimizer_that_raises_ends_its_step_at_the_next_forward(
    run_dir: Path,
) -> None:
    model, criterion, optimizer, batches = parts()
    rate = optimizer.param_groups[0]["lr"]
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        optimizer.param_groups[0]["lr"] = "fast"
        with pytest.raises((TypeError, RuntimeError)):
            train(model, criterion, optimizer, batches, 1)
        optimizer.param_groups[0]["lr"] = rate
        train(model, criterion, optimizer, batches, 1)
    assert Recorded(run_dir).steps == [(0, TRAIN, 0, INTERRUPTED), (1, TRAIN, 1, 0)]


def test_what_is_given_by_hand_belongs_to_the_last_step_though_it_has_ended(
    run_dir: Path,
) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
        hook.save_tensor("given", torch.ones(3))
        hook.record_tensor_value("my_loss", torch.tensor(2.0))
        model.eval()
        model(next(batches)[0])
        hook.save_scalar("accuracy", 0.5)
        model.train()
        hook.save_scalar("rate", 0.25)
    recorded = Recorded(run_dir)
    assert sorted(recorded.rows("given")) == [1]
    assert sorted(recorded.rows("my_loss_output_0")) == [1]
    assert recorded.scalars("scalar/accuracy") == [(2, 0.5)]
    assert recorded.scalars("scalar/rate") == [(1, 0.25)]


@pytest.mark.parametrize("has_optimizer", [False, True])
def test_a_training_that_ends_in_the_middle_of_a_step(
    run_dir: Path, has_optimizer: bool
) -> None:
    model, batches = mlp(), digits(8)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1)] if has_optimizer else []
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        model(next(batches)[0])
    assert len(optimizers) == has_optimizer  # It lived until then.
    flags = INTERRUPTED if has_optimizer else 0
    assert Recorded(run_dir).steps == [(0, TRAIN, 0, flags)]


def test_an_optimizer_that_replaces_another_takes_over(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
        other = torch.optim.Adam(model.parameters())
        train(model, criterion, other, batches, 4)
    micro_batches = list(Recorded(run_dir).step_table["micro_batches"])
    # The first step of a stranger ends none; from the second on it does.
    assert micro_batches == [1, 1, 2, 1, 1]


def test_an_optimizer_that_is_gone_is_replaced_at_once(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
        del optimizer
        train(model, criterion, torch.optim.Adam(model.parameters()), batches, 2)
    assert [step[0] for step in Recorded(run_dir).steps] == [0, 1, 2, 3]


def test_of_a_critic_that_steps_several_times_the_first_step_is_recorded(
    run_dir: Path,
) -> None:
    model, criterion, _, batches = parts()
    critic = torch.optim.SGD(model.fc1.parameters(), lr=0.1)  # type: ignore[union-attr,operator]
    maker = torch.optim.SGD(model.fc2.parameters(), lr=0.1)  # type: ignore[union-attr,operator]
    gradients, updates = [], []
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_optimizer(maker, defines_step=True)
        for _ in range(2):
            for turn in range(3):
                model.zero_grad()
                inputs, labels = next(batches)
                criterion(model(inputs), labels).backward()
                weight = model.fc1.weight  # type: ignore[union-attr]
                before = weight.detach().clone()  # type: ignore[operator,union-attr]
                critic.step()
                if turn == 0:
                    gradients.append(bits(weight.grad))  # type: ignore[arg-type]
                    updates.append(bits(weight.detach() - before))  # type: ignore[operator]
            maker.step()
    recorded = Recorded(run_dir)
    assert [step[0] for step in recorded.steps] == [0, 1]
    for name, expected in (
        ("gradient/fc1.weight", gradients),
        ("update/fc1.weight", updates),
    ):
        values = recorded.values(name)
        assert [values[step].tobytes() for step in (0, 1)] == expected
        assert [len(rows) for rows in recorded.rows(name).values()] == [1, 1]


def test_unfrozen_later_without_an_optimizer(run_dir: Path) -> None:
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    model.fc1.requires_grad_(False)  # type: ignore[union-attr,operator]
    with make_hook(run_dir, include_collections=["gradients"]) as hook:
        hook.register_module(model)
        for step in range(4):
            if step == 2:
                model.fc1.requires_grad_(True)  # type: ignore[union-attr,operator]
            inputs, labels = next(batches)
            criterion(model(inputs), labels).backward()
            model.zero_grad()
    recorded = Recorded(run_dir)
    assert rows_of(recorded, "gradient/fc1.weight") == [[2, 3]]
    assert rows_of(recorded, "gradient/fc2.weight") == [[0, 1, 2, 3]]


# ---- parameters that come and go -----------------------------------------------------


def rows_of(recorded: Recorded, *names: str) -> list[list[int]]:
    return [sorted(recorded.rows(name)) for name in names]


def test_a_parameter_that_is_added_is_followed_from_the_next_step_on(
    run_dir: Path,
) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()
            self.factor: nn.Parameter | None = None

        def forward(self, x: torch.Tensor) -> Any:
            y = self.inner(x)
            return y if self.factor is None else y * self.factor

    model = Scaled()
    optimizer = torch.optim.Adam(model.parameters())
    criterion, batches = nn.CrossEntropyLoss(), digits(16)
    requested = ["weights", "gradients", "updates", "optimizer_variables"]
    with make_hook(
        run_dir, include_collections=[*requested, "unclipped_gradients"]
    ) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
        model.factor = nn.Parameter(torch.ones(10))
        optimizer.add_param_group({"params": [model.factor]})
        train(model, criterion, optimizer, batches, 2)
    names = ("factor", "gradient/factor", "gradient_unclipped/factor")
    more = ("update/factor", "optimizer/exp_avg/factor")
    recorded = Recorded(run_dir)
    assert rows_of(recorded, *names, *more) == [[2, 3]] * 5
    assert rows_of(recorded, "inner.fc1.weight") == [[0, 1, 2, 3]]


def test_a_module_that_is_replaced_gives_way_to_the_new_one(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    old = model.fc2
    requested = ["weights", "gradients", "updates"]
    with make_hook(run_dir, include_collections=requested) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
        model.fc2 = nn.Sequential(nn.Linear(24, 10))
        optimizer.add_param_group({"params": model.fc2.parameters()})
        train(model, criterion, optimizer, batches, 2)
    recorded = Recorded(run_dir)
    for prefix in ("", "gradient/", "update/"):
        names = (f"{prefix}fc2.weight", f"{prefix}fc2.0.weight")
        assert rows_of(recorded, *names) == [[0, 1], [2, 3]]
    assert old is not model.fc2  # It lived all the while.


def test_a_parameter_in_the_place_of_another_has_its_name(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir, include_collections=["weights", "updates"]) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 1)
        model.fc2.weight = nn.Parameter(torch.zeros(10, 24))  # type: ignore[union-attr]
        optimizer.add_param_group({"params": [model.fc2.weight]})  # type: ignore[union-attr]
        train(model, criterion, optimizer, batches, 1)
    recorded = Recorded(run_dir)
    assert not recorded.values("fc2.weight")[1].any()
    assert rows_of(recorded, "update/fc2.weight") == [[0, 1]]


def test_a_module_that_is_removed_is_gone(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    model.extra = nn.Linear(3, 3)
    with make_hook(run_dir, include_collections=["weights"]) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 1)
        del model.extra
        train(model, criterion, optimizer, batches, 1)
    assert rows_of(Recorded(run_dir), "extra.weight", "fc1.weight") == [[0], [0, 1]]


def test_other_models_of_the_process_are_looked_at_no_longer_after_close(
    run_dir: Path,
) -> None:
    from torch.nn.modules import module as torch_module

    hooks = torch_module._global_parameter_registration_hooks
    modules = torch_module._global_module_registration_hooks
    before = len(hooks), len(modules)
    model, *_ = parts()
    hook = make_hook(run_dir)
    hook.register_module(model)
    assert (len(hooks), len(modules)) == (before[0] + 1, before[1] + 1)
    hook.close()
    assert (len(hooks), len(modules)) == before


# ---- gradients that are left from before ---------------------------------------------


@pytest.mark.parametrize("core_takes", [True, False])
def test_a_gradient_kept_from_before_it_was_frozen_is_none_of_the_step(
    run_dir: Path, core_takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base is trained, then frozen, and a head trained on it by an own optimizer."""
    if not core_takes:
        monkeypatch.setattr(Recorder, "parameters", lambda *_: None)
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    base, head = model.fc1, model.fc2
    assert isinstance(base, nn.Linear)
    assert isinstance(head, nn.Linear)
    with make_hook(
        run_dir, include_collections=["gradients", "unclipped_gradients"]
    ) as hook:
        hook.register_module(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            if step == 2:
                base.requires_grad_(False)
                optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
            if step == 4:
                base.requires_grad_(True)
                optimizer.add_param_group({"params": list(base.parameters())})
            inputs, labels = next(batches)
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            assert base.weight.grad is not None  # At every step: that is the point.
            optimizer.step()
    recorded = Recorded(run_dir)
    assert rows_of(recorded, "gradient/fc1.weight", "gradient/fc1.bias") == [
        [0, 1, 4, 5],
        [0, 1, 4, 5],
    ]
    assert rows_of(recorded, "gradient_unclipped/fc1.weight") == [[0, 1, 4, 5]]
    assert sorted(recorded.values("gradient/fc1.weight")) == [0, 1, 4, 5]
    assert rows_of(recorded, "gradient/fc2.weight") == [[0, 1, 2, 3, 4, 5]]


def test_what_an_optimizer_will_use_is_a_gradient_of_the_step_whoever_made_it(
    run_dir: Path,
) -> None:
    """An evolution strategy needs no backward; what is frozen late still moves."""
    model = nn.Linear(4, 2).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_hook(run_dir, include_collections=["gradients", "updates"]) as hook:
        hook.register_module(model)
        for step in range(3):
            model(torch.ones(3, 4))
            model.weight.grad = torch.full((2, 4), float(step + 1))
            optimizer.step()
    recorded = Recorded(run_dir)
    for name in ("gradient/weight", "update/weight"):
        assert rows_of(recorded, name) == [[0, 1, 2]]
    assert not recorded.rows("gradient/bias")


def test_what_an_update_made_stands_for_a_parameter_without_a_warning(
    run_dir: Path,
) -> None:
    """As in meta-learning: it has no gradient, and to ask it for one warns."""
    model, rate = nn.Linear(64, 10), torch.ones((), requires_grad=True)
    outer = torch.optim.SGD([rate], lr=0.1)
    weight = model.weight.detach()
    batches = digits(8)
    with watch(model, out=run_dir) as hook:
        for _ in range(20):
            model._parameters["weight"] = weight * rate  # type: ignore[assignment]
            inputs, labels = next(batches)
            loss: torch.Tensor = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            outer.step()
            outer.zero_grad()
        assert hook.counters()["internal_errors"] == 0
    trial = create_trial(run_dir)
    assert "gradient/bias" in trial.tensor_names()
    assert "gradient/weight" not in trial.tensor_names()
