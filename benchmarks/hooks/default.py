"""What `tdbg run` costs by default, by the length of a step.

    python -m benchmarks.hooks.default [--steps 1 5] [--seconds 60] [--quick]

One program in the shape of a public script (``_program.py``) runs three times, one
after the other: plainly, by ``tdbg run`` with the default rules and the default budget,
and plainly again, each for ``--seconds`` or so.  They do not take turns, since a
training that waits for others has time, of which the budget allows its share.  The
beginning, in which every step is captured, has its part, as in a training that lasts
as long.

The figures are processor time, which other programs on the machine disturb least: of
the training's thread, and of the whole process, which the thread that writes is part
of.  *Whole* is the time of all blocks of half a second over that of the plain ones,
the mean of both, *then* the median over the last half of the blocks of the same ratio,
with its 95 % interval; plain over plain says how much of it may be noise.  The losses
of all must be equal bit for bit, and the run must have each loss that the budget left.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tdbg
from benchmarks._harness import Ratio, Report, Table, check_equal, options

PROGRAM = Path(__file__).with_name("_program.py")
#: Arguments of the program by the milliseconds that a step takes, about.
SIZES = {1: (256, 64), 2: (384, 80), 5: (512, 128), 20: (1024, 256)}
BLOCK_SECONDS = 0.5
PLAIN, CONTROL, RUN = "plain", "control", "tdbg run"
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


class Program:
    """The program, as a process that does a block of steps when it is asked to."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def block(self, n_steps: int) -> Block:
        """Do so many steps."""
        given, answers = self._process.stdin, self._process.stdout
        if given is None or answers is None:
            raise RuntimeError(self._process.args)
        given.write(f"{n_steps}\n")
        given.flush()
        return json.loads(answers.readline())  # type: ignore[no-any-return]

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
        f"Each trained for {given.seconds:g} s, one after the other."
    )
    data: dict[str, Any] = {}
    for about in given.steps or SIZES:
        folder = Path(tempfile.mkdtemp(prefix="default-"))
        try:
            measured = measure(about, folder / "run", given)
            table.add(*row(measured, folder / "run"))
            data[f"{about} ms"] = measured
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    Report(
        "hooks/default", given, packages=("torch", "tdbg"), tables=[table], data=data
    ).save()


def measure(about: int, run: Path, given: argparse.Namespace) -> dict[str, list[Block]]:
    """The blocks of the three programs, in the order in which they were done."""
    blocks: dict[str, list[Block]] = {}
    n_steps = max(1, round(1000 * BLOCK_SECONDS / about))
    n_blocks = max(2, round(given.seconds / BLOCK_SECONDS))
    losses: dict[str, list[float]] = {}
    for name, command in commands(about, run).items():
        with started(command) as program:
            blocks[name] = [program.block(n_steps) for _ in range(n_blocks)]
        losses[name] = [loss for block in blocks[name] for loss in block.pop("losses")]
        check_equal(losses[name], losses[PLAIN], f"losses of {name}")
    n_all = n_steps * n_blocks
    trial = tdbg.create_trial(run)
    (loss,) = trial.tensor_names(collection="losses")
    missing = set(wanted(trial, n_all)) - set(trial.tensor(loss).steps())
    check_equal(missing, set(), "steps without the loss that the budget left")
    for each in blocks.values():
        for block in each:
            block["steps"] = n_steps
    return blocks


def wanted(trial: tdbg.Trial, n_steps: int) -> Iterator[int]:
    """The steps whose loss is to be there, by what the run says of its budget."""
    every, begin = 1, 0
    for change in (*trial.overhead().changes, None):
        end = n_steps if change is None else int(change["step"]) + 1
        yield from (step for step in range(begin, end) if step % every == 0)
        begin = end
        every = 1 if change is None else int(change["throttle"]["steps"])


def commands(about: int, run: Path) -> dict[str, list[str]]:
    """The three programs, in their order."""
    plain = [sys.executable, str(PROGRAM), *map(str, SIZES[about])]
    watched = [sys.executable, "-m", "tdbg", "run", "--out", str(run), "--", *plain]
    return {PLAIN: plain, RUN: watched, CONTROL: plain}


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


def row(blocks: dict[str, list[Block]], run: Path) -> list[str]:
    """The row of one size."""
    steps = sum(block["steps"] for block in blocks[PLAIN])
    plain = sum(block["thread"] for block in blocks[PLAIN])
    both = [
        {clock: (one[clock] + other[clock]) / 2 for clock in CLOCKS}
        for one, other in zip(blocks[PLAIN], blocks[CONTROL], strict=True)
    ]
    whole = [
        f"{_total(blocks[RUN], clock) / _total(both, clock):.3f}" for clock in CLOCKS
    ]
    then = [str(_ratio(blocks[RUN], both, clock)) for clock in CLOCKS]
    overhead = tdbg.create_trial(run).overhead()
    throttle = overhead.changes[-1]["throttle"] if overhead.changes else {}
    every = 10 * int(throttle.get("activations", 1))
    losses = int(throttle.get("steps", 1))
    return [
        f"{1e3 * plain / steps:.2f}",
        *whole,
        *then,
        str(_ratio(blocks[CONTROL], blocks[PLAIN], "thread")),
        f"{every} steps, losses {losses}",
    ]


def _total(blocks: list[Block], clock: str) -> float:
    return sum(float(block[clock]) for block in blocks)


def _ratio(ours: list[Block], plain: list[Block], clock: str) -> Ratio:
    """The time of a block over that of the plain program's, in the last half."""
    pairs = list(zip(ours, plain, strict=True))
    return Ratio.of([a[clock] / b[clock] for a, b in pairs[len(pairs) // 2 :]])


if __name__ == "__main__":
    main()
