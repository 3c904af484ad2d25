"""Thirty runs of a sweep, in which what is asked for is planted.

A value depends on its run, its name and its step alone, so that any dashboard can be
given the same, and any answer be checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

__all__ = ["LAYERS", "LEAST_RATE", "RUNS", "Run", "truth"]

STEPS = 400
LAYERS = tuple(f"grad/blocks.{i}" for i in range(8))
#: What is logged at each step.
METRICS = ("loss", "grad_norm", *LAYERS)
BEST, SICK = 11, 19
#: From this step on the gradient of one layer of the sick run explodes.
EXPLODES_AT, SICK_LAYER = 214, 3
# Runs with a lower rate are asked for.
LEAST_RATE = 0.01


@dataclass(frozen=True, slots=True)
class Run:
    """A training of the sweep, by its number."""

    number: int

    @property
    def name(self) -> str:
        return f"sweep-{self.number:02}"

    @property
    def settings(self) -> Mapping[str, float]:
        """What a random search would draw."""
        dice = np.random.default_rng(100 + self.number)
        return {
            "lr": float(f"{10 ** dice.uniform(-3.2, -0.8):.2g}"),
            "momentum": float(dice.choice([0.0, 0.8, 0.9])),
            "weight_decay": float(dice.choice([0.0, 1e-4, 1e-2])),
        }

    def rows(self) -> Iterator[Mapping[str, float]]:
        """The value of each metric at each step."""
        dice = np.random.default_rng(self.number)
        floor = 0.21 if self.number == BEST else dice.uniform(0.3, 0.9)
        pace = dice.uniform(40, 90)
        noise = np.clip(dice.normal(1, 0.02, (STEPS, 1 + len(LAYERS))), 0.9, 1.1)
        for step in range(STEPS):
            loss = (floor + 2 * math.exp(-step / pace)) * float(noise[step, 0])
            scale = 0.5 + math.exp(-step / pace)
            layers = [float((1 + i) * scale * noise[step, 1 + i]) for i in range(8)]
            if self.number == SICK and step >= EXPLODES_AT:
                layers[SICK_LAYER] *= 1.2 ** min(step - EXPLODES_AT, 40)
            norm = math.sqrt(sum(each * each for each in layers))
            yield dict(zip(METRICS, (loss, norm, *layers), strict=True))


RUNS = tuple(map(Run, range(30)))


@cache
def truth() -> Mapping[str, str]:
    """The answer to each question."""
    last = {run.name: [*run.rows()][-1] for run in RUNS}
    chosen = sorted(run.name for run in RUNS if run.settings["lr"] < LEAST_RATE)
    return {
        "best": min(last, key=lambda name: last[name]["loss"]),
        "sick": max(last, key=lambda name: last[name]["grad_norm"]),
        "filter": " ".join(chosen),
    }
