"""What capture costs loops with ``GradientTape``, beside ``tf.summary``.

    python -m benchmarks.tensorflow.loops [eager|function|compiled|xla] [--quick]

The loop of *eager* runs its operations one by one; that of *function* is in a
``tf.function`` of its own, which reports to the hook; *compiled* and *xla* are made by
``hook.function``, without and with XLA.  The network is that of ``benchmarks.keras``.

All contenders train it in one process on one thread, in blocks of steps that take
turns.  The figure is processor time of the process, all threads, beside that of the
plain loop in the same round.  What TensorFlow offers itself takes part: histograms of
all weights and gradients by ``tf.summary`` at every tenth step, which XLA leaves out.

Losses must be those of the plain loop, to the bit where a hook captures nothing.  In
the end each run must have the steps that were asked for, and the norms of the gradients
that a plain tape computes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tdbg.tensorflow as tt
from benchmarks._harness import (
    Report,
    Table,
    check,
    check_close,
    check_closed,
    check_equal,
    interleave,
    options,
)
from benchmarks.keras.fit import BATCH, COLLECTIONS, N_TENSORS, images, network
from tdbg.trial import create_trial

WAYS = ("eager", "function", "compiled", "xla")
BLOCK = 40
NEVER = 10**9
#: Collections that are captured, and at every which step their statistics are.
CAPTURED: dict[str, tuple[list[str], int]] = {
    "tdbg, idle": ([], NEVER),
    "tdbg, losses only": (["losses"], NEVER),
    "tdbg, statistics every 10": (["losses", *COLLECTIONS], 10),
    "tdbg, statistics every step": (["losses", *COLLECTIONS], 1),
    "tdbg, and outputs every step": (["losses", *COLLECTIONS, "outputs"], 1),
}
SUMMARY = "tf.summary, histograms every 10"


class Parts:
    """What a loop trains, and by what."""

    def __init__(self) -> None:
        self.model = network(jit=False)
        self.optimizer = keras.optimizers.Adam()
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def gradients(self, x: Any, y: Any) -> tuple[Any, list[Any]]:
        """The loss of a batch, and its gradients."""
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True))
        return loss, tape.gradient(loss, self.model.trainable_variables)

    def step(self, x: Any, y: Any) -> Any:
        """A step of the training."""
        loss, gradients = self.gradients(x, y)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def step_with_summaries(self, x: Any, y: Any) -> Any:
        """The same, of which a user writes histograms."""
        loss, gradients = self.gradients(x, y)
        variables = self.model.trainable_variables
        for gradient, variable in zip(gradients, variables, strict=True):
            tf.summary.histogram(variable.path, variable)
            tf.summary.histogram(f"gradient/{variable.path}", gradient)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss


class Training:
    """A training that goes on by blocks of steps.

    Args:
        step: A step; of a batch, its loss.
        begin: Called with the number of each step before it.
    """

    def __init__(
        self, step: Callable[..., Any], begin: Callable[[int], None] | None = None
    ) -> None:
        self._step = step
        self._begin = begin
        x, y = images(BLOCK)
        self._batches = [
            (tf.constant(x[i : i + BATCH]), tf.constant(y[i : i + BATCH]))
            for i in range(0, len(x), BATCH)
        ]
        self._n = 0

    def __call__(self) -> list[float]:
        losses = []
        for x, y in self._batches:
            if self._begin is not None:
                self._begin(self._n)
            losses.append(self._step(x, y))
            self._n += 1
        return [float(loss) for loss in losses]


def hook(folder: Path, name: str) -> tt.Hook:
    """The hook of a contender."""
    collections, every = CAPTURED[name]
    schedule = tt.SaveConfig(save_interval=NEVER, statistics_interval=every)
    made = tt.Hook(
        folder / str(list(CAPTURED).index(name)),
        include_collections=collections,
        save_config=schedule,
        budget=None,
    )
    off = tt.SaveConfig(
        save_interval=NEVER, statistics_interval=NEVER, start_step=NEVER
    )
    if name == "tdbg, idle":
        made.get_collection("losses").save_config = off
    elif every != 1:
        each = tt.SaveConfig(save_interval=NEVER, statistics_interval=1)
        made.get_collection("losses").save_config = each
    return made


def plainly(step: Callable[..., Any], way: str) -> Callable[..., Any]:
    """A step as it is run without a hook."""
    if way == "eager":
        return step
    made: Callable[..., Any] = tf.function(step, jit_compile=way == "xla")
    return made


def captured(made: tt.Hook, way: str) -> Training:
    """The loop of a hook."""
    parts = Parts()
    made.register(parts.model, parts.optimizer, loss=parts.loss)
    if way in {"eager", "function"}:
        return Training(plainly(parts.step, way))
    return Training(made.function(parts.step, jit_compile=way == "xla"))


def summarized(folder: Path, way: str) -> Training:
    """The loop of a user who writes summaries."""
    parts, writer = Parts(), tf.summary.create_file_writer(str(folder / "summaries"))
    quiet, told = plainly(parts.step, way), plainly(parts.step_with_summaries, way)
    present = [0]

    def step(x: Any, y: Any) -> Any:
        if present[0] % 10:
            return quiet(x, y)
        with writer.as_default(step=tf.constant(present[0], tf.int64)):
            return told(x, y)

    def begin(number: int) -> None:
        present[0] = number

    return Training(step, begin)


def check_losses(answers: Mapping[str, Any]) -> None:
    """A hook leaves the training what it is."""
    for name, losses in answers.items():
        if name in {"plain", "control", "tdbg, idle", "tdbg, losses only"}:
            check_equal(losses, answers["plain"], f"losses of {name}")
            continue
        for loss, expected in zip(losses, answers["plain"], strict=True):
            check(abs(loss - expected) < 5e-2, f"loss of {name}: {loss}, {expected}")


def check_run(folder: Path, name: str, n_steps: int) -> None:
    """A run has all that it was to have, and the right norms in its first step."""
    collections, every = CAPTURED[name]
    trial = create_trial(folder / str(list(CAPTURED).index(name)))
    losses = trial.tensor_names(collection="losses")
    check_equal(len(losses), int(bool(collections)), f"losses of {name}")
    for each in losses:
        check_equal(list(trial.tensor(each).steps()), list(range(n_steps)), each)
    found = [
        each
        for collection in COLLECTIONS
        if collection in collections
        for each in trial.tensor_names(collection=collection)
    ]
    if not found:
        return
    check_equal(len(found), N_TENSORS, f"tensors of {name}")
    for each in found:
        steps = list(range(0, n_steps, every))
        check_equal(list(trial.tensor(each).steps()), steps, each)
    parts = Parts()
    x, y = (tf.constant(each[:BATCH]) for each in images(BLOCK))
    _, gradients = parts.gradients(x, y)
    variables = parts.model.trainable_variables
    for gradient, variable in zip(gradients, variables, strict=True):
        path = "/".join(variable.path.split("/")[-2:])
        norm = trial.tensor(f"gradient/{path}").reduction_value(0, "l2")
        expected = float(np.linalg.norm(np.asarray(gradient, np.float64)))
        check_close(norm, expected, 1e-4, f"norm of the gradient of {path}")


def main() -> None:
    """Measure, check what was recorded, and print the table."""
    parser = options(__doc__)
    parser.add_argument("way", nargs="?", default="function", choices=WAYS)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="tensorflow-"))
    try:
        measure(given, folder).save()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(given: Any, folder: Path) -> Report:
    """All contenders, verified."""
    way = given.way
    hooks = {name: hook(folder, name) for name in CAPTURED}
    runs = {name: Training(plainly(Parts().step, way)) for name in ("plain", "control")}
    runs |= {name: captured(each, way) for name, each in hooks.items()}
    if way != "xla":
        runs[SUMMARY] = summarized(folder, way)
    check_losses({name: run() for name, run in runs.items()})  # Compiles.
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
    n_steps = (1 + len(samples.seconds["plain"])) * BLOCK
    for name, each in hooks.items():
        check_closed(each, name)
        check_run(folder, name, n_steps)
    table = Table(f"Loops with GradientTape, {way}", ("training", "ratio"))
    for name in runs:
        if name not in {"plain", "control"}:
            table.add(name, samples.text(name))
    table.add("plain / plain", str(samples.control()))
    table.note = (
        f"Processor time of all threads, blocks of {BLOCK} steps; medians with their "
        "95 % intervals. A plain step takes "
        f"{1e3 * samples.seconds_of('plain') / BLOCK:.1f} ms."
    )
    return Report(
        f"tensorflow/loops_{way}",
        given,
        packages=("keras", "tensorflow-cpu", "numpy", "tdbg"),
        tables=[table],
        data={"samples": samples.to_json(), "block": BLOCK},
    )


if __name__ == "__main__":
    main()
