"""Warnings of PyTorch's functions name the lines that they name without tdbg."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import nn

import tdbg.pytorch as td
from torch_helpers import EVERYTHING

pytestmark = pytest.mark.torch

Line = tuple[str, str, int]


class Net(nn.Module):
    """A model whose forward calls what warns: a softmax over an unnamed dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.softmax(self.layer(x))
        return F.dropout2d(x, training=self.training)


def distance(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output, target)


def lines_of_a_training(
    out: Path | None, n_steps: int, save_config: td.SaveConfig | None = EVERYTHING
) -> list[list[Line]]:
    """The lines that warnings named, step by step; captured if there is an *out*."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    lines: list[list[Line]] = []
    with contextlib.ExitStack() as stack:
        if out is not None:
            stack.enter_context(td.watch(model, out=out, save_config=save_config))
        for _ in range(n_steps):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                output = model(torch.ones(4, 3))
                loss = distance(output, torch.zeros(4, 1))
                loss = loss + nn.L1Loss()(output, torch.zeros(4, 1))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            lines.append([(str(w.message), w.filename, w.lineno) for w in caught])
    return lines


def test_a_warning_names_the_same_line_with_and_without_tdbg(run_dir: Path) -> None:
    """Sabotage that it caught: counting the frames of tdbg, and half of them."""
    plain = lines_of_a_training(None, 1)[0]
    assert {Path(file).name for _, file, _ in plain} >= {Path(__file__).name, "loss.py"}
    assert len(plain) == 4
    assert lines_of_a_training(run_dir, 4) == [plain] * 4
    assert vars(F)["warnings"] is warnings, "what was in the module is back"


def test_so_it_does_at_steps_that_are_only_counted(run_dir: Path) -> None:
    plain = lines_of_a_training(None, 1)[0]
    sparse = td.SaveConfig(statistics_interval=50)
    assert lines_of_a_training(run_dir, 120, sparse) == [plain] * 120


def test_of_a_training_that_follows_no_more_the_next_one_does(tmp_path: Path) -> None:
    plain = lines_of_a_training(None, 1)[0]
    for name in ("first", "second"):
        assert lines_of_a_training(tmp_path / name, 2) == [plain] * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_function_that_warns_is_scripted_while_it_is_followed(run_dir: Path) -> None:
    with td.watch(Net(), out=run_dir, save_config=EVERYTHING):
        scripted = torch.jit.script(distance)  # type: ignore[no-untyped-call]
        with pytest.warns(UserWarning, match="different to the input size"):
            assert scripted(torch.ones(3), torch.zeros(3, 1)) == 1.0
