"""Gradients before they are clipped, beside those that the optimizer uses."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tdbg.pytorch import SaveConfig
from torch_helpers import Recorded, bits, digits, make_hook, mlp, parts, train

pytestmark = pytest.mark.torch

WANTED = ["gradients", "unclipped_gradients"]
SKIPPED = 1


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def gradients_of(model: nn.Module) -> dict[str, bytes]:
    return {
        name: bits(each.grad)
        for name, each in model.named_parameters()
        if each.grad is not None
    }


def hooked(model: nn.Module) -> int:
    """How many parameters have a hook on their accumulation."""
    return sum(bool(each._post_accumulate_grad_hooks) for each in model.parameters())


def test_gradients_before_and_after_clipping_are_both_recorded(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    before, after = [], []
    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        for _ in range(3):
            optimizer.zero_grad()
            inputs, labels = next(batches)
            criterion(model(inputs), labels).backward()
            before.append(gradients_of(model))
            clip(model)
            after.append(gradients_of(model))
            optimizer.step()
    recorded = Recorded(run_dir)
    for name in before[0]:
        unclipped = recorded.values(f"gradient_unclipped/{name}")
        clipped = recorded.values(f"gradient/{name}")
        for step in range(3):
            assert unclipped[step].tobytes() == before[step][name]
            assert clipped[step].tobytes() == after[step][name]
        assert len(recorded.rows(f"gradient_unclipped/{name}")[1]) == 1
    assert recorded.collections["unclipped_gradients"]["tensor_names"] == sorted(
        f"gradient_unclipped/{name}" for name in before[0]
    )
    assert hook.counters()["internal_errors"] == 0


def test_the_last_accumulation_of_a_step_counts(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    before = []
    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(3):
                inputs, labels = next(batches)
                criterion(model(inputs), labels).backward()
                hook.flush()
            before.append(gradients_of(model))
            clip(model)
            optimizer.step()
    recorded = Recorded(run_dir)
    for name in before[0]:
        values = recorded.values(f"gradient_unclipped/{name}")
        assert [values[step].tobytes() for step in (0, 1)] == [b[name] for b in before]
        assert len(recorded.rows(f"gradient_unclipped/{name}")[0]) == 1


@pytest.mark.parametrize("by_user", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_under_a_scaler_their_rows_are_unscaled(
    run_dir: Path, fused: bool, by_user: bool
) -> None:
    """Whoever unscales: rows as they would be without; a skipped step has them."""
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    norms, raw = [], []
    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        for number in range(3):
            optimizer.zero_grad()
            inputs, labels = next(batches)
            loss = criterion(model(inputs), labels)
            if number == 1:
                loss = loss * float("inf")
            scale = scaler.get_scale()
            scaler.scale(loss).backward()
            gradient = model.fc2.weight.grad  # type: ignore[union-attr]
            norms.append(float(gradient.double().norm()) / scale)  # type: ignore[operator,union-attr]
            raw.append(bits(gradient))  # type: ignore[arg-type]
            if by_user:
                scaler.unscale_(optimizer)
                clip(model)
            scaler.step(optimizer)
            scaler.update()
    recorded = Recorded(run_dir)
    assert [step[3] for step in recorded.steps] == [0, SKIPPED, 0]
    rows = recorded.rows("gradient_unclipped/fc2.weight")
    for step in (0, 2):
        assert rows[step][0]["l2"] == pytest.approx(norms[step], rel=1e-6)
        assert rows[step][0]["flags"] == 1  # Rescaled.
    assert rows[1][0]["nan"] > 0
    values = recorded.values("gradient_unclipped/fc2.weight")
    assert [values[step].tobytes() for step in range(3)] == raw
    if by_user:
        clipped = recorded.rows("gradient/fc2.weight")[0][0]["l2"]
        assert clipped < 1e-3 < norms[0]
    assert hook.counters()["internal_errors"] == 0


def test_nothing_is_hooked_on_parameters_unless_asked_for(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir) as hook:  # Everything, but this only by name.
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 12)  # Behind the first checks.
        assert hooked(model) == 0
    names = Recorded(run_dir).names
    assert not any(name.startswith("gradient_unclipped/") for name in names)


def test_closing_takes_the_hooks_off(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        assert hooked(model) == 4
        train(model, criterion, optimizer, batches, 1)
    assert hooked(model) == 0
    train(model, criterion, optimizer, batches, 1)


def test_asked_for_and_given_up_while_the_training_runs(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    from tdbg.pytorch import Collection

    with make_hook(run_dir, include_collections=["gradients"]) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 1)
        hook.add_collection(Collection("unclipped_gradients"))
        train(model, criterion, optimizer, batches, 2)
    recorded = Recorded(run_dir)
    assert sorted(recorded.rows("gradient_unclipped/fc1.weight")) == [1, 2]


def test_steps_between_pay_for_no_copy(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    schedule = SaveConfig(statistics_interval=2, save_interval=2)
    held = []
    with make_hook(run_dir, include_collections=WANTED, save_config=schedule) as hook:
        hook.register_module(model)
        for _ in range(4):
            optimizer.zero_grad()
            inputs, labels = next(batches)
            criterion(model(inputs), labels).backward()
            assert hook._watch is not None
            held.append(hook._watch.around._unclipped.has_copies)
            optimizer.step()
            assert not hook._watch.around._unclipped.has_copies
    assert held == [True, False, True, False]
    assert sorted(Recorded(run_dir).rows("gradient_unclipped/fc1.weight")) == [0, 2]


def test_a_parameter_that_is_unfrozen_later_is_followed_at_once(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    model.fc1.requires_grad_(False)  # type: ignore[union-attr,operator]
    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
        model.fc1.requires_grad_(True)  # type: ignore[union-attr,operator]
        # So that no other parameter tells of the backward.
        model.fc2.requires_grad_(False)  # type: ignore[union-attr,operator]
        train(model, criterion, optimizer, batches, 2)
    recorded = Recorded(run_dir)
    assert sorted(recorded.rows("gradient_unclipped/fc1.weight")) == [2, 3]
    assert sorted(recorded.rows("gradient_unclipped/fc2.weight")) == [0, 1]


def test_a_closure_that_clips(run_dir: Path) -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    inputs, labels = next(digits(64))
    evaluations: list[dict[str, bytes]] = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        evaluations.append(gradients_of(model))
        clip(model)
        return loss

    first = []
    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        for _ in range(2):
            evaluations.clear()
            optimizer.step(closure)
            first.append(evaluations[0])
    recorded = Recorded(run_dir)
    for name in first[0]:
        values = recorded.values(f"gradient_unclipped/{name}")
        assert [values[step].tobytes() for step in (0, 1)] == [f[name] for f in first]
    assert recorded.rows("gradient/fc1.weight")[0][0]["l2"] <= 1e-3


def test_gradients_are_reduced_over_ranks_before_they_are_copied(
    run_dir: Path,
) -> None:
    """One rank, whose reduction doubles: what it has made must be seen."""

    def doubled(buffer: torch.Tensor) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(buffer * 2)
        return future

    # DDP looks at annotations: a lambda has none.
    double: Any = lambda _, bucket: doubled(bucket.buffer())  # noqa: E731
    model, criterion, optimizer, batches = parts()
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(model)
        parallel.register_comm_hook(None, double)
        with make_hook(run_dir, include_collections=WANTED) as hook:
            hook.register_module(parallel)
            inputs, labels = next(batches)
            criterion(parallel(inputs), labels).backward()
            reduced = gradients_of(model)
            clip(model)
            optimizer.step()
    finally:
        torch.distributed.destroy_process_group()
    recorded = Recorded(run_dir)
    assert {
        name: recorded.values(f"gradient_unclipped/{name}")[0].tobytes()
        for name in reduced
    } == reduced


def test_without_an_optimizer_the_first_backward_counts(run_dir: Path) -> None:
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    before = []
    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        for _ in range(3):
            inputs, labels = next(batches)
            criterion(model(inputs), labels).backward()
            before.append(gradients_of(model))
            clip(model)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad)  # type: ignore[arg-type]
                    parameter.grad = None
    values = Recorded(run_dir).values("gradient_unclipped/fc1.weight")
    assert [values[step].tobytes() for step in range(3)] == [
        b["fc1.weight"] for b in before
    ]


def test_a_copy_of_a_model_that_is_watched_has_no_hooks(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 1)
        twin = copy.deepcopy(model)
        assert hooked(twin) == 0
        torch.save(model.state_dict(), io.BytesIO())
    assert np.array_equal(
        twin.fc1.weight.detach().numpy(),  # type: ignore[union-attr,operator]
        model.fc1.weight.detach().numpy(),  # type: ignore[union-attr,operator]
    )
