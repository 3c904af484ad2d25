"""Gluon: sick trainings are found by the rules that find them in PyTorch, and when."""

from __future__ import annotations

from pathlib import Path

import mxnet as mx
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import tdbg.mxnet as tm
from benchmarks.frameworks.programs import gluon as program
from tdbg.rules import resolve
from tdbg.rules.testing import judge
from tdbg.run.findings import Severity

# Of each training the rule that names its fault, the tensor, and the step at which it
# does so in PyTorch.  Overfit waits until accuracy has fallen by more than its error,
# and Gluon draws other weights: it is told ten steps later.
EXPECTED = {
    "deep sigmoids": ("PoorWeightInitialization", "gradient/net_dense0_weight", 0),
    "dead ReLUs": ("DeadRelu", "net_relu0_output_0", 9),
    "exploding rate": ("WeightUpdateRatio", "net_dense0_weight", 0),
    "frozen layers": ("NotInOptimizer", "net_dense0_weight", 9),
    "class imbalance": ("ClassImbalance", "_input_1", 12),
    "overfit": ("Overfit", "_output_0", 180),
}


@pytest.mark.parametrize("training", EXPECTED)
def test_a_fault_is_named_by_the_rule_that_names_it_in_pytorch(
    run_dir: Path, training: str
) -> None:
    program.main(training, str(run_dir))
    rule, tensor, step = EXPECTED[training]
    found = [each for each in judge(run_dir, *resolve("default")) if each.rule == rule]
    assert found
    assert str(found[0].tensor).endswith(tensor)
    assert found[0].step == step


def test_of_a_healthy_training_nothing_is_said(run_dir: Path) -> None:
    program.main("healthy", str(run_dir))
    found = judge(run_dir, *resolve("default"))
    assert [each for each in found if each.severity > Severity.INFO] == []


def test_a_loss_is_accused_only_of_what_gluon_computes(run_dir: Path) -> None:
    """Gluon gives labels the shape of the outputs, and has the classes last."""
    net = nn.Dense(1, prefix="net_")
    net.initialize()
    sequence = nn.Dense(6, flatten=False, prefix="sequence_")
    sequence.initialize()
    regression, divergence = gluon.loss.L2Loss(), gluon.loss.KLDivLoss(False)
    likelihood = gluon.loss.SoftmaxCrossEntropyLoss(from_logits=True)
    given = ["losses", "predictions", "labels"]
    config = tm.SaveConfig(save_interval=1)
    x = mx.nd.random.normal(shape=(8, 4, 5))
    share = mx.nd.ones((8, 4, 6)) / 6
    with tm.Hook(run_dir, include_collections=given, save_config=config) as hook:
        for block in (net, sequence):
            hook.register_block(block)
        for loss in (regression, divergence, likelihood):
            hook.register_block(loss)
        both = [*net.collect_params().values(), *sequence.collect_params().values()]
        trainer = gluon.Trainer(both, "sgd", {"learning_rate": 0.01})
        for _ in range(5):
            with autograd.record():
                scores = sequence(x)
                loss = (
                    regression(net(x), x[:, 0, 0]).mean()
                    + divergence(scores, share).mean()
                    + likelihood(scores.log_softmax(-1), x[:, :, 0] > 0).mean()
                )
            loss.backward()
            trainer.step(1)
    assert judge(run_dir, *resolve("LossMisuse")) == []
