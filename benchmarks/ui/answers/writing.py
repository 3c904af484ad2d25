"""Writes the runs as users of a dashboard do; run in its environment.

``python -m benchmarks.ui.answers.writing MLflow FOLDER`` writes all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.ui.answers import load
from benchmarks.ui.answers._runs import RUNS


def main() -> None:
    dashboard, folder = load(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for run in RUNS:
        dashboard.write(folder, run)


if __name__ == "__main__":
    main()
