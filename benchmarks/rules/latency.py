"""How soon a finding is out, and how soon a training stops because of it.

    python -m benchmarks.rules.latency [--tensors 200] [--faults 100] [--stops 20]

Three questions, each of a process that follows what another one writes, by all rules
with their defaults:

- A process writes a step of so many tensors every 20 ms; now and then one is NaN.  That
  step is flushed, so that the moment from which it is on disk is known.  How long
  until the action is called with the finding?  Every fault must be found.
- A small PyTorch training becomes NaN.  How long, and how many steps, from the end of
  that step until the stop request is written, and until the training has stopped?  Here
  nothing is flushed: the writer's own rhythm is part of the figure.
- A run stands still.  How much of a processor does following it take?
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from benchmarks._harness import Report, Table, check, options
from tdbg import _core, actions
from tdbg.config import Role
from tdbg.errors import TrainingStopped
from tdbg.modes import ModeKeys
from tdbg.rules import Engine
from tdbg.rules.engine.engine import POLL_SECONDS
from tdbg.run.directory import create_run
from tdbg.run.findings import Finding

STEP_SECONDS = 0.02
FAULT_EVERY = 20
IDLE_SECONDS = 10.0
STOP_FAULT = 40


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.quick:
        given.faults, given.stops = 10, 2
    if given.write:
        write(given.write, given.tensors, given.faults)
    elif given.train:
        train(given.train, given.stops)
    else:
        with tempfile.TemporaryDirectory() as folder:
            report(given, Path(folder))


def write(path: Path, n_tensors: int, n_faults: int) -> None:
    """Write steps; print when each fault was on disk."""
    run = create_run(path)
    capture = _core.Capture(
        str(run.path), run_uuid=run.uuid, attempt_uuid=bytes(16), min_free_bytes=0
    )
    random = np.random.default_rng(0)
    values = np.zeros((n_tensors, 16), np.float32)
    ids = [
        capture.define(f"layer{i}.weight", int(Role.WEIGHT), "float32", (16,))
        for i in range(n_tensors)
    ]
    pointers = [values[i : i + 1].ctypes.data for i in range(n_tensors)]
    on_disk = {}
    for step in range((n_faults + 1) * FAULT_EVERY):
        values[:] = random.normal(size=values.shape)
        is_fault = step % FAULT_EVERY == FAULT_EVERY - 1
        if is_fault:
            values[int(random.integers(n_tensors)), 0] = np.nan
        capture.statistics(step, ids, pointers)
        capture.end_step(step, ModeKeys.TRAIN.value, step)
        if is_fault:
            capture.flush()
            on_disk[step] = time.time()
        time.sleep(STEP_SECONDS)
    print(json.dumps(on_disk), flush=True)
    sys.stdin.readline()
    capture.close()


def train(folder: Path, n_runs: int) -> None:
    """Train until stopped, so many times; print what happened when."""
    import torch

    from tdbg.pytorch import Hook

    torch.set_num_threads(1)
    for number in range(n_runs):
        hook = Hook(folder / str(number), include_collections=["weights", "losses"])
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 1))
        hook.register_module(model)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        sick = step = 0
        sick_at = 0.0
        try:
            for step in range(100_000):
                optimizer.zero_grad()
                loss = model(torch.randn(8, 16)).square().mean()
                if step >= STOP_FAULT:
                    loss = loss * float("nan")
                loss.backward()
                optimizer.step()
                if step == STOP_FAULT:
                    sick, sick_at = step, time.time()
                time.sleep(0.002)
        except TrainingStopped:
            stopped_at = time.time()
            found = {"sick": sick_at, "stopped": stopped_at, "steps": step - sick}
            print(json.dumps(found), flush=True)
        hook.close()


def report(given: argparse.Namespace, folder: Path) -> None:
    table = Table(
        f"From a step on disk to a finding, {given.tensors} tensors, all rules",
        ("what", "p50", "p99", "largest"),
    )
    delays, idle = following(given, folder / "live")
    _add(table, "step on disk to finding, ms", [1e3 * x for x in delays])
    stops = stopping(given, folder)
    for what, key in (
        ("step ended to stop request written, ms", "request"),
        ("step ended to training stopped, ms", "stopped"),
    ):
        _add(table, what, [1e3 * (stop[key] - stop["sick"]) for stop in stops])
    after = [1e3 * (stop["stopped"] - stop["request"]) for stop in stops]
    _add(table, "stop request written to training stopped, ms", after)
    _add(table, "steps trained after the fault", [stop["steps"] for stop in stops])
    cost = Table("Following a run that stands still", ("what", "% of a processor"))
    cost.add(f"looking every {1e3 * POLL_SECONDS:.0f} ms", f"{idle:.2f}")
    data = {"delays": delays, "stops": stops, "idle_percent": idle}
    Report("rules/latency", given, tables=[table, cost], data=data).save()


def _add(table: Table, what: str, values: list[float]) -> None:
    shares = (50, 99, 100)
    table.add(what, *(f"{np.percentile(values, share):.3g}" for share in shares))


def following(given: argparse.Namespace, path: Path) -> tuple[list[float], float]:
    """Seconds from disk to finding, and the cost of waiting when all is read."""
    sizes = [f"--tensors={given.tensors}", f"--faults={given.faults}"]
    writer, told, tell = _start("--write", path, *sizes)
    found: dict[int, float] = {}

    class Clock:
        name = "clock"

        def __call__(self, finding: Finding) -> None:
            if finding.rule == "ExplodingTensor" and finding.phase == "begin":
                found.setdefault(finding.step, time.time())

    while not (path / "RUN.json").exists():
        time.sleep(0.01)
    engine = Engine(path, actions=(Clock(),), record=False)
    n_steps = (given.faults + 1) * FAULT_EVERY
    follow = engine.follow()
    while max(found, default=0) < n_steps - 1:
        next(follow)
    on_disk = {int(k): v for k, v in json.loads(told.readline()).items()}
    check(
        found.keys() == on_disk.keys(), f"found {len(found)} of {len(on_disk)} faults"
    )
    started, processor = time.monotonic(), time.process_time()
    while time.monotonic() - started < (1.0 if given.quick else IDLE_SECONDS):
        engine._poll(wait=False)
        time.sleep(POLL_SECONDS)
    share = (time.process_time() - processor) / (time.monotonic() - started)
    tell.write("\n")
    tell.close()
    check(writer.wait() == 0, "the writer failed")
    return [found[step] - on_disk[step] for step in on_disk], 100.0 * share


def stopping(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """When each training became sick, was asked to stop, and stopped."""
    training, told, _ = _start("--train", folder, f"--stops={given.stops}")
    results = []
    for number in range(given.stops):
        path = folder / str(number)
        while not (path / "RUN.json").exists():
            time.sleep(0.005)
        stop = actions.get("stop", path)
        asked: list[float] = []

        class Timed:
            name = "stop"

            def __call__(
                self, finding: Finding, stop: Any = stop, run: Path = path
            ) -> None:
                stop(finding)
                is_written = any((run / "ctl").glob("*.json"))
                if is_written and not asked:  # noqa: B023 - called in this round
                    asked.append(time.time())  # noqa: B023

        engine = Engine(path, actions=(Timed(),))
        for _ in engine.follow():
            pass
        engine.finish()
        line = json.loads(told.readline())
        check(len(asked) == 1, "the training was not asked to stop")
        results.append({**line, "request": asked[0]})
    check(training.wait() == 0, "the training failed")
    return results


def _start(
    what: str, path: Path, *arguments: str
) -> tuple[subprocess.Popen[str], IO[str], IO[str]]:
    """A process, what it prints, and what it reads."""
    process = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, what, str(path), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    check(process.stdout and process.stdin, "there are no pipes")
    return process, cast("IO[str]", process.stdout), cast("IO[str]", process.stdin)


if __name__ == "__main__":
    main()
