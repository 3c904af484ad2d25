"""What statistics of everything cost at every step, and what updates add to them.

    python -m benchmarks.hooks.updates [--model resnet] [--quick]

Equal trainings take turns, block by block, each in a process of its own (but for
``--quick``): a plain one, one that captures the statistics of weights, gradients,
inputs, outputs and losses at every step, one that captures the updates too, one with
``save_all=True``.  In the process of the plain one the limit of the updates is measured
as well: a pass of PyTorch's over the parameters that reads two arrays and writes one of
them, as who reads the old and the new weights once and keeps a copy has to.

The figures are processor time of the training's thread, which does all of it, and what
tdbg's own clock says, which leaves out what capture takes from caches.  Losses of
all must be equal bit for bit, and the update of a parameter at the last step the
difference that the training made.
"""

from __future__ import annotations

import argparse
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
from benchmarks._harness.apart import Maker, apart
from benchmarks.hooks.idle import check_losses, interval, together
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
OWN = "own"
COLUMNS = ("statistics at every step", "ms a step", "in tdbg, ms", "ratio of a step")
#: Passes over the parameters in a block.
PASSES = 4


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

    def block(self, n_steps: int) -> Callable[[], Measured]:
        """Does so many steps and answers their losses."""

        def run() -> Measured:
            before, began = self.own_seconds(), time.thread_time()
            losses = [self.training.step() for _ in range(n_steps)]
            thread = time.thread_time() - began
            return Measured(thread, losses, {OWN: self.own_seconds() - before})

        return run

    def own_seconds(self) -> float:
        """What tdbg's own clock has measured so far."""
        return 0.0 if self.hook is None else self.hook.overhead().capture_seconds

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


def make(
    arguments: tuple[Any, ...], n_steps: int
) -> tuple[Callable[[], Measured], Callable[[], None]]:
    """A contender, in this process: what does a block of steps, and what verifies."""
    torch.set_num_threads(1)
    contender = Contender(*arguments)
    contender.block(2)()
    return contender.block(n_steps), contender.check


def make_limit(
    model: str, n_passes: int
) -> tuple[Callable[[], Measured], Callable[[], None]]:
    """Passes over all parameters that read two arrays and write one of them."""
    torch.set_num_threads(1)
    parameters = [each.detach() for each in Training(model).model.parameters()]
    copies = [torch.zeros_like(each) for each in parameters]
    n_done = 0

    def run() -> Measured:
        nonlocal n_done
        began = time.thread_time()
        for _ in range(n_passes):
            for parameter, copy in zip(parameters, copies, strict=True):
                torch.add(copy, parameter, out=copy)
        n_done += n_passes
        return Measured(time.thread_time() - began)

    def verify() -> None:
        for parameter, copy in zip(parameters, copies, strict=True):
            check(torch.allclose(copy, n_done * parameter, rtol=1e-3), "sums")

    return run, verify


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--model", choices=MODELS, default="resnet")
    parser.add_argument("--seconds", type=float, default=120.0)
    given = parser.parse_args()
    if given.quick:
        given.seconds = 20.0
    folder = Path(tempfile.mkdtemp(prefix="updates-"))
    try:
        measure(given, folder).save()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(given: argparse.Namespace, folder: Path) -> Report:
    """All contenders, verified."""
    n_steps = max(1, MODELS[given.model].block)
    makers: dict[str, Maker] = {
        name: (make, ((given.model, settings, folder / str(i)), n_steps))
        for i, (name, settings) in enumerate(
            {"plain": None, CONTROL: None, **ARMS}.items()
        )
    }
    makers[LIMIT] = make_limit, (given.model, PASSES)
    with (together if given.quick else apart)(makers) as runs:
        samples = interleave(
            runs,
            baseline="plain",
            rounds=given.rounds or (3 if given.quick else 1000),
            seed=given.seed,
            at_most_seconds=given.seconds,
            verify=verify,
        )
    thread, own = samples.seconds, {n: samples.also[n].get(OWN, []) for n in ARMS}
    limit = [1e3 * each / PASSES for each in thread[LIMIT]]
    table = Table(f"Everything at every step: {MODELS[given.model].title}", COLUMNS)
    for name in ARMS:
        table.add(
            name,
            interval(Ratio.of(less(thread[name], thread["plain"], n_steps))),
            interval(Ratio.of([1e3 * each / n_steps for each in own[name]])),
            str(samples.ratio(name)),
        )
    by_thread = less(thread[WITH], thread[WITHOUT], n_steps)
    by_own = less(own[WITH], own[WITHOUT], n_steps)
    table.add(
        "updates alone", interval(Ratio.of(by_thread)), interval(Ratio.of(by_own)), ""
    )
    table.add("limit of updates", interval(Ratio.of(limit)), "", "")
    table.add(
        "updates / limit",
        str(Ratio.of([a / b for a, b in zip(by_thread, limit, strict=True)])),
        str(Ratio.of([a / b for a, b in zip(by_own, limit, strict=True)])),
        "",
    )
    table.add("plain / plain", "", "", samples.control())
    table.note = (
        "Processor time of the training's thread; medians with their 95 % intervals. "
        f"A plain step takes {1e3 * samples.seconds_of('plain') / n_steps:.1f} ms."
    )
    return Report(
        f"hooks/updates-{given.model}",
        given,
        packages=("torch", "tdbg"),
        tables=[table],
        data={"samples": samples.to_json(), "block": n_steps},
    )


def less(seconds: list[float], below: list[float], n_steps: int) -> list[float]:
    """Milliseconds that a step of one takes more than one of the other."""
    pairs = zip(seconds, below, strict=True)
    return [1e3 * (a - b) / n_steps for a, b in pairs]


def verify(answers: Mapping[str, Any]) -> None:
    """All trainings compute the same."""
    check_losses({name: each for name, each in answers.items() if name != LIMIT})


if __name__ == "__main__":
    main()
