"""What statistics of everything cost at every step, and what updates add to them.

    python -m benchmarks.hooks.updates [--model resnet] [--quick]

Equal trainings take turns in one process, step by step and in random order: a plain
one, one that captures the statistics of weights, gradients, inputs, outputs and losses
at every step, one that captures the updates too, one with ``save_all=True``.  In the
same rounds the limit of the updates is measured: a pass of PyTorch's over the
parameters that reads two arrays and writes one of them, as who reads the old and the
new weights once and keeps a copy has to.

The figures are processor time of the training's thread, which does all of it: of a
whole step, and of the call of ``optimizer.step()`` alone, inside of which weights and
updates are captured.  A step is twenty times as long as what updates add to it, so it
is the second that tells them: what they take is the difference of two neighbours of
one round, and their ratio to the limit that of the same round; of both the median and
its 95 % interval.  Losses of all must be equal bit for bit, and the update of a
parameter at the last step the difference that the training made.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import tdbg
import tdbg.pytorch as td
from benchmarks._harness import (
    CONTROL,
    Measured,
    Ratio,
    Report,
    Table,
    check,
    check_close,
    check_equal,
    interleave,
    options,
)
from benchmarks.hooks.idle import check_losses, interval
from benchmarks.overhead.models import MODELS
from benchmarks.overhead.training import Training

BASE = ("weights", "biases", "gradients", "inputs", "outputs", "losses")
WITHOUT = "weights, gradients, inputs, outputs, losses"
WITH = "and updates"
ALL = "save_all=True"
ARMS: dict[str, dict[str, Any]] = {
    WITHOUT: {"include_collections": BASE},
    WITH: {"include_collections": (*BASE, "updates")},
    ALL: {"save_all": True},
}
LIMIT = "limit"
OPTIMIZER = "optimizer"
COLUMNS = (
    "statistics at every step",
    "ms a step",
    "in optimizer.step(), ms",
    "ratio of a step",
)


class Contender:
    """A training, perhaps with a hook."""

    def __init__(self, model: str, settings: dict[str, Any] | None, folder: Path):
        self.training = Training(model)
        self.folder = folder
        self.hook: td.Hook | None = None
        if settings is not None:
            self.hook = td.Hook(
                folder,
                save_config=td.SaveConfig(statistics_interval=1),
                reduction_config=td.ReductionConfig(),
                min_free_bytes=0,
                **settings,
            )
            self.hook.register_module(self.training.model)
            self.hook.register_loss(self.training.criterion)
        self.has_updates = settings is not None and settings != ARMS[WITHOUT]
        self._optimizer_seconds = 0.0
        self._time_optimizer(self.training.optimizer)

    def _time_optimizer(self, optimizer: Any) -> None:
        """Time the calls of ``step``, hooks included, from now on."""
        step = optimizer.step

        def timed() -> None:
            began = time.thread_time()
            step()
            self._optimizer_seconds = time.thread_time() - began

        optimizer.step = timed

    def step(self) -> Measured:
        """Do a step and answer its loss."""
        began = time.thread_time()
        loss = self.training.step()
        seconds = time.thread_time() - began
        return Measured(seconds, [loss], {OPTIMIZER: self._optimizer_seconds})

    def check(self) -> None:
        """Updates are what the training did."""
        if self.hook is None:
            return
        parameters = dict(self.training.model.named_parameters())
        before = {name: each.detach().clone() for name, each in parameters.items()}
        step = self.training.n_steps
        self.training.step()
        check(self.hook.counters()["internal_errors"] == 0, "no error of tdbg")
        check(self.hook.close(timeout=60.0), "everything is written")
        trial = tdbg.create_trial(self.folder)
        names = trial.tensor_names(collection="updates")
        if not self.has_updates:
            check_equal(names, [], "updates")
            return
        check_equal(len(names), len(parameters), "updates")
        for name, parameter in parameters.items():
            norm = float((parameter.detach() - before[name]).double().norm())
            found = trial.tensor(f"update/{name}").reduction_value(step, "l2")
            check_close(found, norm, 1e-6, f"norm of the update of {name}")


def limit_of(model: str) -> Callable[[], Measured]:
    """A pass over all parameters that reads two arrays and writes one of them."""
    parameters = [each.detach() for each in Training(model).model.parameters()]
    copies = [torch.zeros_like(each) for each in parameters]
    # What the copies become, in turn.
    results = itertools.cycle((parameters[0].clone(), copies[0].clone()))

    def run() -> Measured:
        began = time.thread_time()
        for parameter, copy in zip(parameters, copies, strict=True):
            torch.sub(parameter, copy, out=copy)
        seconds = time.thread_time() - began
        return Measured(seconds, torch.equal(copies[0], next(results)))

    return run


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--model", choices=MODELS, default="resnet")
    parser.add_argument("--seconds", type=float, default=120.0)
    given = parser.parse_args()
    if given.quick:
        given.seconds = 30.0
    folder = Path(tempfile.mkdtemp(prefix="updates-"))
    try:
        measure(given, folder).save()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(given: argparse.Namespace, folder: Path) -> Report:
    """All contenders, verified."""
    torch.set_num_threads(1)
    contenders = {
        name: Contender(given.model, settings, folder / str(i))
        for i, (name, settings) in enumerate(
            {"plain": None, CONTROL: None, **ARMS}.items()
        )
    }
    runs = {name: contender.step for name, contender in contenders.items()}
    samples = interleave(
        {**runs, LIMIT: limit_of(given.model)},
        baseline="plain",
        rounds=given.rounds or (6 if given.quick else 100_000),
        warmup=3,
        seed=given.seed,
        at_most_seconds=given.seconds,
        verify=verify,
    )
    for contender in contenders.values():
        contender.check()
    thread = samples.seconds
    optimizer = {name: samples.also[name][OPTIMIZER] for name in contenders}
    table = Table(f"Everything at every step: {MODELS[given.model].title}", COLUMNS)
    for name in ARMS:
        table.add(
            name,
            interval(Ratio.of(less(thread[name], thread["plain"]))),
            interval(Ratio.of(less(optimizer[name], optimizer["plain"]))),
            str(samples.ratio(name)),
        )
    updates = less(optimizer[WITH], optimizer[WITHOUT])
    by_step = less(thread[WITH], thread[WITHOUT])
    limit = [1e3 * each for each in thread[LIMIT]]
    table.add(
        "updates alone", interval(Ratio.of(by_step)), interval(Ratio.of(updates)), ""
    )
    table.add("limit of updates", "", interval(Ratio.of(limit)), "")
    ratios = [ours / least for ours, least in zip(updates, limit, strict=True)]
    table.add("updates / limit", "", str(Ratio.of(ratios)), "")
    table.add(
        "plain / plain",
        "",
        str(samples.ratio(CONTROL, over="plain", of=OPTIMIZER)),
        samples.control(),
    )
    table.note = (
        "Processor time of the training's thread; medians with their 95 % intervals, "
        f"{len(updates)} rounds. A plain step takes "
        f"{1e3 * samples.seconds_of('plain'):.1f} ms."
    )
    return Report(
        f"hooks/updates-{given.model}",
        given,
        packages=("torch", "tdbg"),
        tables=[table],
        data={"samples": samples.to_json()},
    )


def less(seconds: list[float], below: list[float]) -> list[float]:
    """Milliseconds that one took more than the other, round by round."""
    return [1e3 * (a - b) for a, b in zip(seconds, below, strict=True)]


def verify(answers: Mapping[str, Any]) -> None:
    """All trainings compute the same, and the limit what it is to."""
    check(answers[LIMIT], "differences of the limit")
    check_losses({name: each for name, each in answers.items() if name != LIMIT})


if __name__ == "__main__":
    main()
