"""Runs the example: before, the advice, after, and what both cost.

    python -m examples.loader_bound [--out runs/loader] [--steps 500] [--price 3.06]

Takes about a minute and a half, and no GPU.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

import tdbg
from tdbg.cost import saving_of
from tdbg.rules import check
from tdbg.view.cost import cost_view, money

__all__ = ["Advice", "advice_on", "main", "median_step", "train"]

SCRIPT = Path(__file__).parent / "train.py"
RULE = "DataLoaderBound"
#: How far the measured gain may be from the promised one, in points.
POINTS = 10


class Advice(NamedTuple):
    """What the rule says: how many workers, and by how much steps get shorter."""

    workers: int
    gain: float
    text: str


def train(out: Path, steps: int, workers: int) -> Path:
    """Run the script under `tdbg run`, as anybody would."""
    told = [f"--steps={steps}", f"--workers={workers}"]
    command = [
        sys.executable,
        "-m",
        "tdbg",
        "run",
        "--out",
        str(out),
        "--",
        sys.executable,
    ]
    subprocess.run([*command, str(SCRIPT), *told], check=True)
    return out


def advice_on(run: Path) -> Advice | None:
    """Return what the rule says about a run; None if it is silent."""
    for finding in check(run, [RULE]).findings:
        workers = re.search(r"num_workers=(\d+)", finding.advice)
        gain = re.search(r"(\d+(?:\.\d+)?)\s*% shorter", finding.advice)
        if workers and gain:
            return Advice(int(workers[1]), float(gain[1]), finding.advice)
    return None


def median_step(run: Path) -> float:
    """Return how long a training step takes, in ms."""
    steps = tdbg.create_trial(run).profile.steps(mode="TRAIN")
    return float(np.median(steps["duration_ns"])) / 1e6


def main(arguments: list[str] | None = None) -> int:
    """Run both trainings; 1 if nothing was found, or the promise was not kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/loader"))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--price", type=float, default=3.06, help="of an hour")
    options = parser.parse_args(arguments)
    before = train(options.out / "before", options.steps, 0)
    advice = advice_on(before)
    if advice is None:
        print(f"[NOT SO] {RULE} says nothing about {before}")
        return 1
    print(f"{RULE}: {advice.text}")
    after = train(options.out / "after", options.steps, advice.workers)
    long, short = median_step(before), median_step(after)
    gain = 100 * (1 - short / long)
    is_kept = abs(gain - advice.gain) <= POINTS
    print(f"steps: {long:.1f} ms before, {short:.1f} ms after")
    print(f"gain: {advice.gain:.0f} % promised, {gain:.0f} % measured")
    costs = [
        cost_view(tdbg.create_trial(run), options.price) for run in (before, after)
    ]
    for name, cost in zip(("before", "after"), costs, strict=True):
        waits = 100 * cost.usage.shares["data_wait"]
        print(f"{name}: {money(cost.total)}, {waits:.0f} % of the time waits for data")
    saving = 100 * saving_of(costs[0].total, costs[1].total)
    print(f"the same {options.steps} steps cost {saving:.0f} % less")
    if not is_kept:
        print(f"[NOT SO] the promise is off by more than {POINTS} points")
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
