"""How long it takes to open a finished run and get the first answers.

Builds a run of TENSORS x STEPS statistics rows whose values are known, then times,
each in a fresh interpreter state of the reader: opening it, the first name, the first
statistics of one tensor, one tensor's history, and the whole table.  Every answer is
checked.  Beside it the least that any reader could do: reading the files' bytes.

    python benchmarks/reader/open_run.py [--tensors 1000] [--steps 100] [--repeat 5]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tdbg import _core
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run
from tdbg.trial import Trial, create_trial


def build(path: Path, n_tensors: int, n_steps: int, close: bool) -> _core.Capture:
    """Write the run: tensor i at step s holds i + s twice."""
    run = create_run(path)
    capture = _core.Capture(
        str(run.path),
        run_uuid=run.uuid,
        attempt_uuid=bytes(16),
        min_free_bytes=0,
    )
    ids = [
        capture.define(f"layer{i:05}.weight", int(Role.WEIGHT), "float64", (2,))
        for i in range(n_tensors)
    ]
    values = np.repeat(np.arange(n_tensors, dtype=np.float64), 2).reshape(-1, 2)
    pointers = [values.ctypes.data + 16 * i for i in range(n_tensors)]
    for step in range(n_steps):
        capture.statistics(step, ids, pointers)
        capture.end_step(step, ModeKeys.TRAIN.value, step)
        values += 1.0
    capture.flush()
    if close:
        capture.close()
    return capture


def read_bytes(path: Path) -> int:
    """The baseline: every byte of the shards, once."""
    return sum(len(file.read_bytes()) for file in path.rglob("*.tds"))


def check(condition: object) -> None:
    if not condition:
        sys.exit("a wrong answer: the figures mean nothing")


def questions(path: Path, n_tensors: int, n_steps: int) -> dict[str, Callable[[], Any]]:
    """What is timed, each from nothing; each checks its answer."""
    last, middle = n_steps - 1, n_tensors // 2
    name = f"layer{middle:05}.weight"

    def names() -> None:
        check(len(create_trial(path).tensor_names()) == n_tensors)

    def first() -> None:
        tensor = create_trial(path).tensor(name)
        check(tensor.reduction_value(last, "mean") == middle + last)

    def history() -> None:
        table = create_trial(path).statistics([name])
        check(table.mean[0].tolist() == [middle + step for step in range(n_steps)])

    def whole() -> None:
        check_table(create_trial(path), n_tensors, n_steps)

    return {
        "read the bytes (baseline)": lambda: read_bytes(path),
        "open": lambda: create_trial(path),
        "open, names": names,
        "open, mean of one tensor at one step": first,
        "open, history of one tensor": history,
        "open, all statistics": whole,
    }


def check_table(trial: Trial, n_tensors: int, n_steps: int) -> None:
    table = trial.statistics()
    expected = np.add.outer(np.arange(n_tensors), np.arange(n_steps))
    check(table.present.all() and np.array_equal(table.mean, expected))
    check(np.array_equal(table.max, expected) and (table.count == 2).all())


def measure(path: Path, n_tensors: int, n_steps: int, repeat: int) -> None:
    for what, ask in questions(path, n_tensors, n_steps).items():
        ask()
        times = []
        for _ in range(repeat):
            started = time.perf_counter()
            ask()
            times.append(1e3 * (time.perf_counter() - started))
        spread = f"{min(times):9.2f} .. {max(times):.2f}"
        print(f"  {what:40} {statistics.median(times):9.2f} ms   ({spread})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    n_tensors, n_steps = arguments.tensors, arguments.steps
    print(f"{platform.processor() or platform.machine()}, {_core.implementation()},")
    print(
        f"Python {platform.python_version()}, NumPy {np.__version__}, page cache warm"
    )
    for close in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            capture = build(path, n_tensors, n_steps, close)
            size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
            state = "closed" if close else "still written"
            rows = n_tensors * n_steps
            print(f"{rows:,} rows, {state}, {size / rows:.0f} bytes a row on disk")
            measure(path, n_tensors, n_steps, arguments.repeat)
            capture.close()


if __name__ == "__main__":
    main()
