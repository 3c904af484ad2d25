"""Writes a run, its argument, says so, and waits until its input ends."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from run_builder import RunBuilder

with RunBuilder(Path(sys.argv[1])) as run:
    for step in range(3):
        run.step(step, {"w": np.full(3, step, np.float32)}, what="statistics")
    run.flush()
    print("written", flush=True)
    sys.stdin.read()
