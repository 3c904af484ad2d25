"""The processor does something else than training."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.detection.scenarios.cases.data import Vectors
from benchmarks.detection.scenarios.cases.loading import MANY, train
from benchmarks.detection.scenarios.kit import Device, Play, fault, network

__all__: list[str] = []

# At this step, all that PyTorch loads late is there.
SET_UP = 10
CORES = len(os.sched_getaffinity(0))


@fault("IdleBetweenSteps", mends=True)
def sleeps_between_steps(play: Play) -> None:
    """Each step polls for 20 ms before its batch. Twin: for 2 ms."""
    model = network(0.03)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    seconds = 0.02 if play.ill else 0.002
    for inputs, labels in play.batches(DataLoader(Vectors(MANY), batch_size=8)):
        with play.clock("other"):
            time.sleep(seconds)
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()
    play.shows(play.share("other") > 0.2)


@fault("CpuThrottled", quota=0.2)
def under_a_quota(play: Play) -> None:
    """The control group allows 0.2 cores, the model needs one. Twin: no quota."""
    model = nn.Sequential(nn.Linear(32, 1500), nn.ReLU(), nn.Linear(1500, 1500))
    model.append(nn.Linear(1500, 10))
    began, cpu = time.perf_counter(), time.process_time()
    train(play, DataLoader(Vectors(MANY), batch_size=64), model)
    used = (time.process_time() - cpu) / (time.perf_counter() - began)
    play.figures["cores"] = used
    play.shows(used < 0.3)


@fault("CpuContention", alone=True)
def four_times_the_threads(play: Play) -> None:
    """4 busy threads a core, as 4 ranks with all cores' threads. Twin: one thread."""
    helpers = 4 * CORES - 1 if play.sick else 0
    with burners(helpers):
        _compute(play)
    play.shows(play.figures["queued"] > 0.1)


@fault("CpuContention", alone=True)
def neighbour(play: Play) -> None:
    """Another program burns all cores twice; the loader keeps up. Twin: it does not."""
    with burners(2 * CORES if play.sick else 0):
        _compute(play, workers=1)
    play.shows(play.figures["queued"] > 0.1)


def _compute(play: Play, workers: int = 0) -> None:
    """Train a network that needs a core; measure how often it has none."""
    model = nn.Sequential(nn.Linear(32, 800), nn.ReLU(), nn.Linear(800, 800))
    model.append(nn.Linear(800, 10))
    before = _queued()
    loader = DataLoader(Vectors(MANY), batch_size=32, num_workers=workers)
    train(play, loader, model)
    play.figures["queued"] = (_queued() - before) / max(1e-9, play.elapsed)


def _queued() -> float:
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


@contextlib.contextmanager
def burners(n: int) -> Iterator[None]:
    """Processes that use a core each, until the block ends or this process does."""
    watch = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    started = [subprocess.Popen([sys.executable, "-S", "-c", watch]) for _ in range(n)]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


@fault("GcPauses", mends=True)
def collects_often(play: Play) -> None:
    """gc.collect() each 5 steps with 2,000,000 objects. Twin: after gc.freeze()."""
    kept = [{"id": i} for i in range(2_000_000)]
    model = network(0.03)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    for step, (inputs, labels) in enumerate(
        play.batches(DataLoader(Vectors(MANY), batch_size=8))
    ):
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()
        if step % 5 == 4:
            gc.collect()
        if step == SET_UP and not play.ill:
            gc.freeze()
    play.figures["objects"] = len(kept)
    # Counting what is frozen, and freeing it at the end, takes a second by itself.
    play.shows(play.share("gc") > 0.1)


@fault("RecompilationStorm", mends=True)
def shapes_never_repeat(play: Play) -> None:
    """torch.compile sees another length at each step. Twin: 4 lengths."""
    torch._dynamo.config.recompile_limit = 10**6
    torch._dynamo.config.accumulated_recompile_limit = 10**6
    core = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    compiled = torch.compile(core, backend="eager", dynamic=False)
    model = nn.Sequential(compiled, Device(0.03))  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(core.parameters(), lr=0.05)
    graphs = 0
    for step in play.steps():
        length = 8 + (step if play.ill else step % 4)
        optimizer.zero_grad()
        model(torch.randn(length, 32)).square().mean().backward()
        optimizer.step()
        if not play.is_warm:
            graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    now = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    play.figures["graphs"] = now - graphs
    play.shows(now - graphs > 20)


@fault("MaxInitializationTime", asks={"MaxInitializationTime": {"threshold": 0.3}})
def slow_start(play: Play) -> None:
    """Data is prepared for 25 s before the first step. Twin: it is there."""
    play.seconds = min(play.seconds, 25.0)
    began = time.perf_counter()
    if play.sick:
        time.sleep(25)
    play.figures["start"] = time.perf_counter() - began
    train(play, DataLoader(Vectors(MANY), batch_size=8), network(0.03))
    play.shows(play.figures["start"] > 18)
