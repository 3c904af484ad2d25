"""What the rows of steps cost a training: processor time of its thread, a step.

Two trainings of the same model, one with the profiler and one without, take turns of a
few hundred steps.  So what slows the machine meanwhile slows both, and waiting for a
processor does not count.

    python benchmarks/profiler/steps.py [--turns 20] [--steps 300]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import tdbg.pytorch as td


def make_training(
    out: Path, *, profiler: bool
) -> tuple[td.Hook, Callable[[int], None]]:
    """Return a hook, and what makes steps of a small model that it captures."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hook = td.Hook(out, profiler=profiler)
    hook.register_module(model)
    inputs, labels = torch.randn(16, 32), torch.randint(4, (16,))

    def steps(n: int) -> None:
        for _ in range(n):
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

    return hook, steps


def cost(training: Callable[[int], None], n: int) -> float:
    """Return the processor time of a step, in microseconds."""
    start = time.thread_time_ns()
    training(n)
    return (time.thread_time_ns() - start) / n / 1e3


def main() -> None:
    """Print the cost of a step with the profiler and without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        hook_on, on = make_training(Path(folder) / "on", profiler=True)
        hook_off, off = make_training(Path(folder) / "off", profiler=False)
        for each in (on, off):
            each(given.steps)
        pairs = [
            (cost(on, given.steps), cost(off, given.steps)) for _ in range(given.turns)
        ]
        hook_on.close()
        hook_off.close()
    without = statistics.median(pair[1] for pair in pairs)
    more = statistics.median(pair[0] - pair[1] for pair in pairs)
    print(f"a step without the profiler: {without:.1f} us of processor time")
    print(f"with it: {more:+.1f} us, median of {given.turns} turns in alternation")
    print(f"of a step of 10 ms: {more / 10_000:.3%}")


if __name__ == "__main__":
    main()
