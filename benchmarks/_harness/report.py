"""What a benchmark found: printed at once, kept as JSON for ``report.py``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._harness.machine import ROOT, machine, machine_line
from benchmarks._harness.plots import Bars, Curves
from benchmarks._harness.tables import Table

__all__ = ["Report", "options", "results_folder"]

QUICK_NOTE = "Quick run: few rounds, only to see that it works."


def results_folder() -> Path:
    """Where results are kept: ``build/benchmarks``, or ``$TDBG_BENCH_RESULTS``."""
    return Path(os.environ.get("TDBG_BENCH_RESULTS") or ROOT / "build" / "benchmarks")


def options(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments that every benchmark takes."""
    parser = argparse.ArgumentParser(description=(doc or "").strip().splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, small data")
    parser.add_argument("--rounds", type=int, help="rounds that count")
    parser.add_argument("--seed", type=int, help="of the order of contenders")
    return parser


@dataclass
class Report:
    """The result of one benchmark, or of a slice of one.

    Args:
        name: Of the JSON file, with folders: ``writer/small_tensors``.
        given: The parsed arguments of ``options()``.
        packages: Those whose versions matter.
        tables: What to print; see ``Table`` for slices of one table.
        plots: What to draw.
        data: Anything else worth keeping, as JSON: samples, sizes.
    """

    name: str
    given: argparse.Namespace
    packages: Iterable[str] = ("numpy", "tdbg")
    tables: list[Table] = field(default_factory=list)
    plots: list[Curves | Bars] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def save(self) -> Path:
        """Print the tables and write the JSON file, whose path is returned."""
        where = machine(self.packages)
        for table in self.tables:
            if self.given.quick:
                table.note = f"{table.note} {QUICK_NOTE}".strip()
            print(table.text())
        print(machine_line(where), flush=True)
        document = {
            "name": self.name,
            "quick": self.given.quick,
            "arguments": {k: str(v) for k, v in vars(self.given).items()},
            "machine": where,
            "tables": [dataclasses.asdict(table) for table in self.tables],
            "plots": [dataclasses.asdict(plot) for plot in self.plots],
            "data": self.data,
        }
        path = results_folder() / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".json.new")
        beside.write_text(json.dumps(document, indent=1), encoding="utf-8")
        beside.replace(path)
        return path
