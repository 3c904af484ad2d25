"""What hooks cost between the steps at which something is saved.

    python -m benchmarks.hooks.idle [--modules 1000] [--quick]

The model has a linear layer and a thousand modules that do nothing, with a parameter
each, so that a step is short and what hooks cost stands out.  Equal trainings of it
take turns, block by block, each in a process of its own (but for ``--quick``), since a
hook on all optimizers costs every training of its process: plain ones; one with a hook
that captures nothing; some with one that captures losses, and parameters, or inputs and
outputs of all modules, or gradients of outputs as well, of steps that come so rarely
that none is among those measured.  In the last pair every
module has a hook of somebody else, beside which ours stays: one training has theirs
only, the other ours too.

The figure is what a step costs more than in the plain training (or in the one with
the others' hooks only), in processor time of the training thread, also by the modules;
the ratio is that of the whole step.  Losses of all must be equal bit for bit, and what
was captured must be the first step.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tdbg
import tdbg.pytorch as td
from benchmarks._harness import (
    CONTROL,
    Measured,
    Ratio,
    Report,
    Samples,
    Table,
    check,
    check_equal,
    interleave,
    options,
)
from benchmarks._harness.apart import Maker, apart

#: Losses are captured at every step; of the others only the first step is.
NEVER = 1_000_000
NOTHING = "nothing"
HOOKED: dict[str, tuple[str, ...]] = {
    NOTHING: (),
    "losses": (),
    "parameters": ("weights", "gradients", "buffers"),
    "inputs, outputs": ("inputs", "outputs"),
    "and output gradients": ("inputs", "outputs", "output_gradients"),
}
BESIDE = "beside other hooks"
OTHERS = "other hooks only"
COLUMNS = ("what is captured", "us a module and step", "us a step", "ratio of a step")


class Idle(nn.Module):
    """Does nothing, and has a parameter that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Training:
    """A training of a linear layer with many idle modules behind it."""

    def __init__(self, n_modules: int) -> None:
        torch.manual_seed(1)
        idle = [Idle() for _ in range(n_modules)]
        self.model = nn.Sequential(nn.Linear(16, 4), *idle)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self._inputs = torch.randn(8, 16)
        self._labels = torch.arange(8) % 4
        self.n_steps = 0

    def step(self) -> float:
        """Do one step; returns its loss."""
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(self._inputs), self._labels)
        loss.backward()
        self.optimizer.step()
        self.n_steps += 1
        return float(loss.detach())


class Contender:
    """A training, perhaps with a hook of tdbg, perhaps with hooks of others."""

    def __init__(
        self,
        n_modules: int,
        collections: tuple[str, ...] | None,
        folder: Path,
        *,
        has_others: bool = False,
        has_loss: bool = True,
    ) -> None:
        self.training = Training(n_modules)
        self.n_modules = n_modules
        if has_others:
            for module in self.training.model.modules():
                module.register_forward_hook(_nothing)
        self.folder = folder
        self.collections = collections
        self.hook: td.Hook | None = None
        if collections is not None:
            self.hook = td.Hook(
                folder,
                include_collections=collections,
                save_config=td.SaveConfig(
                    save_interval=NEVER, statistics_interval=NEVER
                ),
            )
            self.hook.register_module(self.training.model)
            if has_loss:
                self.hook.register_loss(self.training.criterion)
        self.has_loss = has_loss

    def block(self, n_steps: int) -> Callable[[], Measured]:
        """Does so many steps and answers their losses."""

        def run() -> Measured:
            started, began = time.perf_counter(), time.thread_time()
            losses = [self.training.step() for _ in range(n_steps)]
            thread = time.thread_time() - began
            wall = time.perf_counter() - started
            return Measured(thread, losses, {"wall": wall})

        return run

    def check(self) -> None:
        """What was captured is what was asked for, and only that."""
        if self.hook is None or self.collections is None:
            return
        counters = self.hook.counters()
        check(counters["internal_errors"] == 0, "no error of tdbg")
        check(self.hook.close(timeout=60.0), "everything is written")
        if not self.has_loss:
            return
        trial = tdbg.create_trial(self.folder)
        n_losses = len(trial.tensor("CrossEntropyLoss_output_0").steps())
        check_equal(n_losses, self.training.n_steps, "steps with a loss")
        for collection in self.collections:
            names = trial.tensor_names(collection=collection)
            # Idle parameters have no gradients, and nothing has buffers.
            n = {"buffers": 0, "gradients": 2, "weights": 1 + self.n_modules}
            expected = n.get(collection, 2 + self.n_modules)
            losses = [name for name in names if name.startswith("CrossEntropy")]
            check_equal(len(names) - len(losses), expected, f"names of {collection}")
            if names:
                steps = trial.tensor(names[-1]).steps()
                check_equal(steps, [0], f"steps of {names[-1]}")


def make(
    arguments: tuple[Any, ...], options: dict[str, bool], n_steps: int
) -> tuple[Callable[[], Measured], Callable[[], None]]:
    """A contender, in this process: what does a block of steps, and what verifies."""
    torch.set_num_threads(1)
    contender = Contender(*arguments, **options)
    contender.block(2)()  # The only step that is captured, and one more.
    return contender.block(n_steps), contender.check


@contextlib.contextmanager
def together(makers: Mapping[str, Maker]) -> Iterator[dict[str, Callable[[], Any]]]:
    """As ``apart`` does, but in this process: quick, and the same is verified."""
    made = {name: make(*arguments) for name, (make, arguments) in makers.items()}
    yield {name: run for name, (run, _) in made.items()}
    for _, end in made.values():
        end()


def _nothing(_module: nn.Module, _inputs: object, _output: object) -> None:
    """A hook of somebody else."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--modules", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    if given.quick:
        given.modules, given.seconds = 50, 5.0
    folder = Path(tempfile.mkdtemp(prefix="idle-"))
    try:
        measure(given, folder).save()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(given: argparse.Namespace, folder: Path) -> Report:
    """All contenders, verified."""
    n = given.modules
    n_steps = 20 if given.quick else max(1, min(500, 50_000 // n))
    both = ("inputs", "outputs")
    arms: dict[str, tuple[tuple[str, ...] | None, dict[str, bool]]] = {
        "plain": (None, {}),
        CONTROL: (None, {}),
        OTHERS: (None, {"has_others": True}),
        BESIDE: (both, {"has_others": True}),
    }
    for name, collections in HOOKED.items():
        arms[name] = collections, {"has_loss": name != NOTHING}
    makers: dict[str, Maker] = {
        name: (make, ((n, collections, folder / str(number)), kwargs, n_steps))
        for number, (name, (collections, kwargs)) in enumerate(arms.items())
    }
    with (together if given.quick else apart)(makers) as runs:
        samples = interleave(
            runs,
            baseline="plain",
            rounds=given.rounds or (3 if given.quick else 1000),
            seed=given.seed,
            at_most_seconds=given.seconds,
            verify=check_losses,
        )
    n_hooked = n + 2  # With the linear layer and the model itself.
    table = Table(f"Hooks between steps that save, {n:,} modules", COLUMNS)
    for name in HOOKED:
        add(table, name, samples, (CONTROL, "plain"), n_steps, n_hooked)
    add(table, BESIDE, samples, (OTHERS,), n_steps, n_hooked)
    table.add("plain / plain", "", "", samples.control())
    table.note = (
        "Processor time of the training thread; medians with their 95 % intervals. "
        f"A plain step takes {1e3 * samples.seconds_of('plain') / n_steps:.1f} ms."
    )
    return Report(
        "hooks/idle",
        given,
        packages=("torch", "tdbg"),
        tables=[table],
        data={"samples": samples.to_json(), "block": n_steps, "modules": n_hooked},
    )


def add(
    table: Table,
    name: str,
    samples: Samples,
    below: tuple[str, ...],
    n_steps: int,
    n_hooked: int,
) -> None:
    """The row of one contender, against the mean of those in *below*."""
    columns = [samples.seconds[each] for each in below]
    means = [sum(each) / len(each) for each in zip(*columns, strict=True)]
    times = samples.seconds[name]
    more = [1e6 * (a - b) / n_steps for a, b in zip(times, means, strict=True)]
    ratios = [a / b for a, b in zip(times, means, strict=True)]
    table.add(
        name,
        interval(Ratio.of([each / n_hooked for each in more])),
        interval(Ratio.of(more)),
        str(Ratio.of(ratios)),
    )


def interval(found: Ratio) -> str:
    """A median of microseconds with its interval."""
    return f"{found.median:.3g} [{found.low:.3g} to {found.high:.3g}]"


def check_losses(answers: Mapping[str, Any]) -> None:
    """All trainings compute the same."""
    for name, losses in answers.items():
        check_equal(losses, answers["plain"], f"losses of {name}")


if __name__ == "__main__":
    main()
