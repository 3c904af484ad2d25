"""Trains as one of several ranks until it is asked to stop; no step waits for another.

Usage: train_as_a_rank.py RUN NOTES, with the variables of torchrun.  Writes how many
steps it has made to NOTES/RANK, and in the end what it stopped for.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn

import tdbg
import tdbg.pytorch as td
from tdbg.capture import ranks

ranks.STORE_SECONDS = 0.5


def main() -> None:
    run, notes = sys.argv[1], Path(sys.argv[2])
    note = notes / os.environ["RANK"]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = td.Hook(run, include_workers="all", min_free_bytes=0)
    hook.register_module(model)
    distributed.barrier()
    step = 0
    try:
        while True:
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            step += 1
            note.write_text(str(step))
            time.sleep(0.01)
    except tdbg.TrainingStopped as stop:
        hook.close()
        note.write_text(f"{step} {stop.reason}")
    # Whoever keeps the store stays: others may still be asked.
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
