"""Runs programs that train with Keras: each in a process with one backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parents[1] / "keras" / "programs"


def run_program(name: str, out: Path, backend: str = "tensorflow") -> dict[str, Any]:
    """Run a program, which leaves its runs in *out*, and return what it reports."""
    variables = {
        "KERAS_BACKEND": backend,
        "CUDA_VISIBLE_DEVICES": "",
        "TF_NUM_INTRAOP_THREADS": "1",
    }
    ended = subprocess.run(
        [sys.executable, "-W", "default", PROGRAMS / f"{name}.py", out],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report
