"""The hook sees when a program reads its weights after an evaluation."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import tdbg.pytorch as td
from tdbg.run.observations import Fault
from tdbg.trial import create_trial

pytestmark = pytest.mark.torch

STEPS, PASS = 3, 2
KEEP: dict[str, Callable[[nn.Module], object]] = {
    "a copy of the state": lambda model: copy.deepcopy(model.state_dict()),
    "clones": lambda model: {k: v.clone() for k, v in model.state_dict().items()},
    "a copy of the model": copy.deepcopy,
    "a file": lambda model: torch.save({"model": model.state_dict()}, io.BytesIO()),
}


def read_after(run_dir: Path, keep: Callable[[nn.Module, int], object]) -> list[int]:
    """The passes after which the hook has seen weights read."""
    model, loss = (
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
        nn.MSELoss(),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with td.watch(model, loss, optimizer, out=run_dir, budget="off"):
        for number in range(8):
            model.train()
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss(model(torch.ones(4, 4)), torch.zeros(4, 2)).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for _ in range(PASS):
                    loss(model(torch.ones(4, 4)), torch.zeros(4, 2))
            keep(model, number)
    seen = create_trial(run_dir).observations()
    steps = [each.step for each in seen if each.fault is Fault.WEIGHTS_READ]
    assert all((step + 1) % (STEPS + PASS) == 0 for step in steps)
    return [step // (STEPS + PASS) for step in steps]


@pytest.mark.parametrize("how", list(KEEP))
def test_weights_that_are_kept_are_seen(how: str, run_dir: Path) -> None:
    def keep(model: nn.Module, number: int) -> None:
        if number in (1, 4):
            KEEP[how](model)

    assert read_after(run_dir, keep) == [1, 4]
    # Nothing stays behind.
    assert not hasattr(nn.Parameter.__deepcopy__, "_tdbg_original")


@pytest.mark.parametrize(
    "keep",
    [
        lambda *_: None,
        lambda *_: nn.Linear(2, 2).state_dict(),
        lambda *_: copy.deepcopy(nn.Linear(2, 2)),
        lambda model, _: [p.norm() for p in model.parameters()],
    ],
    ids=["nothing", "another's", "a copy of another", "norms"],
)
def test_what_keeps_no_weights_is_not_seen(
    keep: Callable[[nn.Module, int], object], run_dir: Path
) -> None:
    assert read_after(run_dir, keep) == []
