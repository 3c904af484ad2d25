"""PrecisionLoss at its limits: which rows it looks at, and what it says of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tdbg
import tdbg.pytorch as td
from rules_by_the_book import spied
from rules_fake import FakeRun, judge
from tdbg.modes import ModeKeys
from tdbg.rules import (
    Engine,
    PrecisionLoss,
)
from tdbg.rules.builtin.gradients.precision import _least
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo, ParameterFacts
from tdbg.stats.histogram import Histogram

GRADIENT, OUTPUT = "gradient/a.weight", "a_output_0"
LEAST = 2.0**-24  # Of float16.
N_STEPS = 25


def at_the_brink(percent: int, zeros: int = 0) -> np.ndarray:
    """Numbers of which so many are the least one, and the others are far above."""
    far = np.full(100 - percent, 1000 * LEAST)
    return np.concatenate([np.full(percent, LEAST), far, np.zeros(zeros)])


def run_of(
    values: np.ndarray,
    dtype: str = "float16",
    outputs_at: Iterable[int] = (),
    histograms_at: Iterable[int] = (0, 10, 20),
) -> FakeRun:
    """A gradient at every step; its histogram, and an output in float16, at some."""
    run = FakeRun()
    for step in range(N_STEPS):
        run.step(step, {GRADIENT: values, "b.weight": [1.0]})
        if step in set(outputs_at):
            run.step(step, {OUTPUT: [1.0]})
        if step in set(histograms_at):
            run.histogram(step, GRADIENT, values)
    run.tensor_of(GRADIENT).dtype = dtype
    if OUTPUT in run.tensors:
        run.tensor_of(OUTPUT).dtype = "float16"
    return run


def severities(run: FakeRun, max_window: int | None = None) -> dict[int, int]:
    """Verdicts on the gradient, by step."""
    found = spied(run, PrecisionLoss(), max_window=max_window)
    return {step: level for (_, name, step), level in found.items() if name == GRADIENT}


@pytest.mark.parametrize("max_window", [None, 4])
@pytest.mark.parametrize(
    ("values", "level"),
    [
        (at_the_brink(25), 2),
        (at_the_brink(24), 0),
        (at_the_brink(25, zeros=900), 2),
        (np.append(at_the_brink(100), LEAST / 4), 0),
    ],
)
def test_every_histogram_is_looked_at(
    values: np.ndarray, level: int, max_window: int | None
) -> None:
    assert severities(run_of(values), max_window) == dict.fromkeys((0, 10, 20), level)


def test_a_row_that_is_far_from_the_brink_needs_no_histogram() -> None:
    run = run_of(at_the_brink(0), histograms_at=[])
    assert severities(run) == dict.fromkeys(range(N_STEPS), 0)


def test_of_zeros_and_without_a_histogram_nothing_is_known() -> None:
    assert severities(run_of(np.zeros(9))) == {}
    assert severities(run_of(at_the_brink(50), histograms_at=[4, 5])) == {4: 2, 5: 2}


@pytest.mark.parametrize("max_window", [None, 4])
def test_the_type_of_outputs_counts_from_when_it_is_seen(
    max_window: int | None,
) -> None:
    values = at_the_brink(50)
    assert severities(run_of(values, "float32"), max_window) == {}
    assert severities(run_of(values, "bfloat16"), max_window) == {}
    for first, expected in ((0, (0, 10, 20)), (5, (10, 20)), (11, (20,))):
        run = run_of(values, "float32", outputs_at=[first])
        assert severities(run, max_window) == dict.fromkeys(expected, 2)


def test_rows_of_lost_steps_and_of_evaluation_are_left_out() -> None:
    run = run_of(at_the_brink(50))
    run.step(0, lossless=False)
    run.step(20, mode=ModeKeys.EVAL)
    assert severities(run) == {10: 2}


def test_the_share_and_the_type_are_told() -> None:
    (finding,) = judge(run_of(at_the_brink(40)), PrecisionLoss())
    assert (finding.severity, finding.step) == (Severity.WARNING, 0)
    assert finding.value == pytest.approx(40.0)
    assert finding.threshold == 25.0
    assert "40% of its nonzero elements are" in finding.message
    assert "underflows in float16" in finding.message
    assert "GradScaler" in finding.advice


def test_how_many_weights_lose_their_updates_is_told() -> None:
    run = FakeRun(every=10)
    for step in range(4):
        for i, kept in enumerate((0, 1, 9)):
            rows = {
                f"{i}.weight": np.ones(10),
                f"gradient/{i}.weight": np.ones(10),
                f"update/{i}.weight": np.repeat([1.0, 0.0], [kept, 10 - kept]),
            }
            run.step(step, rows)
            run.tensor_of(f"{i}.weight").dtype = "bfloat16"
    all_lost, most = judge(run, PrecisionLoss())
    assert (all_lost.step, all_lost.severity) == (2, Severity.WARNING)
    assert (all_lost.value, most.value) == (100.0, pytest.approx(90.0))
    assert "100% of its elements with a gradient" in all_lost.message
    assert "at 3 recorded steps in a row" in all_lost.message
    assert "2 of 3 weights are affected" in all_lost.message
    assert (all_lost.first_step, all_lost.stage) == (0, Stage.STANDSTILL)


# ---- updates and histograms ------------------------------------------------------


def narrow(kept: int, n_steps: int = 5, dtype: str = "bfloat16") -> FakeRun:
    """Steps at which so many of 100 elements changed."""
    run = FakeRun(every=10)
    update = np.repeat([1.0, 0.0], [kept, 100 - kept])
    for step in range(n_steps):
        run.step(
            step,
            {
                "a.weight": np.ones(100),
                "gradient/a.weight": np.ones(100),
                "update/a.weight": update,
            },
        )
    run.tensor_of("a.weight").dtype = dtype
    return run


@pytest.mark.parametrize(("kept", "n_findings"), [(35, 1), (36, 0)])
def test_updates_that_are_rounded_away_are_reported(kept: int, n_findings: int):
    found = judge(narrow(kept), PrecisionLoss())
    assert len(found) == n_findings
    assert all(
        "bfloat16 rounds updates of this weight away" in f.message for f in found
    )
    assert judge(narrow(kept, dtype="float32"), PrecisionLoss()) == []


@pytest.mark.parametrize(
    ("optimizer", "severity"),
    [
        ("AdamW", Severity.WARNING),
        ("StochasticAdamW", Severity.INFO),
        # Masters elsewhere, which a hook does not see as this model's.
        (None, Severity.INFO),
    ],
)
def test_only_known_optimizers_surely_round_to_the_nearest(
    optimizer: str | None, severity: Severity
):
    run = narrow(5)
    facts = ParameterFacts(
        shape=(10, 10),
        dtype="bfloat16",
        requires_grad=True,
        module="Linear",
        optimizer=None if optimizer is None else 0,
    )
    run.known_facts = [
        ModelInfo(
            step=0,
            parameters={"a.weight": facts},
            optimizers=(optimizer or "AdamW",),
            complete=True,
        )
    ]
    (finding,) = judge(run, PrecisionLoss())
    assert finding.severity is severity
    assert ("do nothing" in finding.advice) is (severity is Severity.INFO)


@pytest.mark.parametrize(
    ("rate", "cause"), [(1e-7, "PrecisionLoss"), (0.0, "ZeroLearningRate")]
)
def test_rounding_is_the_cause_where_weights_stand_still_though_there_is_a_rate(
    rate: float, cause: str, run_dir: Path
) -> None:
    torch.manual_seed(0)
    model, criterion = nn.Linear(8, 3).bfloat16(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), rate)
    rules = ["PrecisionLoss", "UnchangedTensor", "ZeroLearningRate"]
    with td.watch(model, criterion, out=run_dir, rules=rules, min_free_bytes=0):
        for _ in range(25):
            optimizer.zero_grad()
            inputs = torch.randn(16, 8, dtype=torch.bfloat16)
            criterion(model(inputs), inputs[:, :3].argmax(1)).backward()
            optimizer.step()
    found = tdbg.rules.check(run_dir, rules, record=False).findings
    causes = {each.rule: each.cause and each.cause.rule for each in found}
    expected = {"PrecisionLoss": cause, "UnchangedTensor": cause, cause: None}
    assert causes == expected


def gradients_of(values: np.ndarray, dtype: str, output: str = "float32") -> FakeRun:
    run = FakeRun(every=10)
    for step in range(3):
        run.step(step, {"gradient/a.weight": values, "a_output_0": [1.0]})
        run.histogram(step, "gradient/a.weight", values)
    run.tensor_of("gradient/a.weight").dtype = dtype
    run.tensor_of("a_output_0").dtype = output
    return run


QUANTUM = 2.0**-24


AT_THE_BRINK = QUANTUM * np.repeat([1.0, 3.0, 1000.0], [15, 15, 70])


@pytest.mark.parametrize(("values", "n_reads"), [(QUANTUM * 64, 0), (QUANTUM * 2, 3)])
def test_no_histogram_is_read_where_rows_say_enough(values: float, n_reads: int):
    run = gradients_of(np.full(100, values), "float16")
    engine = Engine(run, PrecisionLoss())
    engine.poll()
    assert engine.judged() == {"PrecisionLoss": 3}
    assert run.tensor_of("gradient/a.weight").reads == n_reads
    # Zeros, and what is not a number, say nothing about the rest.
    mixed = np.append(AT_THE_BRINK, [0.0])
    assert len(judge(gradients_of(mixed, "float16"), PrecisionLoss())) == 1
    nothing = Engine(gradients_of(np.full(9, np.nan), "float16"), PrecisionLoss())
    nothing.poll()
    assert nothing.judged() == {"PrecisionLoss": 0}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_the_least_magnitude_of_a_histogram_bounds_all_but_zeros(
    dtype: type[np.floating],
) -> None:
    random = np.random.default_rng(3)
    for scale in (1e-45, 1e-20, 1e-3, 1.0, 1e4):
        x = (scale * random.normal(size=200)).astype(dtype)
        x[:5] = [0.0, -0.0, np.nan, np.inf, -np.inf]
        magnitudes = np.abs(x[np.isfinite(x) & (x != 0)]).astype(np.float64)
        least = _least(Histogram.of(x))
        if not len(magnitudes):
            assert least == np.inf
        else:
            assert least <= magnitudes.min()
            # Of numbers that are normal in float32 it is within a bin.
            assert magnitudes.min() < 2.0**-126 or magnitudes.min() < 1.01 * least
    assert _least(Histogram.of(np.zeros(3, dtype))) == np.inf
