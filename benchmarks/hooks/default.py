"""What `tdbg run` costs by default, by the length of a step.

    python -m benchmarks.hooks.default [--steps 1 5] [--seconds 60] [--quick]

One program in the shape of a public script (``_program.py``) runs three times at once:
plainly, plainly again, and by ``tdbg run``, with the default rules and the default
budget.  Each is a process of its own; blocks of half a second of their steps take
turns, in random order, until each has trained for ``--seconds``.  So the beginning,
in which every step is captured, has its share, as in a training that lasts as long.

The figures are processor time, which other programs on the machine disturb least: of
the training's thread, and of the whole process, which the thread that writes is part
of.  *Whole* is the time of all blocks over that of the plain ones, *then* the median
over the last half of the blocks of the same ratio, with its 95 % interval; plain over
plain says how much of it may be noise.  The losses of all must be equal bit for bit,
and each step of the run must have its loss.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
        f"Each trained for {given.seconds:g} s, in blocks that take turns."
    )
    data: dict[str, Any] = {}
    dice = random.Random(given.seed)
    for about in given.steps or SIZES:
        folder = Path(tempfile.mkdtemp(prefix="default-"))
        try:
            measured = measure(about, folder / "run", given, dice)
            table.add(*row(measured, folder / "run"))
            data[f"{about} ms"] = measured
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    Report(
        "hooks/default", given, packages=("torch", "tdbg"), tables=[table], data=data
    ).save()


def measure(
    about: int, run: Path, given: argparse.Namespace, dice: random.Random
) -> dict[str, list[Block]]:
    """The blocks of the three programs, in the order in which they were done."""
    blocks: dict[str, list[Block]] = {PLAIN: [], CONTROL: [], RUN: []}
    n_steps = max(1, round(1000 * BLOCK_SECONDS / about))
    n_all = 0
    with programs(about, run) as found:
        while sum(block["thread"] for block in blocks[PLAIN]) < given.seconds:
            losses = {}
            for name in dice.sample(list(found), len(found)):
                block = found[name].block(n_steps)
                losses[name] = block.pop("losses")
                blocks[name].append(block)
            for name, each in losses.items():
                check_equal(each, losses[PLAIN], f"losses of {name}")
            n_all += n_steps
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


@contextmanager
def programs(about: int, run: Path) -> Iterator[dict[str, Program]]:
    """The three programs, which have ended when this ends."""
    plain = [sys.executable, str(PROGRAM), *map(str, SIZES[about])]
    watched = [sys.executable, "-m", "tdbg", "run", "--out", str(run), "--", *plain]
    os.environ["OMP_NUM_THREADS"] = "1"
    with ExitStack() as stack:
        found = {}
        for name, command in ((PLAIN, plain), (CONTROL, plain), (RUN, watched)):
            found[name] = Program(command)
            stack.callback(found[name].kill)
        yield found
        for program in found.values():
            program.close()


def row(blocks: dict[str, list[Block]], run: Path) -> list[str]:
    """The row of one size."""
    steps = sum(block["steps"] for block in blocks[PLAIN])
    plain = sum(block["thread"] for block in blocks[PLAIN])
    whole = [
        f"{_total(blocks[RUN], clock) / _total(blocks[PLAIN], clock):.3f}"
        for clock in CLOCKS
    ]
    then = [str(_ratio(blocks, RUN, clock)) for clock in CLOCKS]
    overhead = tdbg.create_trial(run).overhead()
    throttle = overhead.changes[-1]["throttle"] if overhead.changes else {}
    every = 10 * int(throttle.get("activations", 1))
    losses = int(throttle.get("steps", 1))
    return [
        f"{1e3 * plain / steps:.2f}",
        *whole,
        *then,
        str(_ratio(blocks, CONTROL, "thread")),
        f"{every} steps, losses {losses}",
    ]


def _total(blocks: list[Block], clock: str) -> float:
    return sum(float(block[clock]) for block in blocks)


def _ratio(blocks: dict[str, list[Block]], name: str, clock: str) -> Ratio:
    """The time of a block over that of the plain program's, in the last half."""
    pairs = list(zip(blocks[name], blocks[PLAIN], strict=True))
    last = pairs[len(pairs) // 2 :]
    return Ratio.of([ours[clock] / plain[clock] for ours, plain in last])


if __name__ == "__main__":
    main()
