"""Ordinary programs under ``tdbg run``: which rules cannot judge, and why."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tdbg.rules import check
from tdbg.view import diagnosis_of_report

DATA = """
import sys
import numpy as np
n, rng = int(sys.argv[1]), np.random.default_rng(0)
x = rng.normal(size=(16 * n, 64)).astype("float32")
y = (x @ rng.normal(size=(64, 10))).argmax(1)
batches = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 16 * n, 16)]
"""
PYTORCH = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
criterion = torch.nn.CrossEntropyLoss()
for a, b in batches:
    optimizer.zero_grad()
    criterion(model(torch.from_numpy(a)), torch.from_numpy(b)).backward()
    optimizer.step()
"""
MODEL = """
import keras
keras.utils.set_random_seed(0)
hidden = keras.layers.Dense(32, activation="relu")
model = keras.Sequential([keras.Input((64,)), hidden, keras.layers.Dense(10)])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""
KERAS = f"""{MODEL}
model.compile("sgd", loss_of)
model.fit(x, y, batch_size=16, verbose=0)
"""
TENSORFLOW = f"""{MODEL}
import tensorflow as tf
optimizer = keras.optimizers.SGD(0.05)

@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

for a, b in batches:
    step(a, b)
"""
JAX = """
import jax, optax
from flax import linen as nn

class Model(nn.Module):
    @nn.compact
    def __call__(self, a):
        return nn.Dense(10)(nn.relu(nn.Dense(32)(a)))

model, tx = Model(), optax.sgd(0.05)
params = model.init(jax.random.key(0), x[:16])
state = tx.init(params)

def loss_of(params, a, b):
    logits = model.apply(params, a)
    return optax.softmax_cross_entropy_with_integer_labels(logits, b).mean()

@jax.jit
def step(params, state, a, b):
    loss, gradients = jax.value_and_grad(loss_of)(params, a, b)
    updates, state = tx.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss

for a, b in batches:
    params, state, loss = step(params, state, a, b)
"""
TREES = """
x = rng.normal(size=(1000, 8))
y = (x @ rng.normal(size=8) + rng.normal(size=1000) > 0).astype(int)
"""
XGBOOST = f"""{TREES}
import xgboost
d, v = xgboost.DMatrix(x[:800], y[:800]), xgboost.DMatrix(x[800:], y[800:])
given = dict(objective="binary:logistic", max_depth=3, eta=0.02, nthread=1)
evals = [(d, "train"), (v, "valid")]
xgboost.train(given, d, n, evals=evals, verbose_eval=False)
"""
LIGHTGBM = f"""{TREES}
import lightgbm
d = lightgbm.Dataset(x[:800], y[:800])
v = lightgbm.Dataset(x[800:], y[800:], reference=d)
given = dict(objective="binary", num_leaves=8, learning_rate=0.02, num_threads=1)
given["verbose"] = -1
lightgbm.train(given, d, n, valid_sets=[d, v], valid_names=["train", "valid"])
"""
PROGRAMS = {
    "pytorch": PYTORCH,
    "keras": KERAS,
    "tensorflow": TENSORFLOW,
    "jax": JAX,
    "xgboost": XGBOOST,
    "lightgbm": LIGHTGBM,
}

# Rules of losses need more of them than so short a training has.
LOSSES = r"the rule needs a loss at .* recorded steps of training"
TOO_SHORT = dict.fromkeys(("LossNotDecreasing", "LossSpike", "Underfitting"), LOSSES)
# A function of JAX says what it returns, and not what it is given.
NOT_NAMED = r"were asked for, but the step does not name them: tj\.tap\("
RATE = "holds no learning rate: optax.inject_hyperparams"
OF_JAX = {
    **dict.fromkeys(("AllZero", "ExplodingTensor", "TensorVariance"), NOT_NAMED),
    **dict.fromkeys(("ClassImbalance", "Confusion", "LossMisuse"), NOT_NAMED),
    **dict.fromkeys(("NotNormalizedData", "RepeatedData"), NOT_NAMED),
    **dict.fromkeys(("PoorWeightInitialization", "UnshuffledData"), NOT_NAMED),
    **dict.fromkeys(("VanishingLearningRate", "ZeroLearningRate"), RATE),
}


@pytest.mark.parametrize(
    "n_steps", [50, pytest.param(300, marks=pytest.mark.nightly), 1000]
)
@pytest.mark.parametrize("framework", PROGRAMS)
def test_in_a_default_run_each_rule_judges_or_says_why_it_does_not(
    framework: str, n_steps: int, tmp_path: Path
) -> None:
    """Sabotaged: rules that do not apply lack data, and trees are to register models.

    A rule that could not judge stands here with its reason, and the set is exact.
    """
    program, run = tmp_path / "train.py", tmp_path / "run"
    program.write_text(DATA + PROGRAMS[framework])
    command = [sys.executable, "-m", "tdbg", "run", "--out", str(run), "--"]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    alone = {"KERAS_BACKEND": "tensorflow", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, sys.executable, str(program), str(n_steps)],
        env={**os.environ, **quiet, **alone, "TDBG_BUDGET": "auto"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = check(run, record=False)
    assert n_steps - 16 <= report.last_step < n_steps  # As far apart as losses are.
    diagnosis = diagnosis_of_report(report)
    assert not diagnosis.failed
    expected = {
        **(TOO_SHORT if n_steps == 50 else {}),
        **(OF_JAX if framework == "jax" else {}),
    }
    reasons = {each.rule: each.message for each in report.statuses}
    if "LossNotDecreasing" not in diagnosis.blind:
        expected.pop("LossNotDecreasing", None)  # The loss has fallen by then.
    assert {*diagnosis.blind} == {*expected}, reasons
    for rule, reason in expected.items():
        assert re.search(reason, reasons[rule])
    for rule in diagnosis.inapplicable:
        assert reasons[rule].startswith("does not apply: ")
    # Trees and networks have different rules, and neither has few of them.
    assert len(diagnosis.quiet) + len(diagnosis.problems) >= 9
