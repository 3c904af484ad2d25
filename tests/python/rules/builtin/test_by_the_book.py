"""Rules say, of every tensor and step, what the formulas of their pages say.

Runs are random, of few choices each, so that numbers meet their limits exactly and
streaks of every length occur; steps are lost, skipped, of other modes, and of some of
the tensors only.  Windows are cut small, so that a rule that looked back further than
it declares would be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from rules_by_the_book import BOOKS, spied
from rules_fake import FakeRun
from tdbg.modes import ModeKeys
from tdbg.rules import (
    AllZero,
    ExplodingGradient,
    PrecisionLoss,
    Rule,
    TensorVariance,
    VanishingGradient,
    WeightUpdateRatio,
    ZeroLearningRate,
)

SEEDS = range(4)
N_STEPS = 120
ALWAYS = 0.85

Rows = Iterator[dict[str, object]]
Random = np.random.Generator


def held(random: Random, *choices: object) -> Iterator[object]:
    """One of the choices, for some steps in a row."""
    while True:
        chosen = choices[int(random.integers(len(choices)))]
        for _ in range(int(random.integers(1, 6))):
            yield chosen


def outputs(random: Random) -> Rows:
    """Shares of zeros, and spreads, that are at limits and beside them."""
    ones = np.ones(16)
    kinds = [
        np.zeros(16),
        ones,
        np.repeat([0.0, 1.0], 8),
        np.repeat([0.0, 1.0], [7, 9]),
        4 + np.repeat([-1.0, 1.0], 8),
        4 + np.repeat([-0.25, 0.25], 8),
        np.append(ones, np.nan),
        np.zeros(7),
    ]
    of = {f"{i}_output_0": held(random, *kinds) for i in range(3)}
    while True:
        yield {name: next(values) for name, values in of.items()}


def gradients(random: Random) -> Rows:
    """Means over what is not zero that are at a limit, or at a share of the largest."""
    kinds = [2.0**-k * np.array([1.0, -1.0, 0.0, 1.0]) for k in (0, 2, 3, 4, 5, 6, 9)]
    kinds += [np.zeros(4), np.array([np.nan, 1.0]), np.array([np.inf, 1.0])]
    of = {f"gradient/{i}.weight": held(random, *kinds) for i in range(3)}
    while True:
        yield {name: next(values) for name, values in of.items()}


def norms(random: Random) -> Rows:
    """Calm gradients, which grow by powers of two now and then."""
    usual = [1.0, 1.0, 1.0, 1.0, 2.0, 0.5]
    rare = [0.0, 16.0, 17.0, 64.0, 1024.0, 4096.0, 1e6, 2e18, np.nan, np.inf]
    while True:
        rows: dict[str, object] = {}
        for i in range(3):
            size = random.choice(rare if random.random() < 0.15 else usual)
            rows[f"gradient/{i}.weight"] = [size * 0.6, size * 0.8]
        yield rows


def updates(random: Random) -> Rows:
    """Updates of powers of two beside weights of one."""
    sizes = [2.0**-k for k in (-1, 0, 2, 4, 5, 8, 10, 11, 12)]
    of = [held(random, *sizes, 0.0, np.nan) for _ in range(3)]
    weights = [held(random, 1.0, 1.0, 1.0, 2.0**-10, 0.0, np.inf) for _ in range(3)]
    while True:
        rows: dict[str, object] = {}
        for i in range(3):
            size = next(weights[i])
            rows[f"{i}.weight"] = np.full(4, size)
            if random.random() < 0.9:
                scale = size if np.isfinite(size) else 1.0
                rows[f"update/{i}.weight"] = np.full(4, next(of[i]) * scale)
        yield rows


def rounded(random: Random) -> Rows:
    """Updates of which some, or most, are zero; and gradients with zeros."""
    kept = [held(random, 0, 1, 2, 3, 8) for _ in range(2)]
    while True:
        rows: dict[str, object] = {}
        for i in range(2):
            n = int(next(kept[i]))
            trained = int(random.choice([0, 4, 8, 8, 8]))
            gradient = np.repeat([1.0, 0.0], [trained, 10 - trained])
            if random.random() < 0.1:
                gradient[9] = np.nan
            rows[f"{i}.weight"] = np.ones(10)
            rows[f"gradient/{i}.weight"] = gradient
            rows[f"update/{i}.weight"] = np.repeat([1.0, 0.0], [n, 10 - n])
        yield rows


def rates(random: Random) -> Rows:
    """Learning rates that are zero for some steps."""
    of = [held(random, 0.0, 0.0, 0.1) for _ in range(2)]
    while True:
        rows = {f"scalar/optimizer/group_{i}/lr": [next(of[i])] for i in range(2)}
        yield rows


def random_run(make: Callable[[Random], Rows], seed: int) -> FakeRun:
    random = np.random.default_rng(seed)
    run, made = FakeRun(every=(3, 10, 10)[seed % 3]), make(random)
    step = 0
    for _ in range(N_STEPS):
        step += int(random.choice([1, 1, 3]))
        made_now = next(made)
        first = next(iter(made_now))
        rows = {
            name: values
            for name, values in made_now.items()
            if name == first or random.random() < ALWAYS
        }
        for name in [name for name in rows if name.startswith("scalar/")]:
            run.value(step, name, np.float64(rows[name][0]))  # type: ignore[index]
        mode = random.choice([ModeKeys.TRAIN] * 8 + [ModeKeys.EVAL, ModeKeys.GLOBAL])
        run.step(
            step,
            rows,
            mode=ModeKeys(mode),
            complete=bool(random.random() > 0.03),
            lossless=bool(random.random() > 0.03),
            skipped=bool(random.random() < 0.06),
        )
    for name, tensor in run.tensors.items():
        if make is rounded and name == "0.weight":
            tensor.dtype = "bfloat16"
    return run


CASES: list[tuple[Callable[[Random], Rows], Rule]] = [
    (outputs, AllZero(threshold=50.0)),
    (outputs, AllZero(patience=1)),
    (outputs, TensorVariance(relative=0.1)),
    (outputs, TensorVariance(min_threshold=0.0625, max_threshold=0.25, patience=2)),
    (gradients, VanishingGradient(threshold=2.0**-3, relative=2.0**-2)),
    (gradients, VanishingGradient(threshold=1.0, relative=2.0**-4, patience=2)),
    (norms, ExplodingGradient(factor=16.0, first_factor=4.0, error_factor=1024.0,
                              deviations=1.0, window=8)),
    (norms, ExplodingGradient(factor=2.0, first_factor=32.0, error_factor=64.0,
                              deviations=6.0, window=5, min_rows=2)),
    (updates, WeightUpdateRatio(large_threshold=1.0, small_threshold=2.0**-4,
                                relative=2.0**-3, patience=2, until=40)),
    (updates, WeightUpdateRatio(large_threshold=0.25, small_threshold=2.0**-8,
                                relative=0.5, patience=3, min_weight=2.0**-10)),
    (rounded, PrecisionLoss(update_threshold=75.0)),
    (rounded, PrecisionLoss(update_threshold=87.5, patience=2)),
    (rates, ZeroLearningRate(patience=2, error_patience=4)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "rule"), CASES, ids=lambda one: getattr(one, "name", None)
)
def test_verdicts_are_those_of_the_page(
    make: Callable[[Random], Rows], rule: Rule
) -> None:
    met = set()
    for seed in SEEDS:
        run = random_run(make, seed)
        expected = BOOKS[type(rule)](rule, run)
        # Every other run is judged at once.
        found = spied(run, rule, max_window=None if seed % 2 else 5)
        assert found == expected, f"seed {seed}"
        met |= set(expected.values())
    # Nothing is proven by runs in which nothing happens.
    assert 0 in met
    assert len(met) > 1
