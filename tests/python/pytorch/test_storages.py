"""The same memory is read once a step, and no row is ever that of something else.

Raw values are always copied, so each row is held against the value beside it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tdbg.pytorch import Hook
from torch_helpers import Recorded, cnn, digits, make_hook, train

pytestmark = pytest.mark.torch

BIG = 100_000  # Elements; far above the bytes from which memory is compared.


def assert_rows_fit_values(run_dir: Path) -> int:
    """How many pairs of a row and a value were compared."""
    recorded = Recorded(run_dir)
    n_compared = 0
    for name in recorded.names:
        rows = recorded.rows(name)
        for step, value in recorded.values(name).items():
            x = value.astype(np.float64).ravel()
            if not x.size or value.dtype.kind not in "fiu":
                continue
            row = rows[step][0]
            assert row["count"] == x.size, (name, step)
            scale = max(np.abs(x).max(), 1e-300)
            assert abs(row["mean"] - x.mean()) <= 1e-6 * scale, (name, step)
            np.testing.assert_allclose(row["l1"], np.abs(x).sum(), rtol=1e-6)
            assert row["zero"] == np.count_nonzero(x == 0), (name, step)
            n_compared += 1
    return n_compared


class Call(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Steps(nn.Module):
    """Passes its input through functions, each a module of its own."""

    def __init__(self, *functions: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.steps = nn.ModuleList(Call(function) for function in functions)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x)
        return x


def capture(run_dir: Path, model: nn.Module, *inputs: torch.Tensor) -> Hook:
    """Everything of one forward of the model."""
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        model(*inputs)
    counters = hook.counters()
    assert counters["internal_errors"] == counters["refused_tensors"] == 0
    return hook


def test_an_output_that_is_the_next_input_is_read_once(run_dir: Path) -> None:
    model = Steps(lambda x: x * 2, lambda x: x + 1, lambda x: x * 3)
    hook = capture(run_dir, model, torch.randn(BIG))
    # The root's input is the first one's; each output the next input or the root's.
    assert hook.counters()["repeated_rows"] == 4
    assert assert_rows_fit_values(run_dir) == 8


def test_small_tensors_are_simply_read(run_dir: Path) -> None:
    hook = capture(run_dir, Steps(lambda x: x * 2, lambda x: x + 1), torch.randn(100))
    assert hook.counters()["repeated_rows"] == 0
    assert assert_rows_fit_values(run_dir) == 6


def test_a_view_of_all_of_it_is_the_same_and_one_of_a_part_is_not(
    run_dir: Path,
) -> None:
    """Sabotaged: without comparing the count, the half has the whole's row."""
    model = Steps(
        lambda x: x * 2,
        lambda x: x.view(100, -1),
        lambda x: x.flatten(),
        lambda x: x[: BIG // 2],
        lambda x: x.view(torch.int32),
    )
    with torch.no_grad():
        hook = capture(run_dir, model, torch.randn(BIG))
    assert hook.counters()["repeated_rows"] >= 6
    assert assert_rows_fit_values(run_dir) == 12


def test_what_was_written_in_place_is_read_anew(run_dir: Path) -> None:
    """Sabotaged: without comparing versions, ReLU's output has no zeros."""
    model = Steps(lambda x: x * 2, lambda x: x.relu_(), lambda x: x[:].neg_())
    capture(run_dir, model, torch.randn(BIG))
    recorded = Recorded(run_dir)
    assert recorded.rows("steps.0_output_0")[0][0]["zero"] == 0
    assert recorded.rows("steps.1_output_0")[0][0]["zero"] > BIG // 3
    assert recorded.rows("steps.2_output_0")[0][0]["l1"] > 0
    assert assert_rows_fit_values(run_dir) == 8


def test_a_real_training_with_relus_in_place(run_dir: Path) -> None:
    model = cnn()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        train(model, criterion, optimizer, digits(256, images=True), 3)
    assert hook.counters()["repeated_rows"] >= 3 * 5
    assert assert_rows_fit_values(run_dir) > 3 * 30


def test_memory_that_was_freed_and_used_again_is_read_anew(run_dir: Path) -> None:
    """Sabotaged: without the weak reference most rows are the first one's."""
    addresses = []
    n = 48  # The allocator may have some holes of this size to fill before.

    def fresh(x: torch.Tensor) -> torch.Tensor:
        addresses.append(x.data_ptr())
        return x + 1  # The one before is freed as soon as this is passed on.

    with torch.no_grad():
        capture(run_dir, Steps(*[fresh] * n), torch.randn(BIG))
    assert len(set(addresses)) < len(addresses)
    assert assert_rows_fit_values(run_dir) == 2 * n + 2


def test_no_activation_lives_longer_for_it(run_dir: Path) -> None:
    alive: list[Any] = []

    def watch(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        alive.append(weakref.ref(y))
        return y

    model = Steps(watch, watch, watch)
    with make_hook(run_dir) as hook, torch.no_grad():
        hook.register_module(model)
        model(torch.randn(BIG))
        assert [each() for each in alive] == [None] * 3


def test_in_inference_mode_everything_is_read(run_dir: Path) -> None:
    with torch.inference_mode():
        model = Steps(lambda x: x * 2, lambda x: x.relu_(), lambda x: x + 1)
        hook = capture(run_dir, model, torch.randn(BIG))
    assert hook.counters()["repeated_rows"] == 0
    assert assert_rows_fit_values(run_dir) == 8


def test_channels_last_is_compared_with_its_strides(run_dir: Path) -> None:
    images = torch.randn(8, 16, 32, 32).to(memory_format=torch.channels_last)
    model = Steps(lambda x: x * 2, lambda x: x + 1, lambda x: x.transpose(2, 3))
    hook = capture(run_dir, model, images)
    assert hook.counters()["repeated_rows"] == 4
    assert assert_rows_fit_values(run_dir) == 8


def test_each_micro_batch_has_rows_of_its_own(run_dir: Path) -> None:
    model = nn.Sequential(nn.Linear(1000, 100))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(100, 1000)
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        for _ in range(3):
            model(inputs).sum().backward()
        optimizer.step()
    recorded = Recorded(run_dir)
    for name in ("Sequential_input_0", "0_input_0"):
        rows = recorded.rows(name)[0]
        assert [row["micro_batch"] for row in rows] == [0, 1, 2]
        assert len({float(row["mean"]) for row in rows}) == 1
    assert hook.counters()["repeated_rows"] >= 3


def test_a_module_that_is_called_twice_with_the_same_has_a_row_for_each(
    run_dir: Path,
) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Call(lambda x: x * 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + self.inner(x)  # type: ignore[no-any-return]

    capture(run_dir, Twice(), torch.randn(BIG))
    recorded = Recorded(run_dir)
    assert recorded.rows("inner_input_0@2")[0][0]["call"] == 1
    assert assert_rows_fit_values(run_dir) == 6


def test_with_checkpoints_each_forward_is_recorded_once(run_dir: Path) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(300, 300), nn.ReLU(inplace=True))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return result

    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        model(torch.randn(300, 300)).sum().backward()
        optimizer.step()
    assert hook.counters()["internal_errors"] == 0
    recorded = Recorded(run_dir)
    assert all(
        len(rows) == 1
        for name in recorded.names
        for rows in recorded.rows(name).values()
    )
    assert assert_rows_fit_values(run_dir) > 8


def test_more_rows_than_are_kept_are_all_written(run_dir: Path) -> None:
    """The row to copy may be written already: then the memory is read again."""
    model = Steps(*[lambda x: x + 1.0] * 2100)
    with make_hook(run_dir, include_collections=["inputs", "outputs"]) as hook:
        hook.register_module(model)
        with torch.no_grad():
            model(torch.zeros(9000))
    assert hook.counters()["internal_errors"] == 0
    recorded = Recorded(run_dir)
    for step in range(0, 2100, 50):
        (row,) = recorded.rows(f"steps.{step}_input_0")[0]
        assert row["mean"] == step


def test_writes_that_pytorch_does_not_count_are_not_seen(run_dir: Path) -> None:
    """As docs/steps.md says: the price of not reading everything twice."""

    def write(x: torch.Tensor) -> torch.Tensor:
        x.data.zero_()
        return x

    capture(run_dir, Steps(lambda x: x * 2, write), torch.ones(BIG))
    recorded = Recorded(run_dir)
    assert recorded.values("steps.1_output_0")[0].max() == 0
    assert recorded.rows("steps.1_output_0")[0][0]["mean"] == 2
