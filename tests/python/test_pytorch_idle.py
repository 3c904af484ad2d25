"""A step of which nothing is wanted: in few calls of Python, and all is noticed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import tdbg
import tdbg.pytorch as td

NEVER = td.SaveConfig(save_interval=10**6, statistics_interval=10**6)


def calls_of_tdbg(step: Any) -> list[str]:
    """The Python functions of tdbg that a call of *step* calls."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "/tdbg/" in frame.f_code.co_filename:
            called.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.parametrize(("has_loss", "most"), [(False, 39), (True, 55)])
def test_a_step_that_wants_nothing_calls_little(
    run_dir: Path, has_loss: bool, most: int
) -> None:
    """Processor time is noisy; the calls of Python that it follows are not."""
    model, criterion = nn.Linear(4, 2), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = td.Hook(run_dir, include_collections=["weights"], save_config=NEVER)
    hook.register_module(model)
    if has_loss:
        hook.register_loss(criterion)

    def step() -> None:
        criterion(model(torch.ones(3, 4)), torch.zeros(3, 2)).backward()
        optimizer.step()

    for _ in range(5):
        step()
    # A look at requests, or the record of a second, is in one step of many.
    fewest = min((calls_of_tdbg(step) for _ in range(5)), key=len)
    assert len(fewest) <= most, (len(fewest), fewest)
    assert hook.close()
    steps = 10
    found = tdbg.create_trial(run_dir).tensor_names(collection="losses")
    assert len(found) == has_loss
    assert hook.counters()["internal_errors"] == 0
    assert hook.overhead().steps == steps
