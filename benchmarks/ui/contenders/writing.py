"""Writes a series as users of a contender do; run in its environment.

    python -m benchmarks.ui.contenders.writing TensorBoard FOLDER planted
    python -m benchmarks.ui.contenders.writing tdbg FOLDER live --begin 200 --rate 2

With ``--rate`` it says ``ready`` after the first steps, waits for a line, and then
writes so many steps a second, and says of each its number and when it was written,
until its input ends.
"""

from __future__ import annotations

import argparse
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.ui._series import SERIES
from benchmarks.ui.contenders import CONTENDERS, load


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("series", choices=SERIES)
    parser.add_argument("--begin", type=int, help="steps before it is ready")
    parser.add_argument("--rate", type=float, help="steps a second after that")
    given = parser.parse_args()
    series = SERIES[given.series]
    given.folder.mkdir(parents=True, exist_ok=True)
    begin = series.n_steps if given.begin is None else given.begin
    with load(given.contender).write(given.folder, series) as write:
        for step in range(begin):
            write(step)
        if given.rate:
            follow(write, begin, 1 / given.rate)


def follow(write: Callable[[int], None], first: int, distance: float) -> None:
    """Write at a pace until the input ends."""
    print("ready", flush=True)
    sys.stdin.readline()
    step, due = first, time.monotonic()
    while True:
        write(step)
        print(step, time.time(), flush=True)
        step, due = step + 1, due + distance
        wait = max(0.0, due - time.monotonic())
        if select.select([sys.stdin], [], [], wait)[0]:
            return


if __name__ == "__main__":
    main()
