"""Rows of the steps of a trainer: phases, waiting for results, and samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

import tdbg.mxnet as tm
from tdbg.modes import ModeKeys
from tdbg.run.profile_tables import PHASE_COLUMNS
from tdbg.trial import create_trial

N_STEPS, SIZE = 12, 6


def train(run_dir: Path, divisor: int, *, mean: bool = False) -> Any:
    """Train, evaluate twice, and return the rows of training and of evaluation."""
    net = nn.Dense(3, prefix="d_")
    net.initialize()
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss(prefix="loss_")
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    x, y = nd.ones((SIZE, 4)), nd.zeros((SIZE,))
    with tm.Hook(run_dir) as hook:
        hook.register_block(net)
        hook.register_loss(loss_of)
        for _ in range(N_STEPS):
            with autograd.record():
                loss = loss_of(net(x), y)
                loss = loss.mean() if mean else loss
            loss.backward()
            trainer.step(divisor)
            loss.asnumpy()
        for _ in range(2):
            net(x[:4]).wait_to_read()
        assert hook.counters()["internal_errors"] == 0
    steps = create_trial(run_dir).profile.steps
    rows = steps(ModeKeys.TRAIN)
    total = sum(rows[column] for column in PHASE_COLUMNS.values())
    assert (total == rows["duration_ns"]).all()
    return rows, steps(ModeKeys.EVAL)


def test_a_row_has_forward_backward_optimizer_and_waiting(tmp_path: Path) -> None:
    backward, wait = nd.NDArray.backward, nd.NDArray.wait_to_read
    rows, evaluated = train(tmp_path / "run", SIZE)
    assert len(rows) == N_STEPS
    for phase in ("forward_ns", "backward_ns", "optimizer_ns"):
        assert (rows[phase] > 0).all(), phase
    assert (rows["compute_ns"][1:] > 0).all()
    assert (evaluated["evaluation_ns"] > 0).all()
    assert nd.NDArray.backward is backward
    assert nd.NDArray.wait_to_read is wait


@pytest.mark.parametrize(
    ("divisor", "mean", "samples"),
    [(SIZE, False, SIZE), (1, True, SIZE), (9, False, -1)],
)
def test_samples_are_those_that_the_trainer_is_told(
    tmp_path: Path, divisor: int, mean: bool, samples: int
) -> None:
    rows, evaluated = train(tmp_path / "run", divisor, mean=mean)
    assert list(rows["samples"]) == [samples] * N_STEPS
    assert list(evaluated["samples"]) == [4, 4]
