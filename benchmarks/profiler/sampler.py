"""What it costs to sample the machine: 8 ranks of 8 loader workers each.

    python -m benchmarks.profiler.sampler [--quick] [--seconds 4] [--rounds 7]

Each contender samples for some seconds, at 500 ms and at 100 ms, one after the other
in random order, and again in each round.  The cost is the processor time of the
threads that sample, or for wandb that of the process which does, for each second.

They do not measure the same:

- ``tdbg``: all of docs/profiler-system.md, the 72 processes included.  Ranks are read
  at each sample, loader workers in turn, 5 at a sample.
- ``psutil, all processes``: what psutil has of that, by its Python functions; all 72
  processes at each sample.
- ``psutil, the host``: the same without the processes.
- ``MLflow``: processor, memory, disk and network of the host; its monitors as they are.
- ``wandb``: the same and the process itself, in a process of its own.

What tdbg wrote is compared with what psutil reads before and behind it.  Contenders
whose package is not installed are left out: wandb==0.31.0, mlflow-skinny, psutil.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks._harness import Report, Table, check, options
from tdbg import _core
from tdbg.run.directory import create_run
from tdbg.run.profile_tables import ProcessKind
from tdbg.trial import create_trial

RANKS, WORKERS = 8, 8
INTERVALS = (0.5, 0.1)

Cost = Callable[[float, float], float]
"""Samples at an interval for some seconds; returns ns of processor time a second."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    rounds = given.rounds or (2 if given.quick else 7)
    seconds = 1.0 if given.quick else given.seconds
    order = random.Random(given.seed)
    with processes(RANKS * (1 + WORKERS)) as pids:
        contenders = contenders_of(pids)
        found: dict[tuple[str, float], list[float]] = {}
        for number in range(rounds + 1):
            turns = [(name, each) for name in contenders for each in INTERVALS]
            order.shuffle(turns)
            for name, interval in turns:
                cost = contenders[name](interval, seconds)
                if number > 0:  # The first round warms up.
                    found.setdefault((name, interval), []).append(cost)
    report(given, contenders, found).save()


def report(
    given: argparse.Namespace, contenders: dict[str, Cost], found: dict[Any, Any]
) -> Report:
    """The cost of each contender: median and quartiles over the rounds."""
    table = Table(
        "Sampling the machine: processor time a second",
        (
            "what",
            *(f"each {1000 * each:.0f} ms" for each in INTERVALS),
            "share of a core",
        ),
        note="Median over the rounds, quartiles in brackets.",
    )
    for name in contenders:
        cells = []
        for interval in INTERVALS:
            low, mid, high = np.percentile(found[name, interval], [25, 50, 75]) / 1e3
            cells.append(f"{mid:,.0f} us [{low:,.0f}, {high:,.0f}]")
        share = np.median(found[name, INTERVALS[0]]) / 1e9
        table.add(name, *cells, f"{100 * share:.3f} %")
    data = {f"{name} {each}": costs for (name, each), costs in found.items()}
    packages = ("tdbg", "psutil", "wandb", "mlflow-skinny")
    return Report("profiler/sampler", given, packages, [table], data=data)


@contextlib.contextmanager
def processes(n: int) -> Iterator[list[int]]:
    """So many processes that sleep."""
    started = [subprocess.Popen(["/bin/sleep", "100000"]) for _ in range(n)]
    try:
        yield [each.pid for each in started]
    finally:
        for each in started:
            each.kill()
            each.wait()


def contenders_of(pids: list[int]) -> dict[str, Cost]:
    """Those whose packages are installed."""
    found: dict[str, Cost] = {
        "tdbg": lambda *how: by_tdbg(pids, *how),
        "psutil, all processes": lambda *how: by_thread(psutil_sample(pids), *how),
        "psutil, the host": lambda *how: by_thread(psutil_sample([]), *how),
    }
    with contextlib.suppress(ImportError):
        of_mlflow = mlflow_sample()
        found["MLflow"] = lambda *how: by_thread(of_mlflow, *how)
    with contextlib.suppress(ImportError):
        found["wandb"] = by_wandb(importlib.import_module("wandb"))
    return found


# --- tdbg -----------------------------------------------------------------------


def by_tdbg(pids: list[int], interval: float, seconds: float) -> float:
    """The cost of the core's sampler, whose figures are checked."""
    with tempfile.TemporaryDirectory() as folder:
        run = create_run(Path(folder) / "run")
        capture = _core.Capture(
            str(run.path), run_uuid=run.uuid, attempt_uuid=bytes(16), min_free_bytes=0
        )
        before = totals()
        sampler = _core.SystemSampler(capture, interval)
        for number, pid in enumerate(pids):
            rank, worker = divmod(number, 1 + WORKERS)
            kind = ProcessKind.LOADER_WORKER if worker else ProcessKind.RANK
            sampler.add_process(pid, rank, kind, worker - 1)
        # What it finds once, at its start, is no cost of a second.
        time.sleep(2 * interval)
        start, start_ns = sampler.cpu_ns, time.monotonic_ns()
        time.sleep(seconds)
        cost = (sampler.cpu_ns - start) / ((time.monotonic_ns() - start_ns) / 1e9)
        sampler.close()
        after = totals()
        capture.close()
        verify(Path(folder) / "run", pids, before, after)
    return cost


def totals() -> dict[str, int]:
    """Counters that only rise, by psutil."""
    found = {}
    for name, disk in psutil.disk_io_counters(perdisk=True).items():
        found[f"{name} read"] = disk.read_bytes
        found[f"{name} written"] = disk.write_bytes
    for name, net in psutil.net_io_counters(pernic=True).items():
        found[f"{name} received"] = net.bytes_recv
    return found


def verify(
    run: Path, pids: list[int], before: dict[str, int], after: dict[str, int]
) -> None:
    """Compare the last rows with what psutil has read around them."""
    profile = create_trial(run).profile
    system, cores = profile.system()[-1], profile.cores()
    check(int(system["memory_total"]) == psutil.virtual_memory().total, "memory")
    check(cores["busy"].shape[1] == psutil.cpu_count(), "number of cores")
    check(set(profile.processes()["pid"]) <= set(pids), "processes")
    ranks = pids[:: 1 + WORKERS]
    check(set(ranks) <= set(profile.processes()["pid"]), "ranks")
    for row in profile.disks()[-len(set(profile.disks()["instance"])) :]:
        name = row["instance"]
        for column, what in (("read_bytes", "read"), ("write_bytes", "written")):
            key = f"{name} {what}"
            check(before[key] <= row[column] <= after[key], key)
    for row in profile.networks()[-len(set(profile.networks()["instance"])) :]:
        key = f"{row['instance']} received"
        check(before[key] <= row["received_bytes"] <= after[key], key)


# --- Samplers in Python -----------------------------------------------------------


def by_thread(sample: Callable[[], object], interval: float, seconds: float) -> float:
    """The cost of a Python thread that calls *sample*."""
    spent = []

    def loop() -> None:
        sample()
        start, end = time.thread_time_ns(), time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(interval)
            sample()
        spent.append((time.thread_time_ns() - start) / seconds)

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    return spent[0]


def psutil_sample(pids: list[int]) -> Callable[[], object]:
    """What psutil has of the figures that tdbg takes."""
    followed = [psutil.Process(pid) for pid in pids]

    def sample() -> None:
        psutil.cpu_times(percpu=True)
        psutil.virtual_memory()
        psutil.swap_memory()
        psutil.disk_io_counters(perdisk=True)
        psutil.net_io_counters(pernic=True)
        for each in followed:
            with each.oneshot():
                each.status()
                each.cpu_times()
                each.memory_info()
                each.num_threads()
            each.io_counters()

    return sample


def mlflow_sample() -> Callable[[], object]:
    """MLflow's monitors, as its own thread calls them."""
    metrics = "mlflow.system_metrics.metrics"
    monitors = [
        importlib.import_module(f"{metrics}.cpu_monitor").CPUMonitor(),
        importlib.import_module(f"{metrics}.disk_monitor").DiskMonitor(),
        importlib.import_module(f"{metrics}.network_monitor").NetworkMonitor(),
    ]

    def sample() -> None:
        for each in monitors:
            each.collect_metrics()
            each.aggregate_metrics()
            each.clear_metrics()

    return sample


def run_ns(pid: int) -> int:
    """Processor time of the threads of a process."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads)


def by_wandb(wandb: Any) -> Cost:
    """The cost of wandb's process, less what it costs without its statistics."""
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")

    def spent(seconds: float, **settings: Any) -> float:
        with tempfile.TemporaryDirectory() as folder:
            run = wandb.init(
                dir=folder, settings=wandb.Settings(console="off", **settings)
            )
            cores = [
                each
                for each in psutil.Process().children(recursive=True)
                if "wandb-core" in " ".join(each.cmdline())
            ]
            check(bool(cores), "wandb has a process of its own")
            time.sleep(1.0)
            start = sum(run_ns(each.pid) for each in cores)
            time.sleep(seconds)
            end = sum(run_ns(each.pid) for each in cores)
            run.finish()
        return (end - start) / seconds

    def cost(interval: float, seconds: float) -> float:
        with_them = spent(seconds, x_stats_sampling_interval=interval)
        return max(0.0, with_them - spent(seconds, x_disable_stats=True))

    return cost


if __name__ == "__main__":
    main()
