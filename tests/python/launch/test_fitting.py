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
from tdbg.launch.family import member
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
    text: str, folder: Path, *before: str
) -> subprocess.CompletedProcess[str]:
    path = folder / "train.py"
    path.write_text(text)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "jax"}
    return subprocess.run(
        [*before, sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=environment,
    )


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    """What the script prints and what tdbg adds to that, and the first run."""
    folder = tmp_path_factory.mktemp("keras")
    command = [sys.executable, "-m", "tdbg", "run", "--out", str(folder / "run"), "--"]
    result = run_script(SCRIPT, folder, *command)
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr, folder / "run"


def test_the_script_prints_what_it_prints_by_itself(
    launched: tuple[str, str, Path], tmp_path: Path
):
    assert run_script(SCRIPT, tmp_path).stdout == launched[0]


def test_each_model_that_is_fitted_has_a_run(launched: tuple[str, str, Path]):
    _, told, out = launched
    assert "tdbg: captured 2 trainings, a run each:" in told

    def steps(number: int) -> tuple[int, int]:
        trial: Trial = tdbg.create_trial(member(out, number))
        return len(trial.steps(mode=TRAIN)), len(trial.steps(mode=EVAL))

    # 9 batches in each of two epochs, 10 in the third; a validation batch after each of
    # two, and two batches of evaluation.
    assert steps(1) == (28, 4)
    assert steps(2) == (10, 0)


def test_rules_have_what_they_need(launched: tuple[str, str, Path]):
    trial = tdbg.create_trial(launched[2])
    names = set(trial.tensor_names())
    assert any(name.startswith("gradient/") for name in names)
    assert trial.tensor_names(collection="losses")
