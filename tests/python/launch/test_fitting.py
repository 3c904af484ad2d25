"""``tdbg run`` captures trainings with Keras in scripts that know no tdbg.

The script has the shape of Keras's examples (mnist_convnet, timeseries, custom loops by
``train_on_batch``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tdbg
from tdbg.launch.family import DirectoryFamily
from tdbg.modes import EVAL, TRAIN
from tdbg.trial import Trial

SCRIPT = """
import numpy as np
import keras
from keras import layers
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype("float32")

def build():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)
    ])
    model.compile(
        optimizer="sgd",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model

class Seen(keras.callbacks.Callback):
    n = 0
    def on_epoch_end(self, epoch, logs=None):
        Seen.n += 1

model = build()
history = model.fit(
    images[:640], labels[:640], batch_size=64, epochs=2, validation_split=0.1,
    callbacks=[Seen()], verbose=0, shuffle=False,
)
model.fit(images[:640], labels[:640], batch_size=64, epochs=1, verbose=0)
model.evaluate(images[640:768], labels[640:768], batch_size=64, verbose=0)
second = build()
second.fit(images[:640], labels[:640], batch_size=64, epochs=1, verbose=0)
third = build()
answers = third.predict(images[:3], verbose=0)
print(Seen.n, "%.6f" % history.history["loss"][0], answers.shape)
"""


def run_script(
    text: str, folder: Path, *before: str, backend: str = "jax"
) -> subprocess.CompletedProcess[str]:
    path = folder / "train.py"
    path.write_text(text)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": backend}
    return subprocess.run(
        [*before, sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=environment,
    )


@pytest.fixture(
    scope="module", params=["jax", pytest.param("torch", marks=pytest.mark.nightly)]
)
def backend(request: pytest.FixtureRequest) -> str:
    """The backend of Keras."""
    return str(request.param)


@pytest.fixture(scope="module")
def launched(
    backend: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str, Path]:
    """What the script prints and what tdbg adds to that, and the first run."""
    folder = tmp_path_factory.mktemp("keras")
    command = [sys.executable, "-m", "tdbg", "run", "--out", str(folder / "run"), "--"]
    result = run_script(SCRIPT, folder, *command, backend=backend)
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr, folder / "run"


def test_the_script_prints_what_it_prints_by_itself(
    launched: tuple[str, str, Path], tmp_path: Path, backend: str
):
    assert run_script(SCRIPT, tmp_path, backend=backend).stdout == launched[0]


def test_each_model_that_is_fitted_has_a_run(launched: tuple[str, str, Path]):
    _, told, out = launched
    assert told.count("tdbg: captured") == 1
    assert "tdbg: captured 2 trainings, each in its own run:" in told

    def steps(number: int) -> tuple[int, int]:
        trial: Trial = tdbg.create_trial(DirectoryFamily(out, {}).member(number))
        return len(trial.steps(mode=TRAIN)), len(trial.steps(mode=EVAL))

    # 9 batches in each of two epochs, 10 in the third; a validation batch after each of
    # two, and two batches of evaluation.
    assert steps(1) == (28, 4)
    assert steps(2) == (10, 0)


def test_rules_have_what_they_need(launched: tuple[str, str, Path]):
    trial = tdbg.create_trial(launched[2])
    names = set(trial.tensor_names())
    assert {"gradient/dense/kernel", "dense_relu_output_0"} <= names
    assert trial.tensor_names(collection="losses")


OWN_STEPS = """
import jax, keras, numpy as np

class Own(keras.Model):
    def compute_loss_and_updates(self, trained, others, x, y, training=False):
        y_pred, others = self.stateless_call(trained, others, x, training=training)
        return self.compute_loss(x, y, y_pred), (y_pred, others)

    def train_step(self, state, data):
        trained, others, optimized, metrics = state
        differentiate = jax.value_and_grad(self.loss_of(), has_aux=True)
        (loss, (_, others)), grads = differentiate(
            trained, others, *data, training=True
        )
        trained, optimized = self.optimizer.stateless_apply(optimized, grads, trained)
        logs = {"loss": loss, "compile_metrics": {"mae": loss}}
        return logs, (trained, others, optimized, metrics)

    def loss_of(self):
        return self.compute_loss_and_updates

class Closed(Own):
    def loss_of(self):
        def loss_of(trained, others, x, y, training):
            y_pred, others = self.stateless_call(trained, others, x, training=training)
            return self.compute_loss(x, y, y_pred), (y_pred, others)
        return loss_of

x, y = np.random.random((64, 8)), np.random.random((64, 1))
for kind in (Own, Closed):
    given = keras.Input((8,))
    model = kind(given, keras.layers.Dense(1, name="last")(given))
    model.compile("adam", "mse")
    model.fit(x, y, epochs=2, batch_size=16, verbose=0)
"""


def test_a_model_with_a_step_of_its_own_on_jax_has_one_run(tmp_path: Path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "tdbg", "run", "--out", str(out), "--"]
    told = run_script(OWN_STEPS, tmp_path, *command).stderr
    assert "tdbg: captured 2 trainings, each in its own run:" in told
    assert told.count("tdbg: captured") == 1
    assert told.count("(8 steps)") == 2
    assert "internal error" not in told
    own, closed = (
        set(tdbg.create_trial(DirectoryFamily(out, {}).member(number)).tensor_names())
        for number in (1, 2)
    )
    assert {"last_output_0", "gradient/last/kernel"} <= own
    # What stays inside of a closure is left out, and that is said once.
    assert "gradient/last/kernel" in closed
    assert "last_output_0" not in closed
    assert told.count("tdbg cannot capture") == 1


LOOP = """
import keras, torch
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10, name="scores")])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = torch.nn.CrossEntropyLoss()
for i in range(0, 320, 32):
    x = torch.tensor(images[i : i + 32] / 16.0, dtype=torch.float32)
    y = torch.tensor(labels[i : i + 32], dtype=torch.long)
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
"""


def test_a_model_that_a_loop_with_torch_trains_is_a_training_of_torch(tmp_path: Path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "tdbg", "run", "--out", str(out), "--"]
    result = run_script(LOOP, tmp_path, *command, backend="torch")
    assert result.returncode == 0, result.stderr
    assert "tdbg: captured 10 steps" in result.stderr
    assert "nothing was captured" not in result.stderr
    trial = tdbg.create_trial(out)
    assert len(trial.steps(mode=TRAIN)) == 10
    gradients = trial.tensor_names(collection="gradients")
    assert len(gradients) == 2
    assert all("scores" in name for name in gradients)
