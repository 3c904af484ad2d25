"""What long runs cost whoever reads them: processor time, memory, and its growth.

    python -m benchmarks.reader.long_runs [--quick] [--only steps,rules,names,...]

Runs of 10^5 and 10^6 steps of two tensors and a scalar, of 10^5 steps of what rules of
losses and data go by, of 100,000 names, and of 20,000 writers (with ``--quick`` a
fiftieth of each): what ``tdbg ls``, ``show`` and ``check`` take of the processor, and
at most of memory, each in a process of its own.
Then a run that is written while a trial is refreshed, and while an engine judges it:
by how many bytes a step each grows, from a fifth of the steps on.  Every answer is
checked.  ``--python`` measures another tdbg: it is the command that runs Python with
it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from benchmarks._harness import Report, Table, check, check_equal, options
from tdbg import _core
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run

NAMES = ("fc.weight", "gradient/fc.weight", "scalar/loss")
WHAT = ("steps", "rules", "names", "writers", "live")
# Of a classifier; its batches come again after so many.
BATCH, N_BATCHES = 32, 997
CLASSIFIER: list[tuple[str, Role, str, tuple[int, ...]]] = [
    ("Model_input_0", Role.MODEL_INPUT, "float32", (BATCH, 4)),
    ("CrossEntropyLoss_input_1", Role.LABEL, "int64", (BATCH,)),
    ("CrossEntropyLoss_output_0", Role.LOSS, "float32", ()),
    ("fc.weight", Role.WEIGHT, "float32", (4, 4)),
    ("gradient/fc.weight", Role.GRADIENT, "float32", (4, 4)),
    ("update/fc.weight", Role.UPDATE, "float32", (4, 4)),
]
# Questions of the live reader, evenly over the run.
POLLS = 50


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", default=",".join(WHAT), help="which runs")
    parser.add_argument("--python", default=sys.executable, help="the tdbg to measure")
    parser.add_argument("--follow", nargs=2, help="(inside) what to follow, and how")
    given = parser.parse_args()
    if given.follow:
        follow(Path(given.follow[0]), given.follow[1])
        return
    python = shlex.split(given.python)
    less = 50 if given.quick else 1
    table = Table("Long runs", ("run", "what", "processor, s", "memory, MB"))
    growth = Table("Growth while it is written", ("what", "bytes a step"))
    only = given.only.split(",")
    with tempfile.TemporaryDirectory() as folder:
        if "steps" in only:
            for n in (100_000 // less, 1_000_000 // less):
                measure_steps(Path(folder) / f"steps-{n}", n, python, table)
        if "rules" in only:
            measure_rules(Path(folder) / "rules", 100_000 // less, python, table)
        if "names" in only:
            measure_names(Path(folder) / "names", 100_000 // less, python, table)
        if "writers" in only:
            measure_writers(Path(folder) / "writers", 20_000 // less, python, table)
        if "live" in only:
            for how in ("trial", "engine"):
                n_bytes = grow(Path(folder) / how, how, 1_000_000 // less, python)
                growth.add(f"a {how}", f"{n_bytes:.0f}")
    Report("reader/long_runs", given, tables=[table, growth]).save()


class Writing:
    """Writes steps: of step s the tensors hold s and -s, the scalar is 1 / (s + 1)."""

    def __init__(self, path: Path, names: tuple[str, ...] = NAMES[:2], **identity: Any):
        run = create_run(path)
        self.capture = _core.Capture(
            str(run.path),
            run_uuid=run.uuid,
            min_free_bytes=0,
            **{"attempt_uuid": bytes(16), **identity},
        )
        roles = [Role.GRADIENT if "gradient/" in n else Role.WEIGHT for n in names]
        self._ids = [
            self.capture.define(name, int(role), "float64", (2,))
            for name, role in zip(names, roles, strict=True)
        ]
        self._scalar = self.capture.define(NAMES[2], int(Role.SCALAR))
        self._values = np.zeros((len(names), 2))
        self._pointers = [row.ctypes.data for row in self._values]

    def write(self, start: int, stop: int) -> None:
        """The steps ``start <= step < stop``, as far as a reader must see them."""
        values, capture, mode = self._values, self.capture, ModeKeys.TRAIN.value
        for step in range(start, stop):
            values[:, 0], values[:, 1] = step, -step
            capture.statistics(step, self._ids, self._pointers)
            capture.scalar(step, self._scalar, 1 / (step + 1), 1)
            capture.end_step(step, mode, step, duration_ns=10**7 + step % 1000)
        capture.flush()


def write_steps(path: Path, n: int) -> None:
    """A finished run of so many steps."""
    writing = Writing(path)
    writing.write(0, n)
    check(writing.capture.close(), "the run was not written")


def write_classifier(path: Path, n: int) -> None:
    """A finished run of a classifier that learns, with everything at every step."""
    run = create_run(path)
    capture = _core.Capture(
        str(run.path), run_uuid=run.uuid, min_free_bytes=0, attempt_uuid=bytes(16)
    )
    ids = [
        capture.define(name, int(role), dtype, shape)
        for name, role, dtype, shape in CLASSIFIER
    ]
    rate = capture.define("scalar/optimizer/0/lr", int(Role.SCALAR))
    random = np.random.default_rng(0)
    inputs = random.normal(size=(N_BATCHES, BATCH, 4)).astype(np.float32)
    labels = random.integers(0, 10, (N_BATCHES, BATCH))
    weight = inputs[0, :4].copy()
    for step in range(n):
        k = step % N_BATCHES
        update = np.float32(1e-3) * inputs[k, :4]
        weight += update
        noise = 0.05 * float(inputs[k, 0, 0])
        loss = np.array(0.3 + 2.0 / (1 + step / 100) + noise, np.float32)
        rows = (inputs[k], labels[k], loss, weight, inputs[k, 4:8], update)
        capture.statistics(step, ids, [row.ctypes.data for row in rows])
        capture.scalar(step, rate, 1e-3 * (1 - step / n), 1)
        capture.end_step(step, ModeKeys.TRAIN.value, step, duration_ns=10**7)
    check(capture.close(), "the run was not written")


def in_a_process(write: Callable[[Path, int], None], path: Path, n: int) -> None:
    """Write a run there: the peak of a child's memory begins with its parent's."""
    process = multiprocessing.get_context("spawn").Process(target=write, args=(path, n))
    process.start()
    process.join()
    check(process.exitcode == 0, "the run was not written")


def ask(python: list[str], *arguments: str) -> tuple[str, float, float]:
    """What a verb prints, its processor time in s, and its peak of memory in MB."""
    command = [*python, "-m", "tdbg", *arguments]
    with tempfile.TemporaryFile("w+") as answer:
        process = subprocess.Popen(command, stdout=answer)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        answer.seek(0)
        out = answer.read()
    check(process.returncode in (0, 1), f"{shlex.join(command)}: it failed")
    return out, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def add(table: Table, run: str, what: str, found: tuple[str, float, float]) -> str:
    """Note what a question took; its answer."""
    table.add(run, what, f"{found[1]:.2f}", f"{found[2]:.0f}")
    print(f"{run}: {what}: {found[1]:.2f} s, {found[2]:.0f} MB", flush=True)
    return found[0]


def measure_steps(path: Path, n: int, python: list[str], table: Table) -> None:
    """A finished run of so many steps."""
    in_a_process(write_steps, path, n)
    run = f"{n:,} steps"
    answer = add(table, run, "ls", ask(python, "ls", str(path)))
    for name in NAMES[:2]:
        (line,) = [line for line in answer.splitlines() if line.startswith(name)]
        check_equal(line.split()[-3:], [str(n), "0", f"0..{n - 1}"], f"ls: {name}")
    answer = add(table, run, "show", ask(python, "show", str(path)))
    check(f"at {n:,} recorded steps" in answer, "show: the number of steps")
    check_equal(answer.count(f"{n}  "), 2, "show: rows of each tensor")
    answer = add(
        table, run, "check", ask(python, "check", "--no-record", "--json", str(path))
    )
    check_equal(json.loads(answer)["n_steps"], n, "check: steps that were judged")


def measure_rules(path: Path, n: int, python: list[str], table: Table) -> None:
    """So many steps of what rules of losses, data and rates go by."""
    in_a_process(write_classifier, path, n)
    answer = add(
        table,
        f"{n:,} steps of a classifier",
        "check",
        ask(python, "check", "--no-record", "--json", str(path)),
    )
    found = json.loads(answer)
    check_equal(found["n_steps"], n, "check: steps that were judged")
    check_equal(found["findings"], [], "check: findings of a healthy training")


def measure_names(path: Path, n: int, python: list[str], table: Table) -> None:
    """A finished run of so many tensors, and two steps."""
    names = tuple(f"layer{i:06}.weight" for i in range(n))
    writing = Writing(path, names)
    writing.write(0, 2)
    check(writing.capture.close(), "the run was not written")
    answer = add(table, f"{n:,} names", "ls", ask(python, "ls", str(path)))
    found = [line.split() for line in answer.splitlines()]
    listed = {line[0]: line[4:] for line in found if line and line[0] in set(names)}
    check_equal(len(listed), n, "ls: names")
    check(all(each == ["2", "0", "0..1"] for each in listed.values()), "ls: the steps")


def measure_writers(path: Path, n: int, python: list[str], table: Table) -> None:
    """Finished runs of so many writers: of workers, and of starts of a training."""
    for what in ("workers", "starts"):
        for i in range(n):
            rank, ordinal = (i, 0) if what == "workers" else (0, i)
            writing = Writing(
                path / what,
                rank=rank,
                world_size=n if what == "workers" else 1,
                attempt_ordinal=ordinal,
                attempt_uuid=ordinal.to_bytes(16),
            )
            writing.write(ordinal, ordinal + 2)
            check(writing.capture.close(), "the run was not written")
        n_steps = 2 if what == "workers" else n + 1
        for verb in ("ls", "show"):
            answer = ask(python, verb, str(path / what))
            text = add(table, f"{n:,} {what}", verb, answer)
            check(NAMES[0] in text, f"{verb}: the name of the tensor")
            if verb == "show":
                check(
                    f"at {n_steps:,} recorded steps" in text,
                    "show: the number of steps",
                )


def grow(path: Path, how: str, n: int, python: list[str]) -> float:
    """Bytes a step by which a process grows that follows a run which is written."""
    writing = Writing(path)
    writing.write(0, 1)
    memory = []
    with following(path, how, python) as process:
        edges = np.linspace(1, n, POLLS + 1, dtype=int).tolist()
        for start, stop in pairwise(edges):
            writing.write(start, stop)
            memory.append(poll(process, stop - 1))
    check(writing.capture.close(), "the run was not written")
    first = POLLS // 5
    grown = memory[-1] - memory[first]
    print(f"{how}: {memory[first]} to {memory[-1]} bytes", flush=True)
    return grown / (edges[-1] - edges[first + 1])


@contextmanager
def following(
    path: Path, how: str, python: list[str]
) -> Iterator[subprocess.Popen[str]]:
    """A process that follows the run, asked line by line."""
    command = [*python, "-m", "benchmarks.reader.long_runs", "--follow", str(path), how]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def poll(process: subprocess.Popen[str], last: int) -> int:
    """Bytes that it holds when it has seen the step *last*."""
    requests, answers = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
    requests.write(f"{last}\n")
    requests.flush()
    line = answers.readline()
    check(line, "the follower has ended")
    return int(line)


def follow(path: Path, how: str) -> None:
    """Follow a run: for each step that is named, say what is held once it was seen."""
    from tdbg.rules import Engine
    from tdbg.trial import create_trial

    trial = create_trial(path)
    engine = Engine(trial, record=False) if how == "engine" else None
    for line in sys.stdin:
        while trial.last_complete_step < int(line):
            time.sleep(0.001)
        if engine is not None:
            engine.poll()
            check_equal(engine.report().last_step, int(line), "the last step judged")
        else:
            trial.refresh()
            row = trial.step_table(int(line))
            check_equal(row["step"].tolist(), [int(line)], "the last step")
        print(_anonymous_bytes(), flush=True)


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    return 0


if __name__ == "__main__":
    main()
