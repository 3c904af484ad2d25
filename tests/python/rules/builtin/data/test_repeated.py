"""RepeatedData: the same batch at every step, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tdbg
import tdbg.pytorch as td
from rules_classes import LABELS
from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.modes import ModeKeys
from tdbg.rules import Engine, RepeatedData
from tdbg.run.findings import Finding, Severity
from torch_helpers import digits

INPUT = "Model_input_0"
N_STEPS = 30
Batch = dict[str, Any]
RANDOM = np.random.default_rng(0)
SAME: Batch = {INPUT: RANDOM.normal(size=(32, 4)), LABELS: RANDOM.integers(0, 9, 32)}


def recorded(
    batch_of: Callable[[int], Batch], mode: ModeKeys = ModeKeys.TRAIN
) -> FakeRun:
    run = FakeRun()
    for step in range(N_STEPS):
        batch = batch_of(step)
        run.step(step, batch, mode=mode)
        for name, values in batch.items():
            run.tensor_of(name).dtype = np.asarray(values).dtype.name
    return run


def test_a_batch_that_stays_is_an_info() -> None:
    run = recorded(lambda _: SAME)
    (finding,) = judge(run, RepeatedData())
    assert (finding.tensor, finding.severity) == (INPUT, Severity.INFO)
    assert (finding.first_step, finding.step, finding.value) == (0, 9, 10.0)
    assert "inputs and labels are identical" in finding.message
    assert "next(iter(loader))" in finding.advice
    for cuts in (range(N_STEPS), (9,), (4, 10)):
        assert judge_in_parts(run, cuts, RepeatedData()) == [finding]


def test_it_ends_with_the_first_batches_that_are_others() -> None:
    run = recorded(
        lambda step: SAME if step < 20 else {**SAME, INPUT: RANDOM.normal(size=(32, 4))}
    )
    begin, end = judge(run, RepeatedData())
    assert (begin.step, end.phase, end.last_step) == (9, "end", 19)


def of_new(name: str) -> Callable[[int], Batch]:
    return lambda step: {**SAME, name: SAME[name] + step}


def another_once(step: int) -> Batch:
    return of_new(INPUT)(step) if step == 5 else SAME


def one_hot(step: int) -> Batch:
    """A different state at each step, of which rows show nothing."""
    return {INPUT: np.eye(16)[[step % 16]]}


def tokens(step: int) -> Batch:
    """Numbers in another order at each step."""
    return {INPUT: np.random.default_rng(step).permutation(64)}


def constant(_: int) -> Batch:
    return {INPUT: np.zeros((32, 4))}


def second_input(_: int) -> Batch:
    """A graph that stays, and what is known of its nodes."""
    return {**SAME, "Model_input_1": RANDOM.normal(size=4)}


@pytest.mark.parametrize(
    "batch_of",
    [
        of_new(INPUT),
        of_new(LABELS),
        another_once,
        one_hot,
        tokens,
        constant,
        second_input,
    ],
)
def test_other_batches_and_what_rows_do_not_tell_are_silent(
    batch_of: Callable[[int], Batch],
) -> None:
    assert judge(recorded(batch_of), RepeatedData()) == []


def test_what_is_evaluated_is_not_judged() -> None:
    assert judge(recorded(lambda _: SAME, ModeKeys.EVAL), RepeatedData()) == []


@pytest.mark.parametrize(("is_same", "n_findings"), [(True, 1), (False, 0)])
def test_values_tell_numbers_in_another_order(is_same: bool, n_findings: int) -> None:
    run = recorded(lambda _: {INPUT: np.arange(64)})
    for step in (0, 1):
        shown = np.arange(64) if is_same else tokens(step)[INPUT]
        run.value(step, INPUT, shown)
    assert len(judge(run, RepeatedData())) == n_findings


def test_each_registered_module_is_judged_by_its_own_inputs() -> None:
    run = recorded(
        lambda step: {INPUT: SAME[INPUT], "Other_input_0": SAME[INPUT] + step}
    )
    run.tensor_of("Other_input_0").role = "model_input"
    (finding,) = judge(run, RepeatedData())
    assert finding.tensor == INPUT
    assert "inputs are identical" in finding.message


def test_a_first_step_of_which_something_was_lost_is_compared_with_nothing() -> None:
    run = recorded(lambda _: SAME)
    mode, complete, _, skipped, at = run.steps[0]
    run.steps[0] = mode, complete, False, skipped, at
    engine = Engine(run, RepeatedData())
    assert engine.poll() == []
    assert engine.judged() == {"RepeatedData": 0}


def real(run_dir: Path, batch_of: Callable[[DataLoader[Any]], Any]) -> list[Finding]:
    torch.manual_seed(0)
    inputs, labels = next(digits(320))
    loader: DataLoader[Any] = DataLoader(TensorDataset(inputs, labels), 32)
    batches = batch_of(loader)
    model, criterion = nn.Linear(64, 10), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with td.watch(
        model, criterion, out=run_dir, rules=[RepeatedData()], min_free_bytes=0
    ):
        for _ in range(20):
            x, y = batches()
            optimizer.zero_grad()
            loss: Tensor = criterion(model(x), y)
            loss.backward()
            optimizer.step()
    return list(tdbg.rules.check(run_dir, RepeatedData(), record=False).findings)


def begun_anew(loader: DataLoader[Any]) -> Callable[[], Any]:
    return lambda: next(iter(loader))


def one_after_the_other(loader: DataLoader[Any]) -> Callable[[], Any]:
    batches = (batch for _ in range(2) for batch in loader)
    return lambda: next(batches)


def shuffled(loader: DataLoader[Any]) -> Callable[[], Any]:
    other = DataLoader(loader.dataset, 32, shuffle=True)
    return lambda: next(iter(other))


def test_a_loader_that_begins_anew_in_each_step_is_told(run_dir: Path) -> None:
    (finding,) = real(run_dir, begun_anew)
    assert (finding.tensor, finding.step) == ("Linear_input_0", 9)


@pytest.mark.parametrize("batch_of", [one_after_the_other, shuffled])
def test_a_loader_that_goes_on_is_not(
    batch_of: Callable[[DataLoader[Any]], Any], run_dir: Path
) -> None:
    assert real(run_dir, batch_of) == []
