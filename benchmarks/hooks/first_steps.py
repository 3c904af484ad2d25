"""What the checks of the first steps cost a training, and what fingerprints cost.

    python -m benchmarks.hooks.first_steps [--quick]

Each training is profiled by ``cProfile`` with the clock of its thread.  The cost is the
time inside calls that enter ``tdbg.hooks.pytorch.checks`` or fingerprints from
elsewhere, and that of passes over all objects of the process, whoever makes them.  What
Python calls back, such as a generator, is in the time of its caller.  The profiler
makes small functions look slower, so these are upper bounds.  A training with a fault
comes with each model: the check must find it, or nothing was measured.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tdbg.pytorch as td
from benchmarks._harness import Report, Table, check, check_equal, options
from tdbg.rules import check as check_run

STEPS = 1_000
STEP_SECONDS = 0.010
# The files of what calls back for others; "~" is that of built-in functions.
_CALL_BACK = ("~", "/contextlib.py", "/functools.py")
COLUMNS = (
    "model",
    "parameters",
    "checks and passes, ms in all",
    "passes over objects, ms",
    "fingerprints, us a step",
    "checks from step 100 on, us a step",
    "share of 1,000 steps of 10 ms",
)


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _deep() -> nn.Module:
    layers = [each for _ in range(48) for each in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*layers, nn.BatchNorm1d(64), nn.Linear(64, 10))


def _attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 64, batch_first=True)
    return nn.Sequential(
        nn.Unflatten(1, (1, 64)),
        nn.TransformerEncoder(layer, 8, enable_nested_tensor=False),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "two layers": _perceptron,
    "49 layers": _deep,
    "8 blocks of attention": _attention,
}


def _train(model: nn.Module, run: Path, steps: int, *, is_sick: bool = False) -> None:
    inputs, labels = torch.randn(32, 64), torch.randint(0, 10, (32,))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Probes wait for the end of a profile, and would look for it at each step.
    with td.Hook(run, min_free_bytes=0, probes=False) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for _ in range(steps):
            optimizer.zero_grad()
            scores = model(inputs)
            scores = scores.softmax(1) if is_sick else scores
            criterion(scores, labels).backward()
            optimizer.step()
    check_equal(hook.counters()["internal_errors"], 0, "errors inside")


def _profiled(make: Callable[[], nn.Module], run: Path, steps: int) -> pstats.Stats:
    model = make()
    gc.collect()
    profile = cProfile.Profile(time.thread_time)
    profile.enable()
    _train(model, run, steps)
    profile.disable()
    return pstats.Stats(profile)


def _is_check(file: str) -> bool:
    return "/hooks/pytorch/checks/" in file or _is_pass(file)


def _is_pass(file: str) -> bool:
    return file.endswith("model/process_objects.py")


def _is_print(file: str) -> bool:
    return file.endswith("profiler/fingerprints.py")


def _inside(stats: Any, is_ours: Callable[[str], bool]) -> float:
    """Return the seconds in calls of our functions from elsewhere."""
    seconds = (
        cumulative
        for (file, *_), (*_, callers) in stats.stats.items()
        if is_ours(file)
        for (caller, *_), (*_, cumulative) in callers.items()
        if not is_ours(caller) and not caller.endswith(_CALL_BACK)
    )
    return float(sum(seconds))


def _finds_the_fault(make: Callable[[], nn.Module], folder: Path) -> None:
    _train(make(), folder / "sick", 20, is_sick=True)
    findings = check_run(folder / "sick", ["LossMisuse"]).findings
    check(findings, "a cross-entropy of probabilities is found")


def main() -> None:
    """Measure each model."""
    given = options(__doc__).parse_args()
    torch.set_num_threads(1)
    steps = 200 if given.quick else STEPS
    table = Table("the checks of the first steps", COLUMNS)
    for name, make in MODELS.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            _finds_the_fault(make, folder)
            short = _profiled(make, folder / "short", 100)
            stats = _profiled(make, folder / "long", steps)
        checks = _inside(stats, _is_check)
        later = (checks - _inside(short, _is_check)) / (steps - 100)
        prints = _inside(stats, _is_print) / steps
        table.add(
            name,
            sum(1 for _ in make().parameters()),
            f"{checks * 1e3:.1f}",
            f"{_inside(stats, _is_pass) * 1e3:.1f}",
            f"{prints * 1e6:.1f}",
            f"{max(0.0, later) * 1e6:.1f}",
            f"{checks / (STEP_SECONDS * steps):.2%}",
        )
    Report("hooks/first_steps", given, tables=[table]).save()


if __name__ == "__main__":
    main()
