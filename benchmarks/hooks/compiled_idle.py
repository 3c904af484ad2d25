"""What hooks cost a compiled model between the steps at which something is saved.

    python -m benchmarks.hooks.compiled_idle [--layers 3] [--quick]

Hooks inside modules are operators in the graph of a compiled model, and stay there at
steps that want nothing of them.  Equal trainings of a small model take turns, block by
block, each in a process of its own, since what is compiled and hung on optimizers is
the process's: plain ones, one with a hook that captures losses, and one with a hook
that captures inputs and outputs of all modules as well, of steps that come so rarely
that none is among those measured.

The figures are the processor time of the training thread.  Losses of all must be equal
to 1e-4, since inductor fuses differently around an operator.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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
from benchmarks._harness.apart import apart

NEVER = 1_000_000
#: Collections that are captured; None: there is no hook.
ARMS: dict[str, tuple[str, ...] | None] = {
    "plain": None,
    CONTROL: None,
    "losses": (),
    "inputs, outputs": ("inputs", "outputs"),
}
HOOKED = [name for name, collections in ARMS.items() if collections is not None]
COLUMNS = ("what is captured", "us a step", "ratio of a step")


def make(
    collections: tuple[str, ...] | None, n_layers: int, n_steps: int, folder: str
) -> tuple[Callable[[], Measured], Callable[[], None]]:
    """A compiled training, in this process."""
    import torch
    from torch import nn

    import tdbg.pytorch as td

    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(n_layers)]
    model = nn.Sequential(*layers, nn.Linear(256, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(128, 256), torch.arange(128) % 10
    hook = None
    if collections is not None:
        hook = td.Hook(
            folder,
            include_collections=collections,
            save_config=td.SaveConfig(save_interval=NEVER, statistics_interval=NEVER),
        )
        hook.register_module(model)
        hook.register_loss(criterion)
    compiled: Any = torch.compile(model)

    def step() -> float:
        optimizer.zero_grad()
        loss = criterion(compiled(inputs), labels)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    for _ in range(20):  # Compiles, and captures the first.
        step()

    def run() -> Measured:
        began = time.thread_time()
        losses = [step() for _ in range(n_steps)]
        return Measured(time.thread_time() - began, losses)

    def end() -> None:
        if hook is not None:
            check_equal(hook.counters()["internal_errors"], 0, "errors of tdbg")
            check_equal(hook.counters()["unseen_modules"], 0, "modules not seen")
            check(hook.close(timeout=60.0), "everything is written")

    return run, end


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    if given.quick:
        given.seconds = 5.0
    folder = Path(tempfile.mkdtemp(prefix="compiled-"))
    try:
        measure(given, folder).save()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(given: argparse.Namespace, folder: Path) -> Report:
    """All trainings, verified."""
    n_steps = 20 if given.quick else 50
    makers = {
        name: (make, (each, given.layers, n_steps, str(folder / str(number))))
        for number, (name, each) in enumerate(ARMS.items())
    }
    with apart(makers) as runs:
        samples = interleave(
            runs,
            baseline="plain",
            rounds=given.rounds or (6 if given.quick else 1000),
            seed=given.seed,
            at_most_seconds=given.seconds,
            verify=check_losses,
        )
    table = Table(
        f"Compiled models between steps that save, {given.layers} layers", COLUMNS
    )
    pairs = zip(samples.seconds["plain"], samples.seconds[CONTROL], strict=True)
    plain = [(one + other) / 2 for one, other in pairs]
    for name in HOOKED:
        more = [
            1e6 * (time_ - base) / n_steps
            for time_, base in zip(samples.seconds[name], plain, strict=True)
        ]
        found = Ratio.of(more)
        table.add(
            name,
            f"{found.median:.3g} [{found.low:.3g} to {found.high:.3g}]",
            str(samples.ratio(name)),
        )
    table.add("plain / plain", "", samples.control())
    table.note = (
        "Processor time of the training thread; medians with their 95 % intervals. "
        f"A plain step takes {1e3 * samples.seconds_of('plain') / n_steps:.2f} ms."
    )
    return Report(
        "hooks/compiled_idle",
        given,
        packages=("torch", "tdbg"),
        tables=[table],
        data={"samples": samples.to_json(), "block": n_steps},
    )


def check_losses(answers: Mapping[str, Any]) -> None:
    """All trainings compute the same, but for the order of sums."""
    for name, losses in answers.items():
        for loss, expected in zip(losses, answers["plain"], strict=True):
            check_close(loss, expected, 1e-4, f"loss of {name}")


if __name__ == "__main__":
    main()
