"""Rules about losses, data and units say what the formulas of their pages say.

As test_rules_by_the_book has it for those of tensors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rules_by_the_book import spied
from rules_by_the_book_of_data import BOOKS_OF_DATA
from rules_fake import FakeRun
from tdbg.modes import ModeKeys
from tdbg.rules import (
    DeadEmbedding,
    DeadRelu,
    ExplodingTensor,
    LossNotDecreasing,
    LossSpike,
    NLPSequenceRatio,
    NotNormalizedData,
    Rule,
    SaturatedActivation,
    UnchangedTensor,
    Underfitting,
)
from tdbg.run.model_info import ModelInfo, ParameterFacts

SEEDS = range(4)
N_STEPS = 120

Random = np.random.Generator
Record = Callable[[FakeRun, Random, int, int], dict[str, object]]
LOSS = "CrossEntropyLoss_output_0"


def falling(run: FakeRun, random: Random, step: int, index: int) -> dict[str, object]:
    """A loss that falls to a level, and is sometimes far above it, or no number."""
    del run, step
    loss = 0.5 + 1.5 * 0.9**index + 0.01 * random.random()
    if 40 < index % 60 < 46 or random.random() < 0.05:
        loss += float(random.choice([0.3, 0.6, 1.0, 4.0]))
    if random.random() < 0.02:
        loss = np.nan
    return {LOSS: [loss]}


def in_levels(run: FakeRun, random: Random, step: int, index: int) -> dict[str, object]:
    """A loss that stays at a level, falls to the next, and rises; noisy or not."""
    del run, step
    severities = (2.0, 2.0, 1.98, 1.5, 1.52, 1.6, 1.0, 1.9)
    noise = 0.02 * (index // 30 % 2)
    return {
        LOSS: [severities[index // 15 % 8] * (1 + noise * random.standard_normal())]
    }


def inputs(run: FakeRun, random: Random, step: int, index: int) -> dict[str, object]:
    """Batches of any size, of which some are far from 0, wide, narrow or empty."""
    del run, step
    mean, std = [(0, 1), (0, 1), (4, 1), (0, 6), (0.5, 0.001), (-4, 1)][index // 9 % 6]
    size = int(random.choice([3, 10, 20, 40]))
    values = mean + std * np.resize([1.0, -1.0], size)
    if random.random() < 0.15:
        values[: int(random.choice([1, size]))] = np.nan
    return {"Model_input_0": values}


def tokens(run: FakeRun, random: Random, step: int, index: int) -> dict[str, object]:
    """Few tokens at a time; their values are not always kept."""
    padding = [0.1, 0.5, 0.9][index // 10 % 3]
    other = [0.2, 0.9][index // 7 % 2]
    batch = np.where(random.random(60) < other, 7, random.integers(1, 6, 60))
    batch = np.where(random.random(60) < padding, 0, batch)
    if random.random() < 0.8:
        run.value(step, "tokens", batch.reshape(10, 6))
    return {"tokens": batch}


def still(run: FakeRun, random: Random, step: int, index: int) -> dict[str, object]:
    """Weights that change now and then, in one field or in all; gradients mostly."""
    del run, step, index
    rows: dict[str, object] = {}
    for i in range(2):
        kinds = [[1.0, 2.0]] * 6 + [[2.0, 1.5], [1.0, 2.001], [np.nan, np.nan]]
        rows[f"{i}.weight"] = kinds[int(random.integers(len(kinds)))]
        if random.random() < 0.9:
            rows[f"gradient/{i}.weight"] = [1.0]
    return rows


def infinite(run: FakeRun, random: Random, step: int, index: int) -> dict[str, object]:
    """Tensors of all roles, of which now and then some are not finite."""
    del run, step
    names = ("L_input_0", "0_output_0", "1_output_0", "Loss_output_0", "0.weight")
    rows: dict[str, object] = {}
    for name in (*names, "gradient/0.weight"):
        sick = random.random() < (0.3 if index % 20 > 14 else 0.03)
        kind = random.choice([np.nan, np.inf, -np.inf, -np.inf])
        rows[name] = [1.0, kind if sick else 2.0]
    return rows


def of_units(run: FakeRun, random: Random, step: int, index: int) -> dict[str, object]:
    """Counts of ten units, of which more and fewer are active, or beyond."""
    count = int(random.choice([0, 10, 20, 40, 100]))
    share = [0.0, 0.3, 0.5, 0.6, 0.9, 1.0][index // 12 % 6]
    quiet = np.arange(10) < round(10 * share)
    rarely = count * 0.01 * random.integers(0, 3)
    active = np.where(quiet, int(rarely), count // 2)
    often = int(count * random.choice([0.85, 0.9, 0.95, 1.0]))
    run.units(step, "1_output_0", active, count, np.where(quiet, often, 0))
    return {}


def of_rows(run: FakeRun, random: Random, step: int, index: int) -> dict[str, object]:
    """Which of forty rows were used: of more and more of them, of fewer, of none."""
    in_use = [20, 19, 21, 40, 8, 0][index // 25 % 6]
    share = [0.6, 0.6, 0.35][index // 10 % 3]
    used = (random.random(40) < share) & (np.arange(40) < in_use)
    run.units(step, "gradient/e.weight", used * 4, 4)
    return {}


def model_info() -> ModelInfo:
    """A tanh between two layers."""
    linear = ParameterFacts(
        shape=(4, 4), dtype="float32", requires_grad=True, module="Linear"
    )
    return ModelInfo(
        step=0,
        modules={"": "Net", "0": "Linear", "1": "Tanh", "2": "Linear"},
        parameters={"0.weight": linear, "2.weight": linear},
    )


def random_run(record: Record, seed: int, rule: Rule) -> FakeRun:
    random = np.random.default_rng(seed)
    run = FakeRun(every=(3, 10, 10)[seed % 3])
    if isinstance(rule, SaturatedActivation):
        run.known_facts = [model_info()]
    if isinstance(rule, DeadEmbedding) and seed % 2:
        both = {"": "Net", "e": "Embedding", "p": "Embedding"}
        run.known_facts = [ModelInfo(step=0, modules=both)]
    modes = [ModeKeys.TRAIN] * 12 + [ModeKeys.EVAL, ModeKeys.GLOBAL]
    step = 0
    for index in range(N_STEPS):
        step += int(random.choice([1, 1, 3]))
        rows = record(run, random, step, index)
        first = next(iter(rows), "")
        run.step(
            step,
            {n: v for n, v in rows.items() if n == first or random.random() < 0.9},
            mode=modes[int(random.integers(len(modes)))],
            complete=bool(random.random() > 0.03),
            lossless=bool(random.random() > 0.03),
            skipped=bool(random.random() < 0.03),
        )
    return run


CASES: list[tuple[Record, Rule]] = [
    (falling, LossSpike(num_steps=12, deviations=8.0)),
    (falling, LossSpike(num_steps=10, of_way=0.2, of_level=0.9, patience=1)),
    (in_levels, LossNotDecreasing(window=12, fall_percent=1.5, learned_percent=40)),
    (in_levels, LossNotDecreasing(window=21, fall_percent=3.0)),
    (in_levels, LossNotDecreasing(window=5, fall_percent=0.0, learned_percent=99)),
    (in_levels, Underfitting(num_steps=6, flat_percent=2.0, learned_percent=20)),
    (in_levels, Underfitting(num_steps=8, flat_percent=30.0, learned_percent=60)),
    (inputs, NotNormalizedData(min_elements=40, num_steps=4)),
    (inputs, NotNormalizedData(min_elements=60, num_steps=3, max_mean=1.0)),
    (tokens, NLPSequenceRatio(tensor_regex="tokens", min_tokens=180, max_steps=6)),
    (tokens, NLPSequenceRatio(tensor_regex="tokens", min_tokens=180, max_steps=3,
                              token_values=(0, 7), any_percent=30.0,
                              token_thresholds_percent=(60.0, 40.0))),
    (still, UnchangedTensor(num_steps=2)),
    (still, UnchangedTensor(rtol=0.01)),
    (still, UnchangedTensor(num_steps=4, atol=0.01)),
    (infinite, ExplodingTensor()),
    (of_units, DeadRelu(threshold_inactivity=1.5, threshold_layer=50)),
    (of_units, DeadRelu(min_samples=60, max_steps=5, error_layer=60)),
    (of_units, SaturatedActivation(min_samples=60, max_steps=5)),
    (of_units, SaturatedActivation(threshold_activity=6.0, threshold_layer=30)),
    (of_rows, DeadEmbedding()),
    (of_rows, DeadEmbedding(min_steps=4, max_steps=8, threshold=30.0)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("record", "rule"), CASES, ids=lambda one: getattr(one, "name", None)
)
def test_verdicts_are_those_of_the_page(record: Record, rule: Rule) -> None:
    met = set()
    for seed in SEEDS:
        run = random_run(record, seed, rule)
        expected = BOOKS_OF_DATA[type(rule)](rule, run)
        # Every other run is judged at once.
        found = spied(run, rule, max_window=None if seed % 2 else 5)
        assert found == expected, f"seed {seed}"
        met |= set(expected.values())
    # Nothing is proven by runs in which nothing happens.
    assert 0 in met
    assert len(met) > 1
