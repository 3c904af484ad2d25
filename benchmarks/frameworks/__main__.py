"""``python -m benchmarks.frameworks``: one training in each framework, and the rules.

python -m benchmarks.frameworks                            all of them: some minutes
python -m benchmarks.frameworks --only pytorch,keras/jax   some frameworks
python -m benchmarks.frameworks --json

Each run is a process of its own.  Exits with 1 if a fault is not named by a rule that
may name it, or the healthy training is accused.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks._harness.machine import ROOT
from benchmarks.frameworks.trainings import TRAININGS, Training
from tdbg.rules import resolve
from tdbg.rules.testing import judge
from tdbg.run.findings import Finding, Severity

# The program of each framework, and Keras's backend.
PROGRAMS: dict[str, tuple[str, str | None]] = {
    "pytorch": ("pytorch", None),
    "keras/tensorflow": ("keras_fit", "tensorflow"),
    "keras/jax": ("keras_fit", "jax"),
    "keras/torch": ("keras_fit", "torch"),
    "tensorflow tape": ("tape", "tensorflow"),
    "flax": ("flax", None),
    "gluon": ("gluon", None),
}
# What runs in an environment of its own, which `make test-mxnet` makes.
APART = {"gluon": ROOT / ".venv-mxnet" / "bin" / "python"}


class Outcome(NamedTuple):
    """What was said of a training in a framework.

    Attributes:
        framework: One of ``PROGRAMS``.
        training: Name of the training.
        is_right: Whether its fault was named; of the healthy one that nothing was said.
        said: The finding that names the fault, or else the first one: its rule and
            step.
    """

    framework: str
    training: str
    is_right: bool
    said: str


def main() -> int:
    """Run what is asked for, print a table; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="frameworks, with commas")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    there = [name for name in PROGRAMS if name not in APART or APART[name].exists()]
    names = there if given.only is None else given.only.split(",")
    unknown = set(names) - set(there)
    if unknown:
        parser.error(f"no such framework: {', '.join(unknown)}; {', '.join(there)}")
    outcomes = list(_outcomes(names))
    if given.json:
        print(json.dumps([each._asdict() for each in outcomes], indent=1))
    else:
        _print(outcomes, names)
    return int(not all(each.is_right for each in outcomes))


def _outcomes(names: list[str]) -> Iterator[Outcome]:
    rules = resolve("default")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            for training in TRAININGS:
                run = Path(folder) / name.replace("/", "-") / training.name
                _train(name, training, run)
                found = [
                    each for each in judge(run, *rules) if each.severity > Severity.INFO
                ]
                yield _outcome(name, training, found)
                print(f"{name}: {training.name}", file=sys.stderr, flush=True)


def _train(name: str, training: Training, run: Path) -> None:
    program, backend = PROGRAMS[name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if backend is not None:
        environment["KERAS_BACKEND"] = backend
    module = f"benchmarks.frameworks.programs.{program}"
    subprocess.run(
        [str(APART.get(name, sys.executable)), "-m", module, training.name, str(run)],
        cwd=ROOT,
        env=environment,
        check=True,
    )


def _outcome(name: str, training: Training, found: list[Finding]) -> Outcome:
    naming = [each for each in found if each.rule in training.named_by]
    is_right = bool(naming) if training.named_by else not found
    first = next(iter(naming or found), None)
    said = "nothing" if first is None else f"{first.rule} {first.step}"
    return Outcome(name, training.name, is_right, said)


def _print(outcomes: list[Outcome], names: list[str]) -> None:
    table = Table(title="the rule that names the fault, and the step at which it does")
    table.add_column("training")
    for name in names:
        table.add_column(name)
    for training in TRAININGS:
        said = {
            each.framework: each.said if each.is_right else f"{each.said} (wrong)"
            for each in outcomes
            if each.training == training.name
        }
        table.add_row(training.name, *(said[name] for name in names))
    Console(width=200).print(table)


if __name__ == "__main__":
    sys.exit(main())
