"""Read a run of 30 steps while its first shard is cut, removed or replaced.

    cut_shard.py RUN MODE

Prints the names of the errors that reading raised, and exits 1 on a wrong value.
A signal would end it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tdbg
from tdbg.errors import TdbgError

STEPS = 30


def damage(shard: Path, mode: str) -> None:
    if mode.isdigit():
        os.truncate(shard, int(mode))
    elif mode == "half":
        os.truncate(shard, shard.stat().st_size // 2)
    elif mode == "removed":
        shard.unlink()
    elif mode == "overwritten":
        shard.write_bytes(os.urandom(shard.stat().st_size))
    else:
        other = shard.with_suffix(".new")
        shutil.copy(shard, other)
        with other.open("r+b") as file:
            file.truncate(other.stat().st_size // 2)
        other.replace(shard)


def main() -> int:
    path, mode = sys.argv[1:]
    trial = tdbg.create_trial(path)
    big = trial.tensor("big")
    kept = [big.value(step) for step in range(3)]  # What users hold must stay.
    questions: list[Callable[[int], object]] = [
        lambda step: float(big.value(step)[0]),
        lambda step: big.stats(step).max,
        lambda step: float(trial.statistics(["big"]).reduction("max")[0][step]),
        lambda step: big.histogram(step).count - 1,
    ]
    before = [question(5) for question in questions]
    assert before == [5.0] * 4, before
    damage(next(Path(path).glob("w/*/000001.tds")), mode)
    errors: set[str] = set()
    for step in range(STEPS):
        for question in questions:
            try:
                if question(step) != float(step):
                    return 1
            except TdbgError as error:
                errors.add(type(error).__name__)
    trial.envelope(["big"], columns=3, fields=("l2",))
    if any(value.max() != step for step, value in enumerate(kept)):
        return 1
    np.testing.assert_array_equal([value[0] for value in kept], range(3))
    print(*sorted(errors))
    return 0


if __name__ == "__main__":
    sys.exit(main())
