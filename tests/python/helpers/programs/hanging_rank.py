"""A rank of three, of which one stops coming: ``hanging_rank.py RANK PORT RUN HOW``.

At step 20, rank 1 reads from an empty pipe in C, with the interpreter's lock or
without, and never reaches what the others wait in.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import tdbg.pytorch as td

RANK, PORT, RUN, HOW = int(sys.argv[1]), *sys.argv[2:]


def stand_still() -> None:
    libc = ctypes.PyDLL(None) if HOW == "locked" else ctypes.CDLL(None)
    libc.read(os.pipe()[0], ctypes.create_string_buffer(1), 1)


def communicate(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)


def train() -> None:
    model: Any = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    if HOW == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    loss_of = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with td.Hook(RUN, include_workers="all", min_free_bytes=0) as hook:
        hook.register_module(model)
        hook.register_loss(loss_of)
        for step in range(100):
            loss = loss_of(model(torch.ones(4, 8)), torch.ones(4, 1))
            if RANK == 1 and step == 20:
                stand_still()
            loss.backward()
            if HOW != "ddp":
                communicate(model)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)
    os.environ.update(RANK=str(RANK), WORLD_SIZE="3", LOCAL_RANK=str(RANK))
    dist.init_process_group("gloo", rank=RANK, world_size=3)
    train()
