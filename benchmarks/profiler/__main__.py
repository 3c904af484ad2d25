"""The profiler against its targets: one table, within ten minutes.

    python -m benchmarks.profiler [--peers FOLDER] [--quick]

Each row is measured by the programs beside this one, which verify what they measure,
and have more: ``always_on``, ``loader``, ``python_lines``, ``sampler``, ``window``.
Costs are processor time, medians over turns in alternation. ``--peers`` is a folder of
``pip install --target FOLDER wandb mlflow-skinny psutil py-spy``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import tdbg.pytorch as td
from benchmarks._harness import Report, Table, check, options
from benchmarks.profiler import always_on, loader, sampler, window
from benchmarks.timeline import export
from tdbg import _core
from tdbg.export import export_perfetto
from tdbg.profiler.system import node_file
from tdbg.run.directory import create_run
from tdbg.trial import create_trial


class Row(NamedTuple):
    """A target and what was measured."""

    what: str
    target: str
    measured: str


# ---- the machine's sampler -------------------------------------------------------


def sampler_rows(*, quick: bool) -> Iterator[Row]:
    rounds, seconds = (1, 1.0) if quick else (7, 3.0)
    with sampler.processes(sampler.RANKS * (1 + sampler.WORKERS)) as pids:
        costs: dict[float, list[float]] = {0.5: [], 0.1: []}
        for _ in range(rounds):
            for interval, found in costs.items():
                found.append(sampler.by_tdbg(pids, interval, seconds))
    for interval, target in ((0.5, "0.1 %, 500 us"), (0.1, "0.5 %")):
        a_second = statistics.median(costs[interval])
        yield Row(
            f"sampler each {1000 * interval:.0f} ms, 8 ranks x 8 workers",
            f"<= {target} a sample" if "us" in target else f"<= {target}",
            f"{a_second / 1e7:.3f} % of a core, {a_second * interval / 1e3:.0f} us",
        )


HOLDER = """
import sys, time
from benchmarks.profiler.__main__ import sampler_in
sampler = sampler_in(sys.argv[1], sys.argv[2])
while not sampler.is_sampling: time.sleep(0.01)
print("samples", flush=True)
time.sleep(600)
"""


def sampler_in(run_folder: str, shared: str) -> Any:
    """A sampler of a run of its own, which shares a node with others."""
    run = create_run(Path(run_folder))
    capture = _core.Capture(
        str(run.path), run_uuid=run.uuid, attempt_uuid=bytes(16), min_free_bytes=0
    )
    return _core.SystemSampler(capture, 0.5, shared)


def replaced_row() -> Row:
    """How long a node has no sampler after the process that had it was killed."""
    with tempfile.TemporaryDirectory() as folder:
        shared = node_file(Path(folder).name.encode())
        other = subprocess.Popen(
            [sys.executable, "-c", HOLDER, f"{folder}/one", shared],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            check(bool(other.stdout and other.stdout.readline()), "another one samples")
            ours = sampler_in(f"{folder}/two", shared)
            time.sleep(1.0)
            check(not ours.is_sampling, "one of a node samples")
        finally:
            other.kill()
            other.wait()
        killed = time.monotonic()
        while not ours.is_sampling and time.monotonic() - killed < 60.0:
            time.sleep(0.01)
        seconds = time.monotonic() - killed
        ours.close()
        Path(shared).unlink(missing_ok=True)
    return Row("a killed sampler is replaced", "<= 10 s", f"{seconds:.1f} s")


# ---- the rest ----------------------------------------------------------------------


def always_on_rows(peers: str, *, quick: bool) -> Iterator[Row]:
    rounds, seconds = (2, 10.0) if quick else (60, 75.0)
    for milliseconds in always_on.MILLISECONDS:
        samples, shares = always_on.compare(milliseconds, peers, rounds, seconds)
        for name in samples.seconds:
            if name not in (always_on.BASELINE, "plain"):
                what = {always_on.OURS: "always on", "control": "... noise"}
                target = "<= 1.01" if name == always_on.OURS else ""
                yield Row(
                    f"{what.get(name, f'... {name}')}, step of {milliseconds} ms",
                    target,
                    f"x{samples.text(name)}",
                )
        yield Row(
            f"time in named phases, step of {milliseconds} ms",
            ">= 95 %",
            f"{100 * shares['named']:.1f} %",
        )


def window_rows(*, quick: bool) -> Iterator[Row]:
    torch.set_num_threads(1)
    for batch_size in (window.SHORT, window.LONG):
        step = window.plain_ms(batch_size)
        with tempfile.TemporaryDirectory() as folder:
            costs, within = window.of_windows(
                2 if quick else 12, Path(folder) / "run", batch_size
            )
        yield Row(
            f"window of 5 steps: 3,600 operators in {step:.1f} ms",
            "x1.5 within, <= 1 % at 1,000 steps",
            f"x{statistics.median(within):.2f} within, "
            f"{statistics.median(costs) / 10:.2f} %",
        )


def budget_row(*, quick: bool) -> Row:
    """What windows cost that are due every 40 steps, with the default budget."""
    torch.set_num_threads(1)
    training = window.Training()
    asked = td.WindowConfig(
        start_step=window.EVERY, num_steps=window.STEPS, every=window.EVERY
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        start = time.monotonic()
        with td.Hook(run, profiler=td.ProfilerConfig(windows=[asked])) as hook:
            hook.register_module(training.model)
            while time.monotonic() - start < (15.0 if quick else 40.0):
                training.train(window.EVERY)
        seconds = time.monotonic() - start
        costs = [each.cost_ns for each in create_trial(run).profile.windows()]
        ended = [each / 1e9 for each in costs if each > 0]
    check(len(ended) >= 1, "windows have ended")
    return Row(
        "... as often as the budget lets them",
        "<= 1 %",
        f"{len(ended)} in {seconds:.0f} s, {100 * sum(ended) / seconds:.2f} %",
    )


def volume_row(*, quick: bool) -> Row:
    """What runs of 10 steps a second grow by, with the profiler and without."""
    n = 20 if quick else 100
    longer, shorter = (
        _size_of_run(2 * n, profiler=True) - _size_of_run(2 * n, profiler=False),
        _size_of_run(n, profiler=True) - _size_of_run(n, profiler=False),
    )
    check(longer > shorter > 0, "longer runs are larger")
    megabytes = (longer - shorter) / (n / 10) * 3600 / 1e6
    return Row(
        "data of a rank and its node, 10 steps a second",
        "<= 10 MB/h a rank, 12 a node",
        f"{megabytes:.1f} MB/h together",
    )


def _size_of_run(n_steps: int, *, profiler: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        run, model = Path(folder) / "run", nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with td.Hook(run, profiler=profiler) as hook:
            hook.register_module(model)
            for _ in range(n_steps):
                model(torch.ones(1, 8)).sum().backward()
                optimizer.step()
                time.sleep(0.1)
        return sum(each.stat().st_size for each in run.rglob("*") if each.is_file())


def advice_row(*, quick: bool) -> Row:
    """The largest error of a share of waiting that one worker's rows predict."""
    with tempfile.TemporaryDirectory() as folder:
        hook = td.Hook(Path(folder) / "run", profiler=False)
        n = 24 if quick else 80
        found = {each: loader.waits(hook._session, each, n) for each in loader.WORKERS}
        hook.close()
    _, fetch, rest = found[1]
    errors = [
        abs(share - loader.predicted(n_workers, fetch, rest))
        for n_workers, (share, *_) in found.items()
    ]
    return Row("waiting predicted for 0 to 4 workers", "10 points", _points(errors))


def _points(errors: list[float]) -> str:
    return f"{100 * max(errors):.0f} points at most"


def timeline_row() -> Row:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        export.write_run(run, 10_000)
        start = time.perf_counter()
        report = export_perfetto(run, Path(folder) / "timeline")
        seconds = time.perf_counter() - start
    return Row(
        f"timeline of an hour, {report.slices:,} slices",
        "< 5 MB, < 5 s",
        f"{report.n_bytes / 1e6:.1f} MB, {seconds:.1f} s",
    )


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Measure everything, one after the other."""
    quick = given.quick
    yield from sampler_rows(quick=quick)
    yield replaced_row()
    yield from always_on_rows(given.peers, quick=quick)
    yield from window_rows(quick=quick)
    yield budget_row(quick=quick)
    yield volume_row(quick=quick)
    yield advice_row(quick=quick)
    yield timeline_row()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--peers", default="", help="folder of pip install --target")
    given = parser.parse_args()
    table = Table("The profiler's targets", ("what", "target", "measured"))
    for row in rows(given):
        print(f"{row.what}: {row.measured}", file=sys.stderr, flush=True)
        table.add(*row)
    Report("profiler/targets", given, ("torch", "tdbg"), tables=[table]).save()


if __name__ == "__main__":
    main()
