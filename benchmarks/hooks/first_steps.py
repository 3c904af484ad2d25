"""What the checks of the first steps cost a training, and what fingerprints cost.

    python -m benchmarks.hooks.first_steps [--quick]

A clock of the thread runs while a function of ``tdbg.hooks.pytorch.checks``, a pass
over all objects of the process or a fingerprint runs, and whatever that calls.  Each of
these functions is replaced by one that starts the clock, unless it runs already; the
time that this takes itself is part of the result, so these are upper bounds.  A
training with a fault comes with each model: the check must find it, or nothing was
measured.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import pkgutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

import tdbg.pytorch as td
from benchmarks._harness import Report, Table, check, check_equal, options
from tdbg.rules import check as check_run

STEPS = 1_000
STEP_SECONDS = 0.010
REPEATS = 5
# What is measured, by the names of modules.
_CHECKS = "tdbg.hooks.pytorch.checks"
_PASSES = "tdbg.hooks.pytorch.model.process_objects"
_PRINTS = "tdbg.profiler.fingerprints"
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
    # Probes run once, and are left out.
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


class _Clock:
    """The seconds of this thread that some functions take, with all that they call."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_running = False

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs the clock while it runs."""

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._is_running:
                return function(*args, **kwargs)
            self._is_running, start = True, time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - start
                self._is_running = False

        return wrapper


@contextlib.contextmanager
def _timing(*prefixes: str) -> Iterator[_Clock]:
    """Replace the functions of modules, wherever they were imported, by timed ones."""
    clock, put_back = _Clock(), list[tuple[Any, str, Any]]()
    ours = [m for name, m in sys.modules.items() if name.startswith(prefixes)]
    made: dict[int, Any] = {}

    def replace(owner: Any, name: str, value: Any) -> None:
        made.setdefault(id(value), clock.timed(value))
        put_back.append((owner, name, value))
        setattr(owner, name, made[id(value)])

    for module in ours:
        for value in [*vars(module).values()]:
            if isinstance(value, type) and value.__module__ == module.__name__:
                for name, method in [*vars(value).items()]:
                    if isinstance(method, FunctionType):
                        replace(value, name, method)
    functions = {
        id(value)
        for module in ours
        for value in vars(module).values()
        if isinstance(value, FunctionType) and value.__module__ == module.__name__
    }
    for module in _modules("tdbg"):
        for name, value in [*vars(module).items()]:
            if id(value) in functions:
                replace(module, name, value)
    try:
        yield clock
    finally:
        for owner, name, value in put_back:
            setattr(owner, name, value)


def _modules(top: str) -> list[ModuleType]:
    return [m for name, m in sys.modules.items() if name.partition(".")[0] == top]


def _import_all(package: str) -> None:
    """Import what a training would import later, outside of the clock."""
    for each in pkgutil.walk_packages(
        importlib.import_module(package).__path__, f"{package}."
    ):
        importlib.import_module(each.name)


def _seconds(
    make: Callable[[], nn.Module], run: Path, steps: int, *prefixes: str
) -> float:
    """Return the seconds that modules take in a training."""
    model = make()
    gc.collect()
    with _timing(*prefixes) as clock:
        _train(model, run, steps)
    check(clock.seconds > 0.0, "the clock has run")
    return clock.seconds


def _finds_the_fault(make: Callable[[], nn.Module], folder: Path) -> None:
    _train(make(), folder / "sick", 20, is_sick=True)
    findings = check_run(folder / "sick", ["LossMisuse"]).findings
    check(findings, "a cross-entropy of probabilities is found")


def main() -> None:
    """Measure each model."""
    given = options(__doc__).parse_args()
    torch.set_num_threads(1)
    _import_all("tdbg.hooks.pytorch")
    steps = 200 if given.quick else STEPS
    table = Table("the checks of the first steps", COLUMNS)
    for name, make in MODELS.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            _finds_the_fault(make, folder)
            early = _seconds(make, folder / "early", 100, _CHECKS, _PASSES)
            checks = [
                _seconds(make, folder / f"checks{each}", steps, _CHECKS, _PASSES)
                for each in range(REPEATS)
            ]
            passes = _seconds(make, folder / "passes", steps, _PASSES)
            prints = _seconds(make, folder / "prints", steps, _PRINTS) / steps
        middle = statistics.median(checks)
        later = (middle - early) / (steps - 100)
        table.add(
            name,
            sum(1 for _ in make().parameters()),
            f"{middle * 1e3:.1f} ({min(checks) * 1e3:.1f} to {max(checks) * 1e3:.1f})",
            f"{passes * 1e3:.1f}",
            f"{prints * 1e6:.1f}",
            f"{max(0.0, later) * 1e6:.1f}",
            f"{middle / (STEP_SECONDS * steps):.2%}",
        )
    Report("hooks/first_steps", given, tables=[table]).save()


if __name__ == "__main__":
    main()
