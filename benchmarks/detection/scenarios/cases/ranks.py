"""Three ranks that wait for each other."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.detection.scenarios.cases.data import Vectors
from benchmarks.detection.scenarios.kit import Play, fault, healthy, network

__all__: list[str] = []


@fault("Straggler", ranks=3, mends=True)
def one_slow_rank(play: Play) -> None:
    """Rank 1 takes 20 ms longer at each step. Twin: it does not."""
    own = _train(play, lambda rank, _: 0.02 if rank == 1 and play.ill else 0.0)
    play.shows(own[1] > 1.2 * max(own[0], own[2]))


@healthy(ranks=3)
def slow_for_five_steps(play: Play) -> None:
    """Rank 1 takes 20 ms longer at five steps."""
    _train(play, lambda rank, step: 0.02 if rank == 1 and 400 <= step < 405 else 0.0)


def _train(play: Play, extra: object) -> list[float]:
    """Train by DDP; return what each rank's own work takes, in seconds."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    core = network(0.04)
    model = DistributedDataParallel(core)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    samples = Vectors(10_000)
    own, n = 0.0, 0
    for step in play.steps():
        chosen = [samples[(step * 8 + i) % len(samples)] for i in range(8)]
        inputs = torch.stack([values for values, _ in chosen])
        labels = torch.tensor([label for _, label in chosen])
        began = time.perf_counter()
        time.sleep(extra(rank, step))  # type: ignore[operator]
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        own, n = own + time.perf_counter() - began, n + 1
        loss.backward()
        optimizer.step()
        # All stop at the same step.
        seconds = torch.tensor([play.elapsed])
        if step % 20 == 0:
            dist.broadcast(seconds, 0)
            if float(seconds) > play.seconds - 1:
                break
    gathered = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.tensor([own / n]))
    dist.destroy_process_group()
    return [float(each) for each in gathered]
