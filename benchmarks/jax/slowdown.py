"""What capture costs the steps of a compiled training in JAX.

    python -m benchmarks.jax.slowdown [cnn|transformer] [--batch N] [--quick]

Equal trainings take turns in one process, in blocks of steps: plain ones, and those of
hooks that capture nothing, statistics of weights and gradients (every step, every
tenth), those of layers' outputs as well, and raw values. Beside them is what JAX itself
offers: a ``jax.debug.callback`` that is given all weights and gradients, and reduces
them with the same kernel.

The figure is the ratio of processor time of the process, all threads. Losses must be
equal bit for bit where nothing is captured inside of the step, and within 2 %
elsewhere, where XLA fuses other operations, after thousands of steps; in the end rows
that were captured must be those of the gradients that a plain program computes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Before jax is loaded.
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}"

import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

import tdbg.jax as tj  # noqa: E402
from benchmarks._harness import (  # noqa: E402
    Report,
    Table,
    check_close,
    check_closed,
    check_equal,
    interleave,
    options,
)
from benchmarks.jax.models import MODELS, RATE, Model, batches, step_of  # noqa: E402
from tdbg import _core  # noqa: E402
from tdbg.trial import create_trial  # noqa: E402

BLOCK = 10
ROWS = tj.ReductionConfig()
STATISTICS = ["weights", "biases", "gradients"]
RAW = tj.ReductionConfig(save_raw_tensor=True)
CAPTURED: dict[str, tuple[list[str], int, Any]] = {
    "tdbg, idle": ([], 10**9, None),
    "tdbg, statistics every 10": (STATISTICS, 10, ROWS),
    "tdbg, statistics every step": (STATISTICS, 1, ROWS),
    "tdbg, and outputs every step": ([*STATISTICS, "outputs"], 1, ROWS),
    "tdbg, raw values every 10": ([*STATISTICS, "outputs"], 10, RAW),
}
CALLBACK = "jax.debug.callback every step"


class Training:
    """A training that goes on by blocks of steps."""

    def __init__(self, model: Model, step: Any, tx: Any) -> None:
        self._step = step
        self._params = model.init()
        self._state = tx.init(self._params)
        self._batches = batches(model)

    def __call__(self) -> list[float]:
        losses = []
        for _ in range(BLOCK):
            x, y = next(self._batches)
            self._params, self._state, loss = self._step(
                self._params, self._state, x, y
            )
            losses.append(loss)
        jax.effects_barrier()
        return [float(loss) for loss in losses]


def reduce_all(*arrays: Any) -> None:
    """What a user would write: reduce what the callback is given."""
    for array in arrays:
        _core.reduce(np.asarray(array))


def call_back(params: Any, grads: Any) -> None:
    leaves = jax.tree_util.tree_leaves((params, grads))
    jax.debug.callback(reduce_all, *leaves)


def check_losses(answers: Mapping[str, Any]) -> None:
    for name, losses in answers.items():
        if name in {"plain", "control", "tdbg, idle"}:
            check_equal(losses, answers["plain"], f"losses of {name}")
            continue
        for loss, expected in zip(losses, answers["plain"], strict=True):
            check_close(loss, expected, 2e-2, f"loss of {name}")


def check_rows(model: Model, folder: Path) -> None:
    """Rows of the first step are those of gradients that are computed without tdbg."""
    trial = create_trial(str(folder))
    x, y = next(batches(model))
    params = model.init()
    grads = jax.jit(jax.grad(model.loss))(params, x, y)
    for tree, prefix in ((grads, "gradient/"), (params, "")):
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            name = prefix + jax.tree_util.keystr(path, simple=True, separator="/")
            found = trial.tensor(name).reduction_value(0, "l2")
            expected = float(np.linalg.norm(np.asarray(leaf, np.float64)))
            check_close(found, expected, 1e-4, f"norm of {name}")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("model", nargs="?", default="transformer", choices=MODELS)
    parser.add_argument("--batch", type=int, help="the rows of a step")
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="jax-"))
    try:
        measure(given, folder).save()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(given: Any, folder: Path) -> Report:
    """All contenders, verified."""
    model, tx = MODELS[given.model], optax.adam(RATE)
    if given.batch is not None:
        model = model.of_batches(given.batch)
    plain = jax.jit(step_of(model, tx))
    makers: dict[str, Callable[[], list[float]]] = {
        "plain": Training(model, plain, tx),
        "control": Training(model, plain, tx),
        CALLBACK: Training(model, jax.jit(step_of(model, tx, call_back)), tx),
    }
    hooks = {}
    for number, (name, (collections, interval, reduction)) in enumerate(
        CAPTURED.items()
    ):
        hook = tj.Hook(
            folder / str(number),
            include_collections=collections,
            save_config=tj.SaveConfig(save_interval=interval),
            reduction_config=reduction,
        )
        tapped = tj.optax(tx)
        hooks[name] = hook
        makers[name] = Training(model, hook.jit(step_of(model, tapped)), tapped)
    for make in makers.values():  # Compiles.
        make()
    samples = interleave(
        makers,
        baseline="plain",
        rounds=given.rounds or (3 if given.quick else 200),
        seed=given.seed,
        at_most_seconds=given.seconds,
        verify=check_losses,
        clock=time.process_time,
    )
    for name, hook in hooks.items():
        check_closed(hook, name)
    check_rows(model, folder / "2")
    n = sum(leaf.size for leaf in jax.tree_util.tree_leaves(model.init()))
    title = f"Steps in JAX, {given.model} of {n / 1e6:.2f} million parameters"
    table = Table(title, ("training", "ratio of a step"))
    for name in (*CAPTURED, CALLBACK):
        table.add(name, samples.text(name))
    table.add("plain / plain", str(samples.control()))
    table.note = (
        "Processor time of all threads; medians with their 95 % intervals. "
        f"A plain step, of a batch of {model.shape[0]}, takes "
        f"{1e3 * samples.seconds_of('plain') / BLOCK:.1f} ms."
    )
    return Report(
        f"jax/slowdown_{given.model}",
        given,
        packages=("jax", "jaxlib", "optax", "tdbg"),
        tables=[table],
        data={"samples": samples.to_json(), "block": BLOCK},
    )


if __name__ == "__main__":
    main()
