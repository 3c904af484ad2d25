"""Envelopes of a large run: processor time, memory, and whether all spikes are found.

    python -m benchmarks.reader.envelope [--quick]

1,000 tensors x 10,000 steps of statistics, 10^7 rows (with ``--quick`` a tenth of the
steps), in which 11 rows are a thousand times as large and one has a NaN, page cache
warm.  Each question is put to a reader in a process of its own, several times, and
then the same without indexes, as if the cells had to be made of rows.  At each of many
zooms, around each of the twelve and of the whole, all that lie in the range are looked
for in the column of their step, and nowhere else: a single one that is missing ends
the program.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._harness import Report, Table, check, options
from tdbg import _core
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run
from tdbg.trial import ENVELOPE_FIELDS, Envelope, Statistics, Trial, create_trial

N_TENSORS, N_STEPS, N_SPIKES, ELEMENTS = 1000, 10_000, 11, 8

Marks = list[tuple[int, int]]  # Tensor and step.


def main() -> None:
    given = options(__doc__).parse_args()
    n_steps = N_STEPS // 10 if given.quick else N_STEPS
    rounds = given.rounds or (3 if given.quick else 15)
    table = Table(
        f"Envelopes of {N_TENSORS:,} tensors over {n_steps:,} steps",
        ("what", "columns", "first, ms", "again, ms", "memory, MB"),
        note="Processor time, and the most memory of the process.",
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        spikes, bad = build(path, N_TENSORS, n_steps, given.seed or 1)
        n_zooms = look_everywhere(create_trial(path), n_steps, spikes, bad)
        index = sum(file.stat().st_size for file in path.rglob("*.tdi"))
        shards = sum(file.stat().st_size for file in path.rglob("*.tds"))
        asked = questions(n_steps)
        found = {name: measure(path, name, n_steps, rounds) for name in asked}
        for file in path.rglob("*.tdi"):
            file.unlink()
        n_zooms += look_everywhere(create_trial(path), n_steps, spikes, bad)
        name = next(iter(asked))
        found[f"{name}, no index"] = measure(path, name, n_steps, rounds)
    for what, one in found.items():
        first, *rest = (1e3 * second for second in one["seconds"])
        again = f"{np.median(rest):.3g} ({min(rest):.3g}-{max(rest):.3g})"
        memory = f"{one['memory']:.0f}"
        table.add(what, one["columns"], f"{first:.3g}", again, memory)
    print(f"{shards / 1e9:.2f} GB of shards, {index / 1e9:.2f} GB of indexes")
    print(f"all of {len(spikes)} spikes and {len(bad)} NaN found in {n_zooms} zooms")
    Report("reader/envelope", given, tables=[table], data=found).save()


def build(path: Path, n_tensors: int, n_steps: int, seed: int) -> tuple[Marks, Marks]:
    """Write the run; returns where rows are large, and where one has a NaN."""
    dice = np.random.default_rng(seed)
    at = dice.permutation(n_tensors * n_steps)[: N_SPIKES + 1].tolist()
    marks = [divmod(number, n_steps) for number in sorted(at)]
    bad, spikes = marks[:1], marks[1:]
    run = create_run(path)
    capture = _core.Capture(
        str(run.path), run_uuid=run.uuid, attempt_uuid=bytes(16), min_free_bytes=0
    )
    ids = [
        capture.define(f"layer{i:05}.weight", int(Role.WEIGHT), "float32", (ELEMENTS,))
        for i in range(n_tensors)
    ]
    base = dice.normal(size=(n_tensors, ELEMENTS)).astype(np.float32)
    base /= np.linalg.norm(base, axis=1, keepdims=True)  # Every row has l2 1.
    values = base.copy()
    pointers = [values.ctypes.data + 4 * ELEMENTS * i for i in range(n_tensors)]
    for step in range(n_steps):
        of_step = [(tensor, large) for tensor, large in spikes if large == step]
        for tensor, _ in of_step:
            values[tensor] *= 1000
        values[[tensor for tensor, first in bad if first == step], 3] = np.nan
        capture.statistics(step, ids, pointers)
        capture.end_step(step, ModeKeys.TRAIN.value, step)
        values[:] = base
    capture.flush()
    capture.close()
    return spikes, bad


def look_everywhere(trial: Trial, n_steps: int, spikes: Marks, bad: Marks) -> int:
    """Look for all marks at many zooms; returns at how many."""
    names = trial.tensor_names()
    n = 0
    ranges = [(0, n_steps, columns) for columns in (1, 10, 64, 157, 300, 1000)]
    for _, step in spikes + bad:
        width = n_steps // 2
        while width >= 10:
            first = max(0, step - width // 3)
            ranges.append((first, min(n_steps, first + width), 200))
            width //= 3
    for first, stop, columns in ranges:
        for quick in (False, True):
            found = trial.envelope(
                names, start=first, stop=stop, columns=columns, quick=quick
            )
            check(len(found.edges) - 1 <= columns, "too many columns")
            find(found, spikes, bad)
            n += 1
    return n


def find(found: Envelope, spikes: Marks, bad: Marks) -> None:
    """All marks are in their columns, and nothing else is anywhere."""
    edges = found.edges

    def cells(marks: Marks) -> set[tuple[int, int]]:
        return {
            (tensor, int(np.searchsorted(edges, step, side="right")) - 1)
            for tensor, step in marks
            if edges[0] <= step < edges[-1]
        }

    high = set(map(tuple, np.argwhere(found.high["l2"] > 500).tolist()))
    check(high == cells(spikes), "a spike is missing, or elsewhere")
    holes = set(map(tuple, np.argwhere(found.bad > 0).tolist()))
    check(holes == cells(bad), "a NaN is missing, or elsewhere")
    several = found.low["l2"][found.rows > 1]
    check((several <= 1.001).all(), "the other rows are not there")
    n_rows = len(found.names) * int(edges[-1] - edges[0])
    check(found.rows.sum() == n_rows, "rows are missing")


Question = Callable[[Trial, list[str]], Envelope | Statistics]


def questions(n_steps: int) -> dict[str, Question]:
    """What is timed, by name; the first one is what a first screen asks."""
    return {
        "all tensors, quick": lambda t, names: t.envelope(names, quick=True),
        "all tensors, quick, six fields": lambda t, names: t.envelope(
            names, quick=True, fields=ENVELOPE_FIELDS
        ),
        "all tensors, of every row": lambda t, names: t.envelope(names, columns=1000),
        "all tensors, a tenth of the steps": lambda t, names: t.envelope(
            names, start=n_steps * 9 // 10, columns=1000
        ),
        "all tensors, the newest 100 steps": lambda t, names: t.envelope(
            names, start=n_steps - 100
        ),
        "20 tensors, of every row": lambda t, names: t.envelope(names[:20]),
        "one tensor, of every row": lambda t, names: t.envelope(names[:1]),
        "all tensors, statistics of one step": lambda t, names: t.statistics(
            names, start=n_steps // 2, end=n_steps // 2 + 1
        ),
    }


def measure(path: Path, name: str, n_steps: int, rounds: int) -> dict[str, Any]:
    """Ask one question again and again, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=ask, args=(path, name, n_steps, rounds, theirs))
    process.start()
    theirs.close()
    try:
        found: dict[str, Any] = ours.recv()
    finally:
        process.join()
    return found


def ask(path: Path, name: str, n_steps: int, rounds: int, answer: Connection) -> None:
    """Send processor times of opening and asking, then of asking again, and memory."""
    question = questions(n_steps)[name]
    seconds = []
    started = time.process_time()
    trial = create_trial(path)
    names = trial.tensor_names()
    for _ in range(rounds + 1):
        found = question(trial, names)
        seconds.append(time.process_time() - started)
        started = time.process_time()
    # Not getrusage: its maximum is that of the process before it was this program.
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    memory = int(line.split()[1]) * 1024 / 1e6
    columns = len(found.edges) - 1 if isinstance(found, Envelope) else len(found.steps)
    answer.send({"seconds": seconds, "memory": memory, "columns": columns})


if __name__ == "__main__":
    main()
