"""Slowdown of a Gluon training: CPU time of a step, beside means made with NumPy.

    .venv-mxnet/bin/python -m benchmarks.mxnet.gluon [--hybridize] [--rounds 15]

It needs the environment of ``make test-mxnet``. All contenders train the same network
in one process, in blocks of steps that take turns in a random order; the figure of a
contender is the median over the rounds of its CPU time beside that of the plain
training in the same round. A run that lacks a step or a tensor ends the benchmark
without figures.

As in most programs, the loss is read at each step. One that never reads anything runs
ahead of MXNet's engine, and any look at a result then costs it a wait, tdbg's included:
``--ahead`` shows that.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

import tdbg.mxnet as tm
from tdbg.trial import create_trial

STEPS = 40  # Of a block.
BATCH = 128
COLLECTIONS = ["weights", "biases", "gradients"]
N_TENSORS = 20


class Training:
    """A small convolutional network: ten parameters, of 156 thousand numbers.

    Args:
        make_hook: Makes its hook; None: it has none.
        watch: Called after each backward pass, with the network.
        hybridize: Whether the network is compiled to a graph.
        runs_ahead: Whether the loss is never read.
    """

    def __init__(
        self,
        make_hook: Callable[[], tm.Hook] | None,
        watch: Callable[[Any], None] | None,
        *,
        hybridize: bool,
        runs_ahead: bool,
    ) -> None:
        self._runs_ahead = runs_ahead
        self.total = 0.0
        mx.random.seed(0)
        generator = np.random.default_rng(0)
        self._watch = watch
        self._x = mx.nd.array(generator.normal(size=(BATCH, 3, 16, 16)))
        self._y = mx.nd.array(generator.integers(10, size=BATCH))
        self._net = nn.HybridSequential()
        self._net.add(
            nn.Conv2D(32, 3, activation="relu"),
            nn.Conv2D(32, 3, strides=2, activation="relu"),
            nn.Conv2D(64, 3, activation="relu"),
            nn.Flatten(),
            nn.Dense(110, activation="relu"),
            nn.Dense(10),
        )
        self._net.initialize(mx.init.Xavier())
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        if hybridize:
            self._net.hybridize()
            self._loss.hybridize()
        self._trainer = gluon.Trainer(self._net.collect_params(), "adam")
        self.hook = None if make_hook is None else make_hook()
        if self.hook is not None:
            self.hook.register_block(self._net)
            self.hook.register_loss(self._loss)

    def block(self) -> float:
        """Train for some steps; return the CPU time of one, in seconds."""
        begin = time.process_time()
        for _ in range(STEPS):
            with autograd.record():
                loss = self._loss(self._net(self._x), self._y)
            loss.backward()
            if self._watch is not None:
                self._watch(self._net)
            self._trainer.step(BATCH)
            if not self._runs_ahead:
                self.total += loss.mean().asscalar()
        mx.nd.waitall()
        return (time.process_time() - begin) / STEPS


def with_numpy(net: Any) -> None:
    """The mean magnitude of weights and gradients, as one writes it by hand."""
    for parameter in net.collect_params().values():
        for array in (parameter.data(), parameter.grad()):
            np.abs(array.asnumpy()).mean()


def main() -> None:
    """Measure, check what was recorded, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hybridize", action="store_true")
    parser.add_argument("--ahead", action="store_true", help="never read the loss")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())

    def hook(name: str, every: int) -> Callable[[], tm.Hook]:
        schedule = tm.SaveConfig(save_interval=10**9, statistics_interval=every)
        return lambda: tm.Hook(
            folder / name, include_collections=COLLECTIONS, save_config=schedule
        )

    hooks: dict[str, Callable[[], tm.Hook] | None] = {
        "plain": None,
        "plain again": None,
        "tdbg, losses only": lambda: tm.Hook(folder / "losses"),
        "tdbg, every 10 steps": hook("tens", 10),
        "tdbg, every step": hook("every", 1),
        "NumPy, one mean a tensor, every step": None,
    }
    made = {
        name: Training(
            make,
            with_numpy if name.startswith("NumPy") else None,
            hybridize=given.hybridize,
            runs_ahead=given.ahead,
        )
        for name, make in hooks.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for training in made.values():
        training.block()
        training.block()
    order = random.Random(given.seed)
    for _ in range(given.rounds):
        for name in order.sample(sorted(made), len(made)):
            seconds[name].append(made[name].block())
    for training in made.values():
        if training.hook is not None:
            training.hook.close()
    check(folder, (given.rounds + 2) * STEPS)
    for name, times in seconds.items():
        ratios = [a / b for a, b in zip(times, seconds["plain"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        row = {
            "contender": name,
            "cpu_ms": round(1e3 * statistics.median(times), 3),
            "ratio": round(middle, 3),
            "quartiles": [round(low, 3), round(high, 3)],
        }
        print(json.dumps(row))
    shutil.rmtree(folder)


def check(folder: Path, n_steps: int) -> None:
    """End the benchmark if a run lacks what its contender was to record."""
    for name, n_expected in (("every", n_steps), ("tens", -(-n_steps // 10))):
        trial = create_trial(folder / name)
        names = [
            each
            for collection in COLLECTIONS
            for each in trial.tensor_names(collection=collection)
        ]
        steps = {len(trial.tensor(each).steps()) for each in names}
        if len(names) != N_TENSORS or steps != {n_expected}:
            message = f"{name}: {len(names)} tensors at {steps} steps"
            raise SystemExit(message)


if __name__ == "__main__":
    main()
