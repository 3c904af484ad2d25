"""What a window of the profiler costs, and torch.profiler that is always on.

A small transformer with AdamW, a step of which is 3,600 operators, trains with a window
of 5 steps in every 40: with small batches, and with longer ones, which take as many
operators more time. Its cost is the process's time on a processor over such
a stretch, less that of 40 steps of its end: starting, stopping, slower steps, and
adding up in another thread. Beside it, blocks of 40 steps in one ``torch.profiler``.

Every window is verified: it has counted the operators of exactly 5 steps. All trainings
have the same losses, bit for bit.

    python -m benchmarks.profiler.window
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tdbg.pytorch as td
from benchmarks._harness import Ratio, Report, Table, options
from benchmarks._harness.verify import check, check_equal
from tdbg.trial import create_trial

STEPS = 5
EVERY = 40
#: Of each stretch, the last steps: nothing of the window is left to be worked out.
PLAIN = 15
LAYERS = 4
#: Samples in a batch: with more, a step takes 2 to 3 times as long.
SHORT, LONG = 4, 96


class Training:
    """A training that measures the processor's time of each of its steps."""

    def __init__(self, batch_size: int = SHORT) -> None:
        torch.manual_seed(1)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)
        self.batch = torch.randn(batch_size, 8, 32)
        self.losses: list[float] = []
        self.times: list[float] = []

    def train(self, n_steps: int) -> None:
        for _ in range(n_steps):
            begin = time.process_time()
            self.optimizer.zero_grad()
            loss = self.model(self.batch).square().mean()
            loss.backward()
            self.optimizer.step()
            self.losses.append(float(loss.detach()))
            self.times.append(time.process_time() - begin)


def stretches(times: list[float], first: int) -> Iterator[list[float]]:
    for start in range(first, len(times) - EVERY + 1, EVERY):
        yield times[start : start + EVERY]


def of_windows(
    rounds: int, out: Path, batch_size: int = SHORT, **kinds: Any
) -> tuple[list[float], list[float]]:
    """Cost of each window in steps, and how much longer its steps took."""
    training = Training(batch_size)
    window = td.WindowConfig(start_step=EVERY, num_steps=STEPS, every=EVERY, **kinds)
    profiler = td.ProfilerConfig(
        budget=1.0, python_interval=None, system_interval=3600.0, windows=[window]
    )
    with td.Hook(out, profiler=profiler) as hook:
        hook.register_module(training.model)
        training.train((rounds + 1) * EVERY)
    costs, within = [], []
    # The window begins where the step before it ends, which is in that step.
    for steps in stretches(training.times, EVERY - 1):
        plain = statistics.median(steps[-PLAIN:])
        costs.append(sum(steps) / plain - EVERY)
        within.append(statistics.mean(steps[1:STEPS]) / plain)
    verify(out, len(costs))
    plain = plain_losses(len(training.losses), batch_size)
    check(training.losses == plain, "losses differ")
    return costs, within


def verify(out: Path, n_windows: int) -> None:
    """Check that each window has the optimizer and the backwards of exactly 5 steps."""
    profile = create_trial(out).profile
    ended = [each for each in profile.windows() if each.state == "ended"]
    check(len(ended) >= n_windows, f"{len(ended)} windows of {n_windows}")
    for window in ended:
        calls = [
            *(row["calls"] for row in profile.operators(window.id) if is_step(row)),
            *(row["calls"] for row in profile.functions(window.id) if is_step(row)),
        ]
        check_equal(sum(map(int, calls)), STEPS, f"steps in {window.id}")


def is_step(row: Any) -> bool:
    return row["name"] == "Optimizer.step#AdamW.step" or "'run_backward'" in row["name"]


def of_profiler(rounds: int, read: Callable[[Any], object]) -> list[float]:
    """Time of steps in a torch.profiler that never rests, relative to plain ones."""
    training, ratios = Training(), []
    training.train(EVERY)
    for _ in range(rounds):
        training.train(PLAIN)
        plain = statistics.median(training.times[-PLAIN:])
        begin = time.process_time()
        with torch.profiler.profile(acc_events=False) as profiler:
            training.train(EVERY)
        read(profiler)
        ratios.append((time.process_time() - begin) / EVERY / plain)
    check(training.losses == plain_losses(len(training.losses)), "losses differ")
    return ratios


_plain: dict[int, Training] = {}


def plain_losses(n: int, batch_size: int = SHORT) -> list[float]:
    plain = _plain.setdefault(batch_size, Training(batch_size))
    if len(plain.losses) < n:
        plain.train(n - len(plain.losses))
    return plain.losses[:n]


def plain_ms(batch_size: int = SHORT) -> float:
    """The processor's time of a step without a profiler, in milliseconds."""
    plain_losses(EVERY, batch_size)
    return 1e3 * statistics.median(_plain[batch_size].times)


def main() -> None:
    given = options(__doc__).parse_args()
    rounds = given.rounds or (5 if given.quick else 20)
    torch.set_num_threads(1)
    plain_losses(EVERY)
    table = Table(
        "windows", ("what", "a step, within", "cost in steps", "at 5 in 1,000 steps")
    )
    for name, kinds in (
        ("window: operators", {}),
        ("... in longer steps", {"batch_size": LONG}),
        ("... with shapes", {"shapes": True}),
        ("... with calls stored", {"spans": True}),
        ("window: cProfile", {"operators": False, "functions": "cprofile"}),
    ):
        with tempfile.TemporaryDirectory() as folder:
            costs, within = of_windows(rounds, Path(folder) / "run", **kinds)
        median = statistics.median(costs)
        average = f"{median / 10:.2f} %"
        table.add(name, str(Ratio.of(within)), f"{median:.1f}", average)
    always = Ratio.of(of_profiler(rounds, lambda _: None))
    table.add("torch.profiler always on", str(always), "", "")
    averages = Ratio.of(of_profiler(2, lambda profiler: profiler.key_averages()))
    table.add("... and key_averages() every 40 steps", str(averages), "", "")
    steps = f"{plain_ms():.1f} ms, a longer one {plain_ms(LONG):.1f} ms"
    print(f"a plain step takes {steps} of a processor")
    Report("profiler/window", given, tables=[table]).save()


if __name__ == "__main__":
    main()
