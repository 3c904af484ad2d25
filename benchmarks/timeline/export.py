"""Size and time of the timeline of an hour with 100,000 slices.

    python -m benchmarks.timeline.export [--steps 10000] [--repeat 3]

The run has steps of 0.36 s with eight phases each, and a sample of the host every half
second: what a training of an hour records.  Prints a line of JSON.  The limits are 5 MB
and 5 s.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg import _core
from tdbg.export import export_chrome, export_perfetto
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run
from tdbg.run.profile_tables import (
    PHASE_COLUMNS,
    STEP,
    SYSTEM,
    Phase,
    table_name,
    written_columns,
)

HOUR_NS = 3_600_000_000_000
PHASES = (
    Phase.DATA_WAIT, Phase.COPY, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER,
    Phase.GC, Phase.CAPTURE, Phase.COMMUNICATION, Phase.OTHER,
)  # fmt: skip


def step_rows(n: int) -> NDArray[Any]:
    """Steps that follow each other for an hour, with phases of random lengths."""
    random = np.random.default_rng(0)
    duration = HOUR_NS // n
    rows = np.zeros(n, STEP)
    rows["time"] = duration * np.arange(1, n + 1)
    rows["global_step"] = rows["mode_step"] = np.arange(n)
    rows["mode"], rows["duration_ns"] = ModeKeys.TRAIN.value, duration
    shares = random.dirichlet(np.ones(len(PHASES)), n)
    parts = np.maximum(shares * duration, 1).astype(np.int64)
    parts[:, -1] += duration - parts.sum(axis=1)
    for i, phase in enumerate(PHASES):
        rows[PHASE_COLUMNS[phase]] = parts[:, i]
    return rows


def system_rows() -> NDArray[Any]:
    """Samples of the host, two a second."""
    random = np.random.default_rng(1)
    rows = np.zeros(7200, SYSTEM)
    rows["time"] = 500_000_000 * np.arange(1, 7201)
    for column in ("cpu_user", "cpu_system", "cpu_iowait", "allowed_busy"):
        rows[column] = random.random(7200)
    rows["memory_total"] = rows["cgroup_limit"] = 1 << 36
    rows["memory_available"] = random.integers(0, 1 << 36, 7200)
    rows["cgroup_memory"] = random.integers(0, 1 << 36, 7200)
    return rows


def write_run(path: Path, n_steps: int) -> None:
    """Write the run."""
    run = create_run(path)
    capture = _core.Capture(
        str(run.path), run_uuid=run.uuid, attempt_uuid=b"attempt-number-0"
    )
    loss = capture.define("loss", 7)
    for table, rows in (("step", step_rows(n_steps)), ("system", system_rows())):
        for part in np.array_split(rows, 100):
            capture.samples(table_name(table), written_columns(rows.dtype), part)
    for step in range(n_steps):
        capture.scalar(step, loss, 1.0 / (step + 1), 1)
        capture.end_step(step, ModeKeys.TRAIN.value, step)
    capture.close(timeout=60.0)


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_run(run, arguments.steps)
        found: dict[str, Any] = {}
        for name, export in (("perfetto", export_perfetto), ("chrome", export_chrome)):
            seconds = []
            for _ in range(arguments.repeat):
                start = time.perf_counter()
                report = export(run, Path(folder) / name)
                seconds.append(time.perf_counter() - start)
            found[name] = {
                "seconds": round(float(np.median(seconds)), 3),
                "megabytes": round(report.n_bytes / 1e6, 3),
                "slices": report.slices,
                "values": report.values,
            }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
