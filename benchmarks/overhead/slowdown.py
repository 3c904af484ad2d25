"""Slowdown of a real training by what watches it.

    python benchmarks/overhead/slowdown.py
    python benchmarks/overhead/slowdown.py --model wide --contender losses

Plain and watched blocks of steps alternate in one process, so that a machine whose
speed drifts changes both alike; the figure is the median of the ratios of
neighbouring blocks, with its 95 % interval (bootstrap).  `plain` against plain says
how much of it is noise.  Every contender must compute the very losses that the
plain training computes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
from training import MODELS, Contender, Step, make_step

CONTENDERS = Path(__file__).parent / "contenders"


def main() -> None:
    names = sorted(path.stem for path in CONTENDERS.glob("*.py"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="cnn")
    parser.add_argument("--contender", choices=names, action="append")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--block", type=int, default=20, help="steps in a block")
    parser.add_argument("--pairs", type=int, default=60, help="pairs of blocks")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)

    results = {}
    for name in given.contender or names:
        with tempfile.TemporaryDirectory() as directory:
            plain = make_step(given.model, given.batch, None, directory)
            watched = make_step(given.model, given.batch, load(name), directory)
            results[name] = compare(plain, watched, given.block, given.pairs)
    if given.json:
        print(json.dumps({"machine": machine(given.threads), "results": results}))
        return
    print(machine(given.threads))
    print(f"model {given.model}, batch {given.batch}, {given.pairs} pairs of blocks")
    for name, result in results.items():
        print(
            f"{name:24} x{result['ratio']:.3f} "
            f"[{result['low']:.3f}, {result['high']:.3f}]"
            f"   plain step {result['plain_ms']:.2f} ms"
        )


def load(name: str) -> Contender:
    spec = importlib.util.spec_from_file_location(name, CONTENDERS / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module  # type: ignore[return-value]


def compare(plain: Step, watched: Step, block: int, pairs: int) -> dict[str, float]:
    ratios, plain_times = [], []
    for pair in range(pairs + 3):  # Three to warm up.
        if pair % 2:
            after, expected = timed(watched, block), timed(plain, block)
            (watched_time, losses), (plain_time, plain_losses) = after, expected
        else:
            plain_time, plain_losses = timed(plain, block)
            watched_time, losses = timed(watched, block)
        if losses != plain_losses:
            msg = "the contender changes the training"
            raise RuntimeError(msg)
        if pair >= 3:
            ratios.append(watched_time / plain_time)
            plain_times.append(plain_time)
    low, high = interval(ratios)
    return {
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "plain_ms": 1e3 * statistics.median(plain_times) / block,
    }


def timed(step: Step, block: int) -> tuple[float, list[float]]:
    start = time.perf_counter()
    losses = [step() for _ in range(block)]
    return time.perf_counter() - start, losses


def interval(ratios: list[float]) -> tuple[float, float]:
    dice = random.Random(1)
    medians = sorted(
        statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(1000)
    )
    return medians[25], medians[975]


def machine(threads: int) -> str:
    from tdbg import _core

    load = os.getloadavg()[0]
    return (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"load {load:.1f}; Python {platform.python_version()}, "
        f"torch {torch.__version__} on {threads} thread(s), "
        f"tdbg {_core.__version__} ({_core.implementation()})"
    )


if __name__ == "__main__":
    main()
