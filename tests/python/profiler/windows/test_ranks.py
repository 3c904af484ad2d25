"""Windows of several ranks: all take the same steps."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

import tdbg.pytorch as td
from ranks import run_ranks
from tdbg.run.profile_requests import request_profile
from tdbg.trial import create_trial

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def _train(rank: int, out: str) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hook = td.Hook(out, include_workers="all")
    hook.register_module(model)
    for step in range(400):
        if step == 3 and rank == 0:
            request_profile(out, window=td.WindowConfig(num_steps=3))
        optimizer.zero_grad()
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        time.sleep(0.005)
    distributed.barrier()
    hook.close()


def test_all_ranks_take_the_same_steps(run_dir: Path) -> None:
    run_ranks(_train, 2, str(run_dir))
    ended = [
        event
        for event in create_trial(run_dir).events()
        if event.data.get("what") == "profile_window"
        and event.data.get("state") == "ended"
    ]
    assert {event.writer for event in ended} == {"train-0-1", "train-1-1"}
    ranges = {(e.data["first_step"], e.data["last_step"]) for e in ended}
    assert len(ranges) == 1
    ((first, last),) = ranges
    assert last - first == 2
