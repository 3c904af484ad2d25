"""Measures what capture costs: the same training with and without a hook, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tdbg.demo.pytorch import Training

if TYPE_CHECKING:
    from tdbg.demo.data import Digits

__all__ = ["Cost", "measure"]

STEPS_A_BLOCK = 10
WARM_UP_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of a captured step, divided by the time of a plain one.

    Attributes:
        ratio: Median over the pairs of blocks; 1.02 means 2 % slower.
        low: Lower quartile of the ratios.
        high: Upper quartile of the ratios.
        plain_ms: Median time of a plain step, in milliseconds.
        n_pairs: Number of pairs of blocks that were compared.
    """

    ratio: float
    low: float
    high: float
    plain_ms: float
    n_pairs: int


def measure(digits: Digits, run: Path, n_pairs: int = 30) -> Cost:
    """Measure how much statistics of every tensor at every step slow a training down.

    Plain and captured blocks of steps alternate, so that both change alike if the speed
    of the machine drifts.
    """
    from tdbg.pytorch import Hook, ReductionConfig, SaveConfig

    plain = Training(digits, None).step
    hook = Hook(
        run,
        save_all=True,
        save_config=SaveConfig(statistics_interval=1),
        reduction_config=ReductionConfig(save_raw_tensor=False),
    )
    captured = Training(digits, hook).step
    plain_times, ratios = [], []
    for pair in range(n_pairs + WARM_UP_BLOCKS):
        # Which of the two comes first alternates as well.
        if pair % 2:
            with_hook = _timed(captured)
            without = _timed(plain)
        else:
            without = _timed(plain)
            with_hook = _timed(captured)
        if pair >= WARM_UP_BLOCKS:
            plain_times.append(without)
            ratios.append(with_hook / without)
    hook.close()
    low, ratio, high = statistics.quantiles(ratios, n=4)
    plain_ms = 1e3 * statistics.median(plain_times) / STEPS_A_BLOCK
    return Cost(ratio, low, high, plain_ms, n_pairs)


def _timed(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    for _ in range(STEPS_A_BLOCK):
        step()
    return time.perf_counter() - start
