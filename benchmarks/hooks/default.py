"""What `tdbg run` costs by default, by the length of a step.

    python -m benchmarks.hooks.default [--steps 1 5] [--seconds 60] [--quick]

One program in the shape of a public script (``_program.py``) runs plainly, and beside
it, at the same time, by ``tdbg run`` with the default rules and the default budget, for
``--seconds`` or so.  Each has a core of its own, and after each block of half a second
they change cores.  So neither waits for the other, as it would if they took turns: a
training that waits has time, of which the budget allows its share.  The beginning, in
which every step is captured, has its part, as in a training that lasts as long.

The figures are processor time, which other programs on the machine disturb least: of
the training's thread, and of the whole process, which the thread that writes is part
of.  *Whole* is the time of all blocks over that of the plain program beside it, *then*
the median over the last half of the same ratio, of two blocks each, one on each core,
with its 95 % interval.  Then two plain programs run side by side: how much of it may be
noise.  The losses of all must be equal bit for bit, and the run must have each loss
that the budget left.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tdbg
from benchmarks._harness import Ratio, Report, Table, check, check_equal, options

PROGRAM = Path(__file__).with_name("_program.py")
#: Arguments of the program by the milliseconds that a step takes, about.
SIZES = {1: (256, 64), 2: (384, 80), 5: (512, 128), 20: (1024, 256)}
BLOCK_SECONDS = 0.5
PLAIN, RUN = "plain", "tdbg run"
CLOCKS = ("thread", "process")
COLUMNS = (
    "a plain step, ms",
    "whole: thread",
    "process",
    "then: thread",
    "process",
    "plain / plain",
    "statistics every",
)
Block = dict[str, Any]
Pair = tuple[Block, Block]


class Program:
    """The program, as a process that does a block of steps when it is asked to."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begin(self, n_steps: int, core: int) -> None:
        """Let it do so many steps, its training on this core."""
        os.sched_setaffinity(self._process.pid, {core})
        print(n_steps, file=self._process.stdin, flush=True)

    def answer(self) -> Block:
        """What it says when it has done them."""
        if self._process.stdout is None:
            raise RuntimeError(self._process.args)
        return json.loads(self._process.stdout.readline())  # type: ignore[no-any-return]

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        check_equal(self._process.wait(timeout=120), 0, "exit code")

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, nargs="*", choices=SIZES, default=[])
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    if given.quick:
        given.seconds = 4.0
    table = Table("The default cost, by the length of a step", COLUMNS)
    table.note = (
        "Processor time, over that of the program alone. "
        f"Each trained for {given.seconds:g} s, beside it, on two cores."
    )
    data: dict[str, Any] = {}
    for about in given.steps or SIZES:
        folder = Path(tempfile.mkdtemp(prefix="default-"))
        try:
            measured = measure(about, folder / "run", given)
            table.add(*row(about, measured, folder / "run"))
            data[f"{about} ms"] = measured
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    Report(
        "hooks/default", given, packages=("torch", "tdbg"), tables=[table], data=data
    ).save()


def measure(about: int, run: Path, given: argparse.Namespace) -> dict[str, list[Pair]]:
    """The blocks of ``tdbg run`` and of a plain program beside a plain one."""
    plain = [sys.executable, str(PROGRAM), *map(str, SIZES[about])]
    watched = [sys.executable, "-m", "tdbg", "run", "--out", str(run), "--", *plain]
    n_steps = max(1, round(1000 * BLOCK_SECONDS / about))
    n_blocks = 2 * max(2, round(given.seconds / BLOCK_SECONDS / 2))
    pairs = {
        name: side_by_side(command, plain, n_steps, n_blocks)
        for name, command in {RUN: watched, PLAIN: plain}.items()
    }
    trial = tdbg.create_trial(run)
    (loss,) = trial.tensor_names(collection="losses")
    missing = set(wanted(trial, n_steps * n_blocks)) - set(trial.tensor(loss).steps())
    check_equal(missing, set(), "steps without the loss that the budget left")
    return pairs


def side_by_side(
    ours: list[str], plain: list[str], n_steps: int, n_blocks: int
) -> list[Pair]:
    """The blocks of two programs that run at once and change cores after each."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    check(len(cores) == 2, "two cores, one for each program")
    pairs = []
    with started(ours) as program, started(plain) as beside:
        for _ in range(n_blocks):
            program.begin(n_steps, cores[0])
            beside.begin(n_steps, cores[1])
            pair = program.answer(), beside.answer()
            check_equal(pair[0].pop("losses"), pair[1].pop("losses"), "losses")
            pairs.append(pair)
            cores.reverse()
    return pairs


def wanted(trial: tdbg.Trial, n_steps: int) -> Iterator[int]:
    """The steps whose loss is to be there, by what the run says of its budget."""
    every, begin = 1, 0
    for change in (*trial.overhead().changes, None):
        end = n_steps if change is None else int(change["step"]) + 1
        yield from (step for step in range(begin, end) if step % every == 0)
        begin = end
        every = 1 if change is None else int(change["throttle"]["steps"])


@contextmanager
def started(command: list[str]) -> Iterator[Program]:
    """A program, which has ended when this ends."""
    os.environ["OMP_NUM_THREADS"] = "1"
    program = Program(command)
    try:
        yield program
        program.close()
    finally:
        program.kill()


def row(about: int, pairs: dict[str, list[Pair]], run: Path) -> list[str]:
    """The row of one size."""
    n_steps = len(pairs[RUN]) * max(1, round(1000 * BLOCK_SECONDS / about))
    plain = sum(beside["thread"] for _, beside in pairs[RUN])
    overhead = tdbg.create_trial(run).overhead()
    throttle = overhead.changes[-1]["throttle"] if overhead.changes else {}
    every = 10 * int(throttle.get("activations", 1))
    losses = int(throttle.get("steps", 1))
    return [
        f"{1e3 * plain / n_steps:.2f}",
        *(f"{_ratio(pairs[RUN], clock):.3f}" for clock in CLOCKS),
        *(str(_then(pairs[RUN], clock)) for clock in CLOCKS),
        str(_then(pairs[PLAIN], "thread")),
        f"{every} steps, losses {losses}",
    ]


def _ratio(pairs: Sequence[Pair], clock: str) -> float:
    """The time of our blocks over that of the plain ones beside them."""
    ours, plain = (
        sum(float(block[clock]) for block in of) for of in zip(*pairs, strict=True)
    )
    return ours / plain


def _then(pairs: Sequence[Pair], clock: str) -> Ratio:
    """The ratio of the last half, of which two blocks are one value."""
    begin = len(pairs) // 4 * 2
    twos = [pairs[i : i + 2] for i in range(begin, len(pairs), 2)]
    return Ratio.of([_ratio(two, clock) for two in twos])


if __name__ == "__main__":
    main()
