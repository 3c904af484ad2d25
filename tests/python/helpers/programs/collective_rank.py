"""A rank of two that communicate by gloo: ``collective_rank.py RANK PORT WHAT``.

It prints the rows, and the phases that it was in, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from profiled_data import FakeSession
from tdbg.profiler.collectives import Collectives, _pending

RANK, PORT, WHAT = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def calls() -> None:
    """Rank 1 comes late to the second all-reduce."""
    x = torch.ones(1000)
    dist.all_reduce(x)
    if RANK == 1:
        time.sleep(0.2)
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    time.sleep(0.01)
    work.wait()
    dist.barrier()
    dist.all_gather([torch.empty(10), torch.empty(10)], torch.ones(10))
    dist.broadcast(torch.ones(3), 0, group=dist.new_group([0, 1]))
    assert float(x[0]) == 8.0
    assert not _pending


def ddp(module: Any, n: int) -> None:
    for i in range(n):
        if RANK == 1 and i >= 2:
            time.sleep(0.05)
        module(torch.ones(4, 8)).sum().backward()


def main(session: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    if WHAT == "calls":
        part = Collectives(session)
        calls()
    elif WHAT == "older":
        module = DistributedDataParallel(model)
        part = Collectives(session)
        ddp(module, 6)
    else:
        part = Collectives(session)
        module = DistributedDataParallel(model)
        if WHAT == "hook":
            module.register_comm_hook(None, default_hooks.allreduce_hook)
        ddp(module, 4)
        with module.no_sync():
            ddp(module, 1)
        ddp(module, 2)
    part.close()
    hooks = sum(
        len(each._post_accumulate_grad_hooks or ()) for each in model.parameters()
    )
    dist.all_reduce(torch.ones(1))
    rows = session.rows("collective")
    print(json.dumps({
        "rows": [dict(zip(rows.dtype.names, map(int, row), strict=True))
                 for row in rows],
        "log": [[what, int(phase)] for what, phase in session.clock.log],
        "events": session.events,
        "hooks": hooks,
    }))  # fmt: skip


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)
    dist.init_process_group("gloo", rank=RANK, world_size=2)
    main(FakeSession())
    dist.destroy_process_group()
    sys.stdout.flush()
    # PyTorch sometimes aborts a process at its exit that has had a communication hook,
    # also where nothing of tdbg was attached: "terminate called without an active
    # exception".
    os._exit(0)
