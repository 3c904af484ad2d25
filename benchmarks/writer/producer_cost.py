"""What each call of the capture engine costs the training thread, in microseconds.

Steps of a fixed length are made of busy waiting, as a training's would be; in each, the
calls that a hook makes are timed: `statistics` of one tiny tensor, `values` of 1 KiB,
`scalar`, and `end_step`.  Wall time and the thread's own processor time are told apart:
the difference is what a wake of the writer thread does to the thread that asked for it
(preemption, waiting for a lock).

    python benchmarks/writer/producer_cost.py [--step-ms 1] [--steps 2000] [--repeat 5]

Every record is accounted for at the end, or the benchmark fails.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from tdbg import _core
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run

CALLS = ("statistics", "values", "scalar", "end_step")
Samples = dict[str, list[int]]


def spend(nanoseconds: int) -> None:
    """Keep this thread busy, as a training does."""
    end = time.perf_counter_ns() + nanoseconds
    while time.perf_counter_ns() < end:
        pass


def train(step_ns: int, n_steps: int, clock: Callable[[], int]) -> tuple[Samples, int]:
    """One run; nanoseconds by call, and how long all of it took."""
    samples: Samples = {name: [] for name in CALLS}
    small = np.arange(16, dtype=np.float32)
    kilobyte = np.arange(256, dtype=np.float32)
    with tempfile.TemporaryDirectory() as root:
        run = create_run(root + "/run")
        capture = _core.Capture(
            str(run.path), run_uuid=run.uuid, attempt_uuid=bytes(16), min_free_bytes=0
        )
        ids = (capture.define("small", int(Role.WEIGHT), "float32", small.shape),)
        raw = capture.define("kilobyte", int(Role.WEIGHT), "float32", kilobyte.shape)
        loss = capture.define("scalar/loss", int(Role.SCALAR))
        pointers = (small.ctypes.data,)
        address = kilobyte.ctypes.data
        mode = ModeKeys.TRAIN.value
        start = time.perf_counter_ns()
        for step in range(n_steps):
            spend(step_ns)
            a = clock()
            capture.statistics(step, ids, pointers)
            b = clock()
            capture.values(step, raw, address)
            c = clock()
            capture.scalar(step, loss, 0.5, 0)
            d = clock()
            capture.end_step(step, mode, step)
            e = clock()
            for name, ns in zip(CALLS, (b - a, c - b, d - c, e - d), strict=True):
                samples[name].append(ns)
        took = time.perf_counter_ns() - start
        capture.flush()
        counters = capture.counters()
        if counters["written"] != 4 * n_steps:
            sys.exit(f"of {4 * n_steps} records {counters['written']} were written")
        capture.close()
    return samples, took


def cost_of_clock(clock: Callable[[], int]) -> float:
    """Nanoseconds that are not the call's."""
    deltas = []
    for _ in range(2000):
        a = clock()
        deltas.append(clock() - a)
    return statistics.median(deltas)


def report(title: str, clock: Callable[[], int], arguments: argparse.Namespace) -> None:
    """Run and print one table."""
    step_ns = int(arguments.step_ms * 1e6)
    own = cost_of_clock(clock)
    samples: Samples = {name: [] for name in CALLS}
    extra = []
    for _ in range(arguments.repeat):
        one, took = train(step_ns, arguments.steps, clock)
        for name in CALLS:
            samples[name] += one[name]
        extra.append((took / arguments.steps - step_ns) / 1e3)
    print(f"{title} (us)        median     mean      p99")
    for name, values in samples.items():
        least = sorted(max(0.0, value - own) / 1e3 for value in values)
        p99 = least[int(0.99 * len(least))]
        mean = statistics.fmean(least)
        print(f"  {name:18} {statistics.median(least):8.2f} {mean:8.2f} {p99:8.2f}")
    print(f"  beyond the step    {statistics.median(extra):8.2f}")


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--step-ms", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, steps of {arguments.step_ms} ms")
    report("wall time     ", time.perf_counter_ns, arguments)
    report("processor time", time.thread_time_ns, arguments)


if __name__ == "__main__":
    main()
