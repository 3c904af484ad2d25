"""Runs a function on several ranks, in processes with a gloo group of their own.

The processes are forked from a server that has PyTorch loaded, which is quick, and
clean: nothing of the test's own process is in them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.multiprocessing.spawn import start_processes

__all__ = ["read_notes", "run_ranks", "write_note"]

_PRELOADED = ["torch", "torch.distributed.tensor.parallel", "ranks", "torch_helpers"]


def run_ranks(
    function: Callable[..., None],
    world_size: int,
    *arguments: Any,
    seconds: float = 240,
) -> None:
    """Call ``function(rank, *arguments)`` on each rank; raise what one raised.

    Raises:
        TimeoutError: If they have not ended in time; they are killed.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = start_processes(
        _main,
        (function, world_size, port, arguments),
        nprocs=world_size,
        join=False,
        start_method="forkserver",
    )
    assert context is not None
    end = time.monotonic() + seconds
    try:
        while not context.join(1.0):  # False as soon as any has ended.
            if time.monotonic() > end:
                msg = f"the ranks have not ended after {seconds:g} s: one hangs"
                raise TimeoutError(msg)
    finally:
        for process in context.processes:
            process.kill()


def _main(
    rank: int,
    function: Callable[..., None],
    world_size: int,
    port: int,
    arguments: tuple[Any, ...],
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    function(rank, *arguments)
    # Whoever serves the store goes last.
    distributed.barrier()
    distributed.destroy_process_group()


def write_note(folder: Path, name: str, rank: int, content: Any) -> None:
    """Leave something for the test."""
    (folder / f"{name}-{rank}.json").write_text(json.dumps(content))


def read_notes(folder: Path, name: str) -> dict[int, Any]:
    """What the ranks left, by rank."""
    return {
        int(file.stem.rpartition("-")[2]): json.loads(file.read_text())
        for file in sorted(folder.glob(f"{name}-*.json"))
    }
