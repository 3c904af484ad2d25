"""Where contenders live: a virtual environment for each group that gets along.

``benchmarks/environments/NAME.txt`` says what is installed in the environment NAME;
``python -m benchmarks.environments.create`` makes them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks._harness.machine import ROOT

__all__ = ["environment", "python_of", "run_module"]

#: Nothing measured may reach for the network, a second core or the user's settings.
_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "DO_NOT_TRACK": "1",
    "SMDEBUG_LOG_LEVEL": "error",
}


def environment(name: str) -> Path:
    """The folder of an environment: in ``$TDBG_BENCH_ENVS``, or build/benchmarks."""
    parent = os.environ.get("TDBG_BENCH_ENVS") or ROOT / "build" / "benchmarks"
    return Path(parent).resolve() / f"env-{name}"


def python_of(name: str) -> Path:
    """The interpreter of an environment.

    Raises:
        FileNotFoundError: If it has not been made.
    """
    python = environment(name) / "bin" / "python"
    if not python.exists():
        msg = f"{python}: none yet; python -m benchmarks.environments.create {name}"
        raise FileNotFoundError(msg)
    return python


def run_module(
    name: str,
    module: str,
    arguments: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> int:
    """Run a module of this checkout in an environment; returns its exit status."""
    command = [str(python_of(name)), "-m", module, *arguments]
    print("==", name, "python -m", module, *arguments, flush=True)
    variables = {**os.environ, **_SETTINGS, **(settings or {})}
    done = subprocess.run(command, cwd=ROOT, env=variables, check=False)
    if done.returncode:
        print(f"== failed with {done.returncode}", file=sys.stderr, flush=True)
    return done.returncode
