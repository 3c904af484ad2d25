"""``tdbg run``: programs with Gluon that know no tdbg are captured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tdbg.modes import EVAL, TRAIN
from tdbg.trial import create_trial

PRELUDE = """
import warnings
warnings.simplefilter("ignore")
import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn


def make(prefix, n_out=3):
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(8, activation="relu"), nn.Dense(n_out))
    net.initialize()
    net.hybridize()
    return net


def train(net, loss, trainer, n_steps=4):
    for _ in range(n_steps):
        x, y = nd.random.normal(shape=(6, 5)), nd.ones(6)
        with autograd.record():
            value = loss(net(x), y)
        value.backward()
        trainer.step(6)
"""
ONE = (
    PRELUDE
    + """
net = make("net_")
trainer = gluon.Trainer(net.collect_params(), "adam")
loss = gluon.loss.SoftmaxCrossEntropyLoss(prefix="loss_")
train(net, loss, trainer)
loss(net(nd.ones((2, 5))), nd.ones(2))
"""
)
TWO = (
    PRELUDE
    + """
loss = gluon.loss.SoftmaxCrossEntropyLoss(prefix="loss_")
for prefix in ("a_", "b_"):
    net = make(prefix)
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    train(net, loss, trainer)
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    train(net, loss, trainer)
"""
)
ADVERSARIES = (
    PRELUDE
    + """
g, d = make("g_", 5), make("d_", 1)
trainers = [gluon.Trainer(each.collect_params(), "sgd") for each in (g, d)]
loss = gluon.loss.SigmoidBinaryCrossEntropyLoss(prefix="loss_")
for _ in range(3):
    with autograd.record():
        value = loss(d(g(nd.ones((2, 4)))), nd.ones(2))
    value.backward()
    for trainer in trainers:
        trainer.step(2)
"""
)
OWN = (
    PRELUDE
    + """
import sys
import tdbg.mxnet as tm
hook = tm.Hook(sys.argv[1])
net = make("net_")
hook.register_block(net)
trainer = gluon.Trainer(net.collect_params(), "adam")
train(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
hook.close()
"""
)


def launch(folder: Path, program: str) -> Any:
    script = folder / "train.py"
    script.write_text(program)
    command = [sys.executable, "-m", "tdbg", "run", "--out", str(folder / "run")]
    command += ["--", sys.executable, str(script), str(folder / "own")]
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "TDBG_BUDGET": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended


def test_model_loss_and_trainer_of_a_program_are_found(tmp_path: Path) -> None:
    ended = launch(tmp_path, ONE)
    assert "captured 4 steps" in ended.stderr
    run = create_trial(tmp_path / "run")
    assert run.steps(mode=TRAIN) == [0, 1, 2, 3]
    assert run.steps(mode=EVAL) == [0]
    for name in (
        "gradient/net_dense0_weight",
        "loss_output_0",
        "net_dense0_relu_output_0",
        "net_dense1_bias",
        "scalar/optimizer/group_0/lr",
    ):
        assert name in run.tensor_names()


def test_a_trainer_for_another_model_begins_a_run_and_one_for_the_same_does_not(
    tmp_path: Path,
) -> None:
    ended = launch(tmp_path, TWO)
    assert "captured 2 trainings" in ended.stderr
    for folder, prefix in (("run", "a_"), ("run-2", "b_")):
        run = create_trial(tmp_path / folder)
        assert run.steps(mode=TRAIN) == list(range(8))
        names = run.tensor_names(collection="weights")
        assert names == [f"{prefix}dense0_weight", f"{prefix}dense1_weight"]
        assert run.tensor("loss_output_0").steps() == list(range(8))


def test_adversaries_share_a_run(tmp_path: Path) -> None:
    assert "captured 3 steps" in launch(tmp_path, ADVERSARIES).stderr
    run = create_trial(tmp_path / "run")
    assert {"g_dense0_weight", "d_dense0_weight"} <= set(run.tensor_names())


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (OWN, ""),
        (
            "import warnings\nwarnings.simplefilter('ignore')\nimport mxnet\n",
            "no gluon",
        ),
    ],
)
def test_of_a_program_with_a_hook_or_without_a_trainer_there_is_no_run(
    tmp_path: Path, program: str, said: str
) -> None:
    ended = launch(tmp_path, program)
    assert said in ended.stderr
    assert "captured 4" not in ended.stderr
    assert not (tmp_path / "run" / "w").exists()
