"""Profiles of made-up trainings, as rows: loader-bound, healthy, of several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from run_builder import RunBuilder
from tdbg.run.profile_tables import (
    COLLECTIVE,
    GPU,
    LOADER,
    NOT_MEASURED,
    PHASE_COLUMNS,
    STEP,
    SYSTEM,
    Phase,
    core_type,
)

__all__ = [
    "HEALTHY",
    "LOADER_BOUND",
    "MS",
    "Plan",
    "Tables",
    "profiled_run",
    "tables_of",
]

MS = 1_000_000
SECOND = 1_000_000_000
#: A training in which data come in time, and one that waits for them, in ms.
HEALTHY = {
    Phase.DATA_WAIT: 0.4,
    Phase.FORWARD: 9.0,
    Phase.BACKWARD: 17.0,
    Phase.OPTIMIZER: 3.0,
    Phase.CAPTURE: 0.2,
    Phase.OTHER: 1.0,
}
LOADER_BOUND = {**HEALTHY, Phase.DATA_WAIT: 60.0}


@dataclass(frozen=True)
class Plan:
    """What a training did.

    Attributes:
        phases: Of a step: milliseconds of each phase.
        n_steps: Training steps.
        rank: Of the training.
        began_ns: When its first step began, by the monotonic clock.
        slow: By training step: further milliseconds in "other code".
        workers: Of its data loader.
        fetch_ms: How long they take for a batch; 0: nothing is known of a loader.
        lateness_ms: How much later than the first rank it comes to a collective.
        n_cores: Of its machine; 0: nothing is known of it.
        n_gpus: Of its machine.
        leak: Bytes a second by which the memory of its control group grows.
    """

    phases: Mapping[Phase, float] = field(default_factory=lambda: HEALTHY)
    n_steps: int = 400
    rank: int = 0
    began_ns: int = 1000 * SECOND
    slow: Mapping[int, float] = field(default_factory=dict)
    workers: int = 2
    fetch_ms: float = 40.0
    lateness_ms: float | None = None
    n_cores: int = 4
    n_gpus: int = 0
    leak: float = 0.0


Tables = dict[str, NDArray[Any]]


def tables_of(plan: Plan, seed: int = 0) -> Tables:
    """The rows of each table of a training; GPUs are under ``gpu/<number>``."""
    random = np.random.default_rng(seed + plan.rank)
    steps = _steps(plan, random)
    found = {"step": steps}
    if plan.fetch_ms:
        found["loader"] = _loader(plan, steps, random)
    if plan.lateness_ms is not None:
        found["collective"] = _collectives(plan, steps)
    if plan.n_cores:
        first = plan.began_ns - 3 * SECOND
        times = np.arange(first, int(steps["time"][-1]) + SECOND, SECOND // 2)
        found["core"] = _cores(plan, times, random)
        found["system"] = _system(plan, times)
        for i in range(plan.n_gpus):
            found[f"gpu/{i}"] = _gpu(i, times, random)
    return found


def _steps(plan: Plan, random: np.random.Generator) -> NDArray[Any]:
    rows = np.zeros(plan.n_steps, STEP)
    for phase, ms in plan.phases.items():
        spread = random.normal(1.0, 0.04, plan.n_steps).clip(0.5, 1.5)
        rows[PHASE_COLUMNS[phase]] = (ms * MS * spread).astype(np.int64)
    for step, ms in plan.slow.items():
        rows[PHASE_COLUMNS[Phase.OTHER]][step] += int(ms * MS)
    rows["duration_ns"] = sum(rows[column] for column in PHASE_COLUMNS.values())
    rows["time"] = plan.began_ns + np.cumsum(rows["duration_ns"])
    rows["global_step"] = rows["mode_step"] = np.arange(plan.n_steps)
    rows["mode"], rows["micro_batches"], rows["samples"] = 1, 1, 64
    for name in ("tokens", "copied_bytes", "gpu_ns", "dry_borders", "borders"):
        rows[name] = -1
    return rows


def _loader(
    plan: Plan, steps: NDArray[Any], random: np.random.Generator
) -> NDArray[Any]:
    rows = np.zeros(len(steps), LOADER)
    wait = steps[PHASE_COLUMNS[Phase.DATA_WAIT]]
    rows["time"] = steps["time"] - steps["duration_ns"] + wait
    rows["worker"] = np.arange(len(steps)) % max(1, plan.workers)
    rows["capacity"], rows["workers"] = 2 * plan.workers, plan.workers
    is_late = wait > 5 * MS
    rows["depth"] = np.where(is_late, 0, 2 * plan.workers)
    rows["wait_ns"], rows["samples"], rows["bytes"] = wait, 64, 64 * 3072
    spread = random.normal(1.0, 0.1, len(steps)).clip(0.5, 2.0)
    rows["fetch_ns"] = (plan.fetch_ms * MS * spread).astype(np.int64)
    rows["fetch_cpu_ns"] = rows["fetch_ns"] * 9 // 10
    return rows


def _collectives(plan: Plan, steps: NDArray[Any]) -> NDArray[Any]:
    rows = np.zeros(len(steps), COLLECTIVE)
    rows["time"], rows["global_step"] = steps["time"], steps["global_step"]
    rows["sequence"] = np.arange(len(steps))
    assert plan.lateness_ms is not None
    rows["duration_ns"] = int((25.0 - plan.lateness_ms) * MS)
    rows["exposed_ns"], rows["bytes"] = rows["duration_ns"], 1 << 20
    return rows


def _cores(
    plan: Plan, times: NDArray[np.int64], random: np.random.Generator
) -> NDArray[Any]:
    rows = np.zeros(len(times), core_type(plan.n_cores))
    rows["time"] = times
    level = np.linspace(180, 40, plan.n_cores)
    busy = random.normal(level, 12, (len(times), plan.n_cores)).clip(0, 200)
    rows["busy"] = busy.astype(np.uint8)
    rows["busy"][: len(times) // 12, -1] = 255
    return rows


def _system(plan: Plan, times: NDArray[np.int64]) -> NDArray[Any]:
    rows = np.zeros(len(times), SYSTEM)
    for name in rows.dtype.names or ():
        if rows.dtype[name] == np.dtype("<u8"):
            rows[name] = NOT_MEASURED
    rows["time"] = times
    rows["cpu_user"], rows["cpu_system"], rows["allowed_busy"] = 0.5, 0.05, 0.6
    rows["allowed_cores"] = plan.n_cores
    rows["memory_total"], rows["memory_available"] = 64_000_000_000, 40_000_000_000
    grown = (times - times[0]) / SECOND * plan.leak
    rows["cgroup_memory"] = (8e9 + grown).astype(np.uint64)
    rows["cgroup_limit"] = 16_000_000_000
    return rows


def _gpu(
    number: int, times: NDArray[np.int64], random: np.random.Generator
) -> NDArray[Any]:
    rows = np.zeros(len(times), GPU)
    rows["time"], rows["index"] = times, number
    rows["busy"] = random.normal(0.8, 0.1, len(times)).clip(0, 1)
    rows["power_watt"] = 300.0
    rows["energy_mj"] = (times - times[0]) // 1_000_000 * 300
    rows["memory_used"], rows["memory_total"] = 30_000_000_000, 80_000_000_000
    return rows


def profiled_run(path: Path, plans: Sequence[Plan]) -> None:
    """A finished run of these trainings, one a rank, with a loss every tenth step."""
    for plan in plans:
        tables = tables_of(plan)
        with RunBuilder(path, rank=plan.rank, world_size=len(plans)) as run:
            for step in range(plan.n_steps):
                if step % 10 == 0:
                    run.scalar(step, "loss", 1 / (1 + step / 100))
                run.end_step(step)
            for name, rows in tables.items():
                table, _, instance = name.partition("/")
                run.samples(table, rows, instance)
