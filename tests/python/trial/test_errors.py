"""Questions that have no answer, and what their errors say there is instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg.errors import (
    ConfigurationError,
    InvalidWorker,
    NoMoreData,
    QueryError,
    ShapeUnavailableForStep,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)
from tdbg.modes import ModeKeys
from tdbg.trial import Scope, Trial, create_trial


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 0 to 28 of two workers: statistics, and values at every tenth."""
    path = tmp_path_factory.mktemp("errors") / "run"
    for rank in range(2):
        with RunBuilder(path, rank=rank, world_size=2) as writer:
            for step in range(0, 30, 2):
                array = np.full(3, step, np.float32)
                writer.save(step, "fc.weight", array, what="statistics")
                if step % 10 == 0:
                    writer.save(step, "fc.weight", array, what="values")
                    writer.save(step, "relu_output_0", array)
                if step == 20 and rank == 0:
                    writer.save(step, "alone", array)
                writer.end_step(step)
    return path


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run whose training has made no step so far."""
    path = tmp_path_factory.mktemp("errors") / "empty"
    with RunBuilder(path) as writer:
        writer.flush()
        yield path


Ask = Callable[[Trial], Any]

QUESTIONS: list[tuple[Ask, type[Exception], str]] = [
    (
        lambda t: t.tensor("fc.weihgt"),
        TensorUnavailable,
        "no tensor 'fc.weihgt'; did you mean 'fc.weight'?",
    ),
    (
        lambda t: t.tensor("zzz"),
        TensorUnavailable,
        "no tensor 'zzz'; there are 3: 'alone', 'fc.weight', 'relu_output_0'",
    ),
    (
        lambda t: t.tensor("fc.weight").value(4),
        TensorUnavailableForStep,
        (
            "'fc.weight' has no value at step 4; its statistics are there: use "
            "stats(step) or reduction_value(step, name)"
        ),
    ),
    (
        lambda t: t.tensor("relu_output_0").value(12),
        TensorUnavailableForStep,
        "'relu_output_0' has no value at step 12; the nearest step that has one is 10",
    ),
    (
        lambda t: t.tensor("alone").value(20, worker="worker_1"),
        TensorUnavailableForStep,
        ("'alone' has no value at step 20 of worker_1 (it has one of worker_0)"),
    ),
    (
        lambda t: t.tensor("fc.weight").value(7),
        StepUnavailable,
        "step 7 was not saved; the nearest recorded is 6 or 8",
    ),
    (
        lambda t: t.tensor("fc.weight").value(99),
        NoMoreData,
        "step 99 will not come: the training has ended, its last is 28",
    ),
    (
        lambda t: t.tensor("fc.weight").stats(7),
        StepUnavailable,
        "step 7 was not saved; the nearest recorded is 6 or 8",
    ),
    (
        lambda t: t.tensor("fc.weight").value(3, mode="EVAL"),
        NoMoreData,
        (
            "step 3 (mode EVAL) will not come: the training has ended, modes with steps"
            " are TRAIN (0 to 28)"
        ),
    ),
    (
        lambda t: t.tensor("fc.weight").value(3, mode="TEST"),
        QueryError,
        "mode must be one of TRAIN, EVAL, PREDICT, GLOBAL, not 'TEST'",
    ),
    (
        lambda t: t.tensor("fc.weight").value(10, worker="worker_5"),
        InvalidWorker,
        "there is no worker 'worker_5'; did you mean 'worker_1' or 'worker_0'?",
    ),
    (
        lambda t: t.tensor("fc.weight").steps(worker="rank0"),
        InvalidWorker,
        "there is no worker 'rank0'; there are 2: 'worker_0', 'worker_1'",
    ),
    (
        lambda t: t.tensor("relu_output_0").shape(12),
        ShapeUnavailableForStep,
        "'relu_output_0' has no shape at step 12; the nearest step that has one is 10",
    ),
    (
        lambda t: t.tensor("relu_output_0").histogram(10),
        TensorUnavailableForStep,
        (
            "'relu_output_0' has no histogram at step 10; its value is there: "
            "tdbg.stats.Histogram.of(value(step))"
        ),
    ),
    (
        lambda t: t.tensor("fc.weight").reduction_value(0, "median"),
        ConfigurationError,
        "unknown reduction 'median': use one of min, max, mean",
    ),
    (
        lambda t: t.steps(what="rows"),
        ConfigurationError,
        "what must be one of any, values, statistics, tensors, histograms, not 'rows'",
    ),
    (
        lambda t: t.collection("weigths"),
        QueryError,
        "no collection 'weigths'; did you mean 'weights'?",
    ),
    (
        lambda t: t.wait_for_steps([99], timeout=0),
        NoMoreData,
        "step 99 will not come: the training has ended, its last is 28",
    ),
    (
        lambda t: create_trial(t.path, range_steps=(5, 5)),
        ConfigurationError,
        (
            "range_steps (5, 5) holds no step: the end is the step after the last, such"
            " as (5, 6)"
        ),
    ),
    (
        lambda t: create_trial(t.path, range_steps=5),  # type: ignore[arg-type]
        ConfigurationError,
        (
            "range_steps must be (first, end): the first global step and the one after "
            "the last, or None, not 5"
        ),
    ),
    (
        lambda t: create_trial(t.path, attempt=3),
        QueryError,
        "there is no attempt 3: the run has 1, from 0 to 0",
    ),
    (
        lambda t: t.table("statistcs"),
        QueryError,
        "a run has no table 'statistcs'; did you mean 'statistics'?",
    ),
    (
        lambda t: t.table("runs"),
        QueryError,
        "a run has no table 'runs'; ",
    ),
    (
        lambda t: t.table("statistics", ["l3"]),
        QueryError,
        "table 'statistics' has no column 'l3'; ",
    ),
    (
        lambda t: t.table("statistics", None, Scope(("fc.weihgt",))),
        TensorUnavailable,
        "no tensor 'fc.weihgt'; did you mean 'fc.weight'?",
    ),
    (
        lambda t: t.table("steps", None, Scope(("fc.weight",))),
        QueryError,
        "table 'steps' has no names: it has rows of steps",
    ),
    (
        lambda t: t.profile.steps(worker="rank9"),
        InvalidWorker,
        "there is no worker 'rank9'; there are 2: 'worker_0', 'worker_1'",
    ),
    (
        lambda t: t.profile.steps(mode="TEST"),
        QueryError,
        "mode must be one of TRAIN, EVAL, PREDICT, GLOBAL, not 'TEST'",
    ),
    (
        lambda t: t.profile.system(node=7),
        ConfigurationError,
        "node must be a number below 1, not 7",
    ),
    (
        lambda t: t.profile.operators("w9"),
        QueryError,
        "no window 'w9' was measured; there is none in this run",
    ),
    (
        lambda t: t.profile.functions("w9"),
        QueryError,
        "no window 'w9' was measured; there is none in this run",
    ),
    (
        lambda t: t.profile.collectives(kind="reduce_all"),
        ConfigurationError,
        "kind: unknown 'reduce_all'; ",
    ),
    (
        lambda t: t.profile.get_training_phase_intervals("forward"),
        ConfigurationError,
        "phase must be one of TRAIN, EVAL, PREDICT, GLOBAL, initialization, ",
    ),
    (
        lambda t: t.profile.get_utilization_stats(resource="tpu"),
        ConfigurationError,
        "resource must be one of cpu, gpu, memory, gpu_memory, i/o, network, not 'tpu'",
    ),
    (
        lambda t: t.profile.get_step_statistics(by="layer"),
        ConfigurationError,
        "by must be one of training_phase, framework_metric, process, not 'layer'",
    ),
    (
        lambda t: t.profile.wait(system=1, timeout=0.01),
        NoMoreData,
        "the training ended after no samples of the hosts",
    ),
]

OF_EMPTY: list[tuple[Ask, type[Exception], str]] = [
    (
        lambda t: t.tensor("fc.weight"),
        TensorUnavailable,
        "no tensor 'fc.weight'; there is none so far",
    ),
    (
        lambda t: t.wait_for_steps([0], timeout=0),
        StepNotYetAvailable,
        "step 0 is not there yet; no step is recorded so far; it did not come in 0 s",
    ),
    (
        lambda t: t.wait_for_steps([0], ModeKeys.EVAL, timeout=0),
        StepNotYetAvailable,
        "step 0 (mode EVAL) is not there yet; no step is recorded so far; it did not",
    ),
]


def check(trial: Trial, ask: Ask, error: type[Exception], told: str) -> None:
    with pytest.raises(error) as raised:
        ask(trial)
    assert str(raised.value).startswith(told), str(raised.value)


@pytest.mark.parametrize(("ask", "error", "told"), QUESTIONS)
def test_an_error_says_what_there_is_instead(
    run: Path, ask: Ask, error: type[Exception], told: str
) -> None:
    check(create_trial(run), ask, error, told)


@pytest.mark.parametrize(("ask", "error", "told"), OF_EMPTY)
def test_an_empty_run_says_that_it_is(
    empty: Path, ask: Ask, error: type[Exception], told: str
) -> None:
    check(create_trial(empty), ask, error, told)
