"""``tdbg run`` captures loops with tapes in scripts that know no tdbg.

The script has the shape of Keras's guides to training loops written from scratch, and
of adversaries that share a step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tdbg
from tdbg.launch.family import DirectoryFamily
from tdbg.modes import EVAL, TRAIN
from tdbg.trial import Trial

SCRIPT = """
import sys
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype("float32")
keras.utils.set_random_seed(0)
inputs = keras.Input((64,))
hidden = keras.layers.Dense(32, activation="relu", name="hidden")(inputs)
model = keras.Model(inputs, keras.layers.Dense(10, name="scores")(hidden))
optimizer = keras.optimizers.SGD(0.1)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy = keras.metrics.SparseCategoricalAccuracy()

def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_of(y, logits)
    grads = tape.gradient(loss, model.trainable_weights)
    optimizer.apply_gradients(zip(grads, model.trainable_weights))
    accuracy.update_state(y, logits)
    return loss

def test_step(x, y):
    return loss_of(y, model(x, training=False))

train_step = tf.function(train_step, jit_compile=sys.argv[1] == "XLA")
test_step = tf.function(test_step)
model(images[:2])
data = tf.data.Dataset.from_tensor_slices((images[:640], labels[:640])).batch(64)
for epoch in range(2):
    losses = [float(train_step(x, y)) for x, y in data]
    test_step(tf.constant(images[640:]), tf.constant(labels[640:]))
print("%.5f %.4f" % (np.mean(losses), float(accuracy.result())))
"""


def run_script(folder: Path, way: str, *before: str) -> tuple[str, str]:
    path = folder / "train.py"
    path.write_text(SCRIPT)
    variables = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": "",
    }
    result = subprocess.run(
        [*before, sys.executable, str(path), way],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, **variables},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr


def launch(folder: Path, way: str) -> tuple[str, str]:
    command = [sys.executable, "-m", "tdbg", "run", "--out", str(folder / "run"), "--"]
    return run_script(folder, way, *command)


def test_a_loop_is_captured_and_prints_what_it_prints_by_itself(
    tmp_path: Path,
) -> None:
    printed, told = launch(tmp_path, "graph")
    assert printed == run_script(tmp_path, "graph")[0]
    assert "tdbg: captured" in told
    trial: Trial = tdbg.create_trial(tmp_path / "run")
    assert len(trial.steps(mode=TRAIN)) == 20
    assert len(trial.steps(mode=EVAL)) == 2
    names = set(trial.tensor_names())
    assert "gradient/hidden/kernel" in names
    assert {f"SparseCategoricalCrossentropy_{each}" for each in (
        "input_0", "input_1", "output_0")} <= names  # fmt: skip
    assert any(name.startswith("unit/hidden_relu") for name in names)
    assert not DirectoryFamily(tmp_path / "run", {}).member(2).exists()


AGAIN = """
import keras
import numpy as np
import tensorflow as tf

x = np.random.default_rng(0).random((64, 8)).astype("float32")
y = np.arange(64) % 3
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def train(rate, compiled):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    optimizer = keras.optimizers.SGD(rate)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        grads = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(grads, model.trainable_weights))
    step = tf.function(step) if compiled else step
    for _ in range(7):
        step(x, y)

train(0.1, True)
train(0.5, True)
train(0.5, False)
"""


def test_each_training_of_a_sweep_has_a_run(tmp_path: Path) -> None:
    path, out = tmp_path / "sweep.py", tmp_path / "run"
    path.write_text(AGAIN)
    command = [sys.executable, "-m", "tdbg", "run", "--out", str(out), "--"]
    subprocess.run(
        [*command, sys.executable, str(path)],
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""},
        check=True,
        capture_output=True,
    )
    for number in (1, 2, 3):
        trial = tdbg.create_trial(DirectoryFamily(out, {}).member(number))
        (loss,) = trial.tensor_names(collection="losses")
        assert trial.tensor(loss).steps(mode=TRAIN) == list(range(7))


MICRO_BATCHES = """
import sys
import keras
import numpy as np
import tensorflow as tf

x = np.random.default_rng(0).random((192, 8)).astype("float32")
y = x.sum(1, keepdims=True)
loss_of = keras.losses.MeanSquaredError()

def make(compiled):
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(1, name="d1", use_bias=False)])
    def gradient(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) / 4
        return tape.gradient(loss, model.trainable_variables)[0]
    return model.trainable_variables[0], tf.function(gradient) if compiled else gradient

given = []
for compiled in (False, True):
    kernel, gradient = make(compiled)
    optimizer = keras.optimizers.SGD(0.1)
    for step in range(3):
        starts = range(16 * step, 16 * step + 16, 4)
        sums = tf.add_n([gradient(x[i:i + 4], y[i:i + 4]) for i in starts])
        optimizer.apply([sums], [kernel])
        given.append(sums.numpy())
np.save(sys.argv[1], given)

unused = keras.optimizers.SGD(0.1)
kernel, gradient = make(False)
for _ in range(70):
    kernel.assign_sub(0.1 * gradient(x[:4], y[:4]))
"""


def test_micro_batches_before_the_first_update_belong_to_its_step(
    tmp_path: Path,
) -> None:
    path, out, given = tmp_path / "sums.py", tmp_path / "run", tmp_path / "given.npy"
    path.write_text(MICRO_BATCHES)
    command = [sys.executable, "-m", "tdbg", "run", "--save-interval", "1"]
    command += ["--include", "gradients", "--statistics-interval", "1"]
    subprocess.run(
        [*command, "--out", str(out), "--", sys.executable, str(path), str(given)],
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""},
        check=True,
        capture_output=True,
    )
    sums = np.load(given)
    for number in (1, 2):
        trial = tdbg.create_trial(DirectoryFamily(out, {}).member(number))
        assert trial.steps(mode=TRAIN) == [0, 1, 2]
        (name,) = trial.tensor_names(collection="losses")
        gradient = trial.tensor("gradient/d1/kernel")
        for step in range(3):
            assert trial.tensor(name).stats(step).count == 4
            expected = sums[3 * (number - 1) + step]
            assert gradient.value(step) == pytest.approx(expected, abs=1e-6)
    # An optimizer that never steps is not awaited for ever.
    by_hand = tdbg.create_trial(DirectoryFamily(out, {}).member(3))
    (name,) = by_hand.tensor_names(collection="losses")
    counts = [by_hand.tensor(name).stats(step).count for step in range(7)]
    assert counts == [64, 1, 1, 1, 1, 1, 1]


def test_a_loop_under_xla_is_left_alone_and_that_is_said(tmp_path: Path) -> None:
    _, told = launch(tmp_path, "XLA")
    assert "compiled by XLA" in told
    assert "nothing was captured" in told
    assert not (tmp_path / "run").exists()
