"""A real training with the default budget, beside processes that keep all cores busy.

What is recorded is counted. Nothing depends on how long anything takes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import tdbg.pytorch as td
from tdbg import create_trial
from tdbg.capture import budget
from tdbg.capture.budget import LEVELS, floor_of
from tdbg.config import BEGINNING
from tdbg.modes import TRAIN
from tdbg.rules import check
from tdbg.view import diagnosis_of_report
from torch_helpers import digits, mlp, train

N_STEPS = 300
INTERVAL = 10


@pytest.fixture
def busy() -> Iterator[None]:
    """Four processes for each core, and all of them end with the test."""
    # Each ends by itself where the test is killed: its parent is then another one.
    program = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
    command = [sys.executable, "-S", "-c", program, str(os.getpid())]
    n = 4 * (os.cpu_count() or 1)
    processes = [subprocess.Popen(command) for _ in range(n)]
    try:
        yield
    finally:
        for each in processes:
            each.kill()
        for each in processes:
            each.wait()


def at_least(statistics: bool) -> int:
    """Count the steps that the floor of evidence leaves, whatever was decided when."""
    n = 0
    last = -1
    for step in range(N_STEPS):
        throttle = LEVELS[floor_of(step)]
        every = INTERVAL * throttle.others if statistics else throttle.steps
        if (statistics and step < BEGINNING) or step - last >= every:
            n, last = n + 1, step
    return n


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.usefixtures("busy")
def test_300_steps_beside_busy_processes_keep_the_floor_of_evidence(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged: without a floor, statistics every 2,560 steps, losses every 16."""
    monkeypatch.delenv("TDBG_BUDGET", raising=False)
    # How much the floor costs here decides nothing.
    monkeypatch.setattr(budget, "FLOOR_NS", sys.maxsize)
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with td.watch(model, criterion, out=run_dir) as hook:
        train(model, criterion, optimizer, digits(16), N_STEPS)
        assert hook.overhead().budget == 0.05
    trial = create_trial(run_dir)
    rows = at_least(statistics=True)
    assert rows >= 60
    losses = trial.tensor("CrossEntropyLoss_output_0").steps(TRAIN, what="statistics")
    assert len(losses) >= at_least(statistics=False) == N_STEPS
    for name in (
        "fc1.weight",
        "gradient/fc1.weight",
        "update/fc1.weight",
        "fc1_output_0",
    ):
        steps = trial.tensor(name).steps(TRAIN, what="statistics")
        assert steps[:BEGINNING] == list(range(BEGINNING)), name
        assert len(steps) >= rows, name
    diagnosis = diagnosis_of_report(check(run_dir, record=False))
    assert diagnosis.blind == []
