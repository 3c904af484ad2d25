"""Buffers: running statistics, counters and masks, as the step left them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tdbg import create_trial
from tdbg.pytorch import ModeKeys, SaveConfig
from torch_helpers import Recorded, cnn, digits, make_hook, train

pytestmark = pytest.mark.torch

ONLY = ["buffers"]


def test_running_statistics_are_as_the_forwards_of_the_step_left_them(
    run_dir: Path,
) -> None:
    model, criterion = cnn(), nn.CrossEntropyLoss()
    norm = model.get_submodule("1")
    assert isinstance(norm, nn.BatchNorm2d)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    means, variances = [], []
    batches = digits(8, images=True)
    with make_hook(run_dir, include_collections=ONLY) as hook:
        hook.register_module(model)
        for _ in range(3):
            # Two micro-batches: still once, and after both.
            for inputs, labels in (next(batches), next(batches)):
                criterion(model(inputs), labels).backward()
            means.append(norm.running_mean.clone())
            variances.append(norm.running_var.clone())
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(next(batches)[0])
    recorded = Recorded(run_dir)
    assert recorded.names == {
        "buffer/1.running_mean",
        "buffer/1.running_var",
        "buffer/1.num_batches_tracked",
    }
    # The evaluation is step 3; its buffers are those that it used.
    for name, kept in (("running_mean", means), ("running_var", variances)):
        found = recorded.values(f"buffer/1.{name}")
        for step, value in enumerate([*kept, kept[-1]]):
            assert found[step].tobytes() == value.numpy().tobytes()
        assert [len(rows) for rows in recorded.rows(f"buffer/1.{name}").values()] == [
            1,
            1,
            1,
            1,
        ]
    counts = recorded.values("buffer/1.num_batches_tracked")
    assert [int(counts[step]) for step in range(4)] == [2, 4, 6, 6]
    trial = create_trial(run_dir)
    assert trial.tensor("buffer/1.running_var").role == "buffer"
    assert trial.tensor_names(collection="buffers") == sorted(recorded.names)
    assert trial.tensor("buffer/1.running_var").steps(mode=ModeKeys.EVAL) == [0]


class Masked(nn.Module):
    """Buffers that are not persistent, shared, missing, and of other types."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        mask = torch.tensor([True, False])
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("same", mask)
        self.register_buffer("none", None)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1  # Replaced, not written to.
        result: torch.Tensor = self.fc(x) * self.mask
        return result


def test_any_buffer_is_taken_by_its_place(run_dir: Path) -> None:
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_hook(run_dir, include_collections=ONLY) as hook:
        hook.register_module(model)
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    recorded = Recorded(run_dir)
    assert recorded.names == {"buffer/mask", "buffer/count"}
    assert recorded.by_name["buffer/mask"].aliases == ("buffer/same",)
    assert recorded.values("buffer/mask")[0].tolist() == [True, False]
    assert [int(recorded.values("buffer/count")[n]) for n in range(3)] == [1, 2, 3]
    alias = create_trial(run_dir).tensor("buffer/same")
    np.testing.assert_array_equal(alias.value(2), [True, False])


def test_a_second_model_has_names_of_its_own(run_dir: Path) -> None:
    first, second = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    with make_hook(run_dir, include_collections=ONLY) as hook:
        hook.register_module(first)
        hook.register_module(second)
        second(torch.ones(3, 2))
    assert {name for name in Recorded(run_dir).names if "mean" in name} == {
        "buffer/BatchNorm1d_2.running_mean"
    }


def test_they_follow_a_schedule_and_everything_includes_them(run_dir: Path) -> None:
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    every_third = SaveConfig(statistics_interval=3)
    with make_hook(run_dir, save_config=every_third) as hook:
        hook.register_module(model)
        batches = digits(8, images=True)
        train(model, nn.CrossEntropyLoss(), optimizer, batches, 7)
        assert set(Recorded(run_dir).rows("buffer/1.running_var")) <= {0, 3, 6}
    assert set(Recorded(run_dir).rows("buffer/1.running_var")) == {0, 3, 6}


def test_without_an_optimizer_they_are_as_the_forward_found_them(
    run_dir: Path,
) -> None:
    model = nn.BatchNorm1d(2)
    with make_hook(run_dir, include_collections=ONLY) as hook:
        hook.register_module(model)
        for _ in range(2):
            model(torch.ones(3, 2))
    counts = Recorded(run_dir).values("buffer/num_batches_tracked")
    assert [int(counts[n]) for n in range(2)] == [0, 1]
