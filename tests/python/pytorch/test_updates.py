"""Weight updates: what an optimizer's step did to each parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from tdbg import _core
from tdbg.pytorch import ReductionConfig, SaveConfig
from torch_helpers import Recorded, bits, digits, make_hook, mlp, parts, train

pytestmark = pytest.mark.torch

TRAIN, SKIPPED = 1, 1
WANTED = ["weights", "biases", "updates"]


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def assert_updates(
    recorded: Recorded,
    steps: dict[int, tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]],
) -> None:
    """Of each step, before and after: the values are the differences, bit by bit."""
    for name in next(iter(steps.values()))[0]:
        values = recorded.values(f"update/{name}")
        rows = recorded.rows(f"update/{name}")
        assert sorted(values) == sorted(rows) == sorted(steps)
        for step, (before, after) in steps.items():
            difference = after[name] - before[name]
            assert values[step].tobytes() == bits(difference), (name, step)
            (row,) = rows[step]
            norm = float(difference.double().norm())
            assert row["l2"] == pytest.approx(norm, rel=1e-6)
            assert row["count"] == difference.numel()


@pytest.mark.parametrize("kind", ["sgd", "adamw", "fused", "foreach"])
def test_an_update_is_the_difference_that_the_step_made(
    run_dir: Path, kind: str
) -> None:
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(
        model.parameters(), fused=kind == "fused", foreach=kind == "foreach"
    )
    if kind == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps = {}
    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        for step in range(3):
            before = weights_of(model)
            train(model, criterion, optimizer, batches, 1)
            steps[step] = before, weights_of(model)
    recorded = Recorded(run_dir)
    assert_updates(recorded, steps)
    assert recorded.collections["updates"]["tensor_names"] == sorted(
        f"update/{name}" for name in steps[0][0]
    )
    assert hook.counters()["internal_errors"] == 0


def test_updates_are_taken_only_where_they_are_asked_for(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir, include_collections=["weights", "gradients"]) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
    assert not any(name.startswith("update/") for name in Recorded(run_dir).names)


@pytest.mark.parametrize("interval", [1, 2])
def test_a_copy_exists_only_where_a_step_wants_updates(
    run_dir: Path, interval: int
) -> None:
    """Memory, unless it is little, is kept from step to step only where both want it.

    Sabotaged: copies taken at every step; memory kept until the next one, or given
    back before it.
    """
    model, criterion, _, batches = parts()
    model.fc1 = nn.Sequential(nn.Linear(64, 6000), nn.Linear(6000, 24))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    within: list[bool] = []
    outside: list[bool] = []
    cores = set()
    with make_hook(
        run_dir,
        include_collections=WANTED,
        save_config=SaveConfig(statistics_interval=interval, save_interval=4),
    ) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 1)
        assert hook._watch is not None
        updates = hook._watch.around._updates
        # Behind the hook's own, which are set by now.
        optimizer.register_step_pre_hook(lambda *_: within.append(updates.n_bytes > 0))
        for _ in range(4):
            train(model, criterion, optimizer, batches, 1)
            outside.append(updates.n_bytes > 0)
            cores.update(updates._core.values())
    assert len(cores) == 1
    steps = range(1, 5)
    assert within == [step % interval == 0 for step in steps]
    assert outside == [interval == 1 for _ in steps]
    expected = list(range(0, 5, interval))
    assert sorted(Recorded(run_dir).rows("update/fc1.0.weight")) == expected


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """The tensor as it lies."""
    if tensor.dtype is not torch.bfloat16:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


class Odd(nn.Module):
    """A parameter that is not dense, one that is transposed, and one large one."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.sparse = nn.Parameter(torch.randn(6, 8, generator=generator)[:, ::2])
        self.turned = nn.Parameter(torch.randn(5, 7, generator=generator).T)
        self.large = nn.Parameter(torch.randn(300, 301, generator=generator))

    def forward(self) -> torch.Tensor:
        return sum((each.float() ** 4).sum() for each in self.parameters())  # type: ignore[return-value]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16]
)
@pytest.mark.parametrize("alone", [False, True])
def test_rows_are_those_of_the_difference_that_pytorch_takes(
    run_dir: Path, dtype: torch.dtype, alone: bool
) -> None:
    """Whether or not the weights are read in the same step, and to the last bit."""
    model = Odd().to(dtype)
    model.sparse.data = torch.ones(6, 8, dtype=dtype)[:, ::2]
    wanted = ["updates"] if alone else WANTED
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = {}
    with make_hook(
        run_dir, include_collections=wanted, reduction_config=ReductionConfig()
    ) as hook:
        hook.register_module(model)
        for step in range(3):
            before = weights_of(model)
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
            steps[step] = before, weights_of(model)
    recorded = Recorded(run_dir)
    for step, (before, after) in steps.items():
        for name in before:
            difference = after[name] - before[name]
            expected = _core.reduce(as_array(difference))
            (row,) = recorded.rows(f"update/{name}")[step]
            for field in ("count", "zero", "min", "max", "mean", "m2", "l1"):
                assert row[field] == expected[field], (name, step, field)
    assert hook.counters()["internal_errors"] == 0
    assert hook.counters()["refused_tensors"] == 0


def test_a_parameter_that_its_step_replaces_by_another_shape_is_refused(
    run_dir: Path,
) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        hook.register_optimizer(optimizer)
        handle = optimizer.register_step_post_hook(
            lambda *_: setattr(model.fc2.bias, "data", torch.zeros(3))  # type: ignore[union-attr]
        )
        optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]
        train(model, criterion, optimizer, batches, 1)
    recorded = Recorded(run_dir)
    assert hook.counters()["refused_tensors"] == 1
    assert sorted(recorded.rows("update/fc2.weight")) == [0]
    assert "update/fc2.bias" not in recorded.names


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_has_no_update(run_dir: Path, fused: bool) -> None:
    model, criterion, batches = mlp(), nn.CrossEntropyLoss(), digits(16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    steps = {}
    with make_hook(
        run_dir, include_collections=[*WANTED, "optimizer_variables"]
    ) as hook:
        hook.register_module(model)
        for number in range(4):
            before = weights_of(model)
            optimizer.zero_grad()
            inputs, labels = next(batches)
            loss = criterion(model(inputs), labels)
            if number in (0, 2):
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if number in (1, 3):
                steps[number] = before, weights_of(model)
    recorded = Recorded(run_dir)
    assert [step[3] for step in recorded.steps] == [SKIPPED, 0, SKIPPED, 0]
    assert_updates(recorded, steps)
    assert sorted(recorded.rows("optimizer/exp_avg/fc1.weight")) == [1, 3]


def test_each_of_several_optimizers_has_its_updates(run_dir: Path) -> None:
    """That of the second one comes when the step has ended, and is the step's."""
    model, criterion, _, batches = parts()
    first = torch.optim.SGD(model.fc1.parameters(), lr=0.1)  # type: ignore[union-attr,operator]
    second = torch.optim.Adam(model.fc2.parameters(), lr=0.1)  # type: ignore[union-attr,operator]
    steps = {}
    with make_hook(
        run_dir, include_collections=[*WANTED, "optimizer_variables"]
    ) as hook:
        hook.register_module(model)
        for step in range(3):
            before = weights_of(model)
            model.zero_grad()
            inputs, labels = next(batches)
            criterion(model(inputs), labels).backward()
            first.step()
            second.step()
            steps[step] = before, weights_of(model)
    recorded = Recorded(run_dir)
    assert [step[0] for step in recorded.steps] == [0, 1, 2]
    assert_updates(recorded, steps)
    assert sorted(recorded.rows("optimizer/exp_avg/fc2.weight")) == [0, 1, 2]


def test_the_update_of_a_closure_is_that_of_the_whole_step(run_dir: Path) -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    inputs, labels = next(digits(64))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = criterion(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    steps = {}
    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        for step in range(2):
            before = weights_of(model)
            optimizer.step(closure)  # type: ignore[arg-type]
            steps[step] = before, weights_of(model)
    assert_updates(Recorded(run_dir), steps)


class Twice(torch.optim.SGD):
    """An optimizer that lets another one do its work, and then halves it."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups[0]["params"], lr=0.5)
        self.inner = inner

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        self.inner.step()
        super(torch.optim.SGD, self)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.5)


def test_an_optimizer_within_another_is_part_of_its_update(run_dir: Path) -> None:
    model, criterion, inner, batches = parts()
    optimizer = Twice(inner)
    steps = {}
    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        hook.register_optimizer(optimizer, defines_step=True)
        for step in range(2):
            before = weights_of(model)
            train(model, criterion, optimizer, batches, 1)
            steps[step] = before, weights_of(model)
    assert_updates(Recorded(run_dir), steps)


def test_what_changes_parameters_after_the_step_is_no_update(run_dir: Path) -> None:
    """Weights that the training clamps by hand: the next step shows them."""
    model, criterion, optimizer, batches = parts()
    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        before = weights_of(model)
        train(model, criterion, optimizer, batches, 1)
        stepped = weights_of(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.01, 0.01)
        clamped = weights_of(model)
        train(model, criterion, optimizer, batches, 1)
        after = weights_of(model)
    recorded = Recorded(run_dir)
    assert_updates(recorded, {0: (before, stepped), 1: (clamped, after)})
    assert recorded.values("fc1.weight")[1].tobytes() == bits(clamped["fc1.weight"])
    assert np.abs(recorded.values("fc1.weight")[1]).max() <= np.float32(0.01)


def test_a_parameter_without_a_gradient_has_no_update(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    model.fc1.requires_grad_(False)  # type: ignore[union-attr,operator]
    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 1)
        model.fc1.requires_grad_(True)  # type: ignore[union-attr,operator]
        train(model, criterion, optimizer, batches, 1)
    recorded = Recorded(run_dir)
    assert sorted(recorded.rows("update/fc1.weight")) == [1]
    assert sorted(recorded.rows("update/fc2.weight")) == [0, 1]


def test_an_optimizer_that_raises_leaves_no_copy_behind(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()

    def fail(*_: Any) -> None:
        raise LookupError

    with make_hook(run_dir, include_collections=WANTED) as hook:
        hook.register_module(model)
        hook.register_optimizer(optimizer)
        handle = optimizer.register_step_post_hook(fail)
        optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]
        with pytest.raises(LookupError):
            train(model, criterion, optimizer, batches, 1)
        assert hook._watch is not None
        assert hook._watch.around._updates.n_bytes
        handle.remove()
        model(next(batches)[0])
        assert not hook._watch.around._updates.n_bytes
    assert hook.counters()["internal_errors"] == 0


def test_a_hook_that_rests_holds_no_copy(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged: a fault within the update keeps its step from ending."""
    model, criterion, optimizer, batches = parts()
    requested = [*WANTED, "unclipped_gradients"]
    with make_hook(run_dir, include_collections=requested) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 1)
        assert hook._watch is not None
        around = hook._watch.around

        def fail(*_: Any) -> None:
            raise ValueError

        monkeypatch.setattr(around._updates, "end", fail)
        train(model, criterion, optimizer, batches, 1)
        assert hook.counters()["internal_errors"] == 1
        hook.flush()
        assert [step[0] for step in Recorded(run_dir).steps] == [0, 1]
        train(model, criterion, optimizer, batches, 12)
        assert not hook.counters()["is_live"]
        assert not around._updates.n_bytes
        assert not around._unclipped.has_copies


def test_statistics_of_updates_alone_store_no_values(run_dir: Path) -> None:
    model, criterion, optimizer, batches = parts()
    with make_hook(
        run_dir,
        include_collections=["updates"],
        reduction_config=ReductionConfig(),
    ) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 2)
    recorded = Recorded(run_dir)
    assert sorted(recorded.rows("update/fc1.weight")) == [0, 1]
    assert recorded.values("update/fc1.weight") == {}
