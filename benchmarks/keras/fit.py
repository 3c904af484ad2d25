"""What capture costs ``fit`` of Keras, beside callbacks of others.

    [KERAS_BACKEND=jax] python -m benchmarks.keras.fit [--jit] [--batch 32] [--quick]

It runs on TensorFlow, with ``--jit`` compiled by XLA, or on JAX, which always is.

All contenders train the same convolutional network, whose step takes about 10 ms, in
one process on one thread, in blocks of one epoch that take turns.  The figure is
processor time of the process, all threads, beside that of the plain training in the
same round.  ``WandbMetricsLogger`` takes part, offline, where wandb is installed.

Beside that: what the second compilation takes of the first, each of a model of its
own, and the peak of memory of processes that train plainly, and with a hook.

Losses of the trainings that capture nothing inside of a step must be those of the
plain one, and each run must have the steps and the tensors that were asked for.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Before Keras, TensorFlow and JAX are loaded.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
BACKEND = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
if BACKEND == "jax":
    ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import tdbg.keras as tk  # noqa: E402
from benchmarks._harness import (  # noqa: E402
    Report,
    Table,
    check_close,
    check_closed,
    check_equal,
    interleave,
    options,
)
from tdbg.trial import create_trial  # noqa: E402

STEPS = 40  # Of a block: one epoch.
BATCH = 32
SIDE = 24
COLLECTIONS = ["weights", "biases", "gradients"]
N_TENSORS = 20
NEVER = 10**9
#: Collections that are captured, and at every which step their statistics are.
CAPTURED: dict[str, tuple[list[str], int]] = {
    "tdbg, idle": ([], NEVER),
    "tdbg, losses only": ([], NEVER),
    "tdbg, statistics every 10": (COLLECTIONS, 10),
    "tdbg, statistics every step": (COLLECTIONS, 1),
    "tdbg, and outputs every step": ([*COLLECTIONS, "outputs"], 1),
}
BOARD = f"TensorBoard, histograms every {STEPS}"
WANDB = "WandbMetricsLogger, every batch"


def network(*, jit: bool) -> Any:
    """A small convolutional network: ten parameters, of 0.7 million numbers."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            keras.layers.Conv2D(32, 3, activation="relu", name="c1"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu", name="c2"),
            keras.layers.Conv2D(64, 3, activation="relu", name="c3"),
            keras.layers.Flatten(name="flat"),
            keras.layers.Dense(128, activation="relu", name="d1"),
            keras.layers.Dense(10, name="d2"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=jit or BACKEND == "jax")
    return model


def images(n_steps: int = STEPS, batch: int = BATCH) -> tuple[Any, Any]:
    """Random images and labels, always the same."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(n_steps * batch, SIDE, SIDE, 3)).astype("float32")
    return x, generator.integers(10, size=n_steps * batch)


def hook(folder: Path, name: str) -> tk.Hook:
    """The hook of a contender."""
    collections, every = CAPTURED[name]
    schedule = tk.SaveConfig(save_interval=NEVER, statistics_interval=every)
    made = tk.Hook(
        folder / str(list(CAPTURED).index(name)),
        include_collections=collections,
        save_config=schedule,
        budget=None,
    )
    if name == "tdbg, idle":
        off = tk.SaveConfig(
            save_interval=NEVER, statistics_interval=NEVER, start_step=NEVER
        )
        made.get_collection("losses").save_config = off
    return made


def peers(folder: Path) -> dict[str, Any]:
    """The callbacks of others."""
    found = {BOARD: keras.callbacks.TensorBoard(str(folder / "b"), histogram_freq=1)}
    if importlib.util.find_spec("wandb") is not None:
        wandb: Any = importlib.import_module("wandb")
        wandb.init(mode="offline", project="benchmark", dir=str(folder))
        logger: Any = importlib.import_module("wandb.integration.keras")
        found[WANDB] = logger.WandbMetricsLogger(log_freq="batch")
    return found


class Training:
    """A training that goes on by epochs."""

    def __init__(self, callbacks: list[Any], *, jit: bool, batch: int) -> None:
        self._model = network(jit=jit)
        self._callbacks = callbacks
        self._batch = batch
        self._data = images(batch=batch)

    def __call__(self) -> float:
        history = self._model.fit(
            *self._data,
            batch_size=self._batch,
            verbose=0,
            shuffle=False,
            callbacks=self._callbacks,
        )
        return float(history.history["loss"][-1])


def check_losses(answers: Mapping[str, Any]) -> None:
    """What is captured outside of the step leaves the training what it is."""
    for name, loss in answers.items():
        if name in CAPTURED and "every" in name:
            check_close(loss, answers["plain"], 5e-2, f"loss of {name}")
        else:
            check_equal(loss, answers["plain"], f"loss of {name}")


def main() -> None:
    """Measure, check what was recorded, and print the tables."""
    parser = options(__doc__)
    parser.add_argument("--jit", action="store_true", help="compile by XLA")
    parser.add_argument("--batch", type=int, default=BATCH, help="longer steps")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--peak", help="train as this contender, print the peak in MiB")
    given = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="keras-"))
    try:
        if given.peak:
            print_peak(given, folder)
        else:
            measure(given, folder).save()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(given: Any, folder: Path) -> Report:
    """All contenders, verified."""
    hooks = {name: hook(folder, name) for name in CAPTURED}
    callbacks = {"plain": [], "control": []} | {
        name: [each] for name, each in (hooks | peers(folder)).items()
    }
    runs = {
        name: Training(each, jit=given.jit, batch=given.batch)
        for name, each in callbacks.items()
    }
    for _ in range(2):  # Compiles.
        check_losses({name: run() for name, run in runs.items()})
    samples = interleave(
        runs,
        baseline="plain",
        rounds=given.rounds or (3 if given.quick else 200),
        warmup=0,
        seed=given.seed,
        at_most_seconds=given.seconds,
        verify=check_losses,
        clock=time.process_time,
    )
    n_epochs = 2 + len(samples.seconds["plain"])
    for name, each in hooks.items():
        check_closed(each, name)
        check_run(folder, name, n_epochs * STEPS)
    way = BACKEND + (", compiled by XLA" if given.jit else "")
    table = Table(f"fit of Keras on {way}", ("training", "ratio"))
    for name in callbacks:
        if name not in {"plain", "control"}:
            table.add(name, samples.text(name))
    table.add("plain / plain", str(samples.control()))
    table.note = (
        f"Processor time of all threads, epochs of {STEPS} steps; medians with their "
        f"95 % intervals. A plain step, of a batch of {given.batch}, takes "
        f"{1e3 * samples.seconds_of('plain') / STEPS:.1f} ms."
    )
    return Report(
        f"keras/fit_{BACKEND}{'_xla' if given.jit else ''}",
        given,
        packages=("keras", "tensorflow-cpu", "jax", "numpy", "tdbg"),
        tables=[table, compilations(given, folder), peaks(given)],
        data={"samples": samples.to_json()},
    )


def check_run(folder: Path, name: str, n_steps: int) -> None:
    """A run has all that it was to have."""
    collections, every = CAPTURED[name]
    trial = create_trial(folder / str(list(CAPTURED).index(name)))
    if name == "tdbg, idle":
        check_equal(trial.tensor_names(collection="losses"), [], "losses of idle")
        return
    (loss,) = trial.tensor_names(collection="losses")
    check_equal(list(trial.tensor(loss).steps()), list(range(n_steps)), loss)
    found = [
        each
        for collection in COLLECTIONS
        if collection in collections
        for each in trial.tensor_names(collection=collection)
    ]
    check_equal(len(found), N_TENSORS if collections else 0, f"tensors of {name}")
    for each in found:
        expected = list(range(0, n_steps, every))
        check_equal(list(trial.tensor(each).steps()), expected, each)


def compilations(given: Any, folder: Path) -> Table:
    """What the first step takes that is compiled plainly, and with taps."""
    data = images(1, given.batch)

    def first_step(callbacks: list[Any]) -> float:
        model = network(jit=given.jit)
        began = time.process_time()
        model.fit(*data, batch_size=given.batch, verbose=0, callbacks=callbacks)
        return time.process_time() - began

    def tapped(i: int) -> float:
        schedule = tk.SaveConfig(save_interval=NEVER, statistics_interval=1)
        with tk.Hook(
            folder / f"compiled{i}",
            include_collections=COLLECTIONS,
            save_config=schedule,
        ) as made:
            return first_step([made])

    n = 1 if given.quick else 5
    pairs = [(first_step([]), tapped(i)) for i in range(n)]
    table = Table("The first step", ("compiled", "seconds", "ratio"))
    plain = statistics.median(one for one, _ in pairs)
    table.add("plain", f"{plain:.2f}", "")
    more = statistics.median(other for _, other in pairs)
    ratio = statistics.median(other / one for one, other in pairs)
    table.add("with taps", f"{more:.2f}", f"{ratio:.2f}")
    table.note = f"Processor time of a new model's first step; medians of {n} pairs."
    return table


def peaks(given: Any) -> Table:
    """The most memory that a process takes in two epochs."""
    table = Table("Peak of memory", ("training", "MiB"))
    for name in ("plain", *CAPTURED):
        command = [sys.executable, "-m", "benchmarks.keras.fit", "--peak", name]
        command += ["--batch", str(given.batch), *(["--jit"] if given.jit else [])]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        table.add(name, done.stdout.split()[-1])
    return table


def print_peak(given: Any, folder: Path) -> None:
    """In a process of its own: train, and print the peak."""
    callbacks = [] if given.peak == "plain" else [hook(folder, given.peak)]
    run = Training(callbacks, jit=given.jit, batch=given.batch)
    for _ in range(2):
        run()
    for each in callbacks:
        each.close()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = (each for each in status.splitlines() if each.startswith("VmHWM:"))
    print(int(line.split()[1]) // 1024)


if __name__ == "__main__":
    main()
