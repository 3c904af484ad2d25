"""Everything that needs a GPU: builds, tests, measures.  ``make gpu-check``.

    python -m benchmarks.gpu.check [--seconds 540] [--stages tests,bandwidth]

Needs a machine with a GPU, Python with PyTorch, cmake, ninja and nvcc; no network.
Each stage is a process with a time of its own; what it found is in the JSON file as
soon as it has found it, also when it is killed.  ``--device cpu --small`` runs the
same programs where there is no GPU: their figures then mean nothing.

The exit status is the sum of the stages that failed: 1 build, 2 tests, 4 bandwidth,
8 table, 16 training.  A target that is missed is no failure: the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._harness import Report, Table
from benchmarks._harness.machine import ROOT
from benchmarks._harness.report import results_folder
from benchmarks.gpu._build import build, environment

#: Bit of the exit status, and share of the time.
STAGES = {
    "build": (1, 0.35),
    "tests": (2, 0.2),
    "bandwidth": (4, 0.1),
    "table": (8, 0.05),
    "training": (16, 0.3),
}
COLUMNS = ("measured", "figure", "target", "verdict")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--small", action="store_true", help="only to see that it works"
    )
    parser.add_argument("--seconds", type=float, default=540.0, help="of all stages")
    parser.add_argument("--stages", default=",".join(STAGES), help="with commas")
    given = parser.parse_args()
    chosen = [each for each in given.stages.split(",") if each]
    for name in chosen:
        if name not in STAGES:
            parser.error(f"no stage {name!r}: {', '.join(STAGES)}")
    given.quick = given.small
    check = Check(given)
    for name in chosen:
        check.run(name)
    return check.finish()


class Check:
    """Runs the stages and collects what they found.

    Args:
        given: The parsed arguments.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._end = time.monotonic() + given.seconds
        self._folder = results_folder() / "gpu"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._found: dict[str, Any] = {}
        self._failed: dict[str, str] = {}

    def run(self, name: str) -> None:
        """Run one stage, within its share of what is left."""
        seconds = self._seconds_of(name)
        print(f"== {name}, at most {seconds:.0f} s", flush=True)
        start = time.monotonic()
        try:
            if name == "build":
                found = self._build(seconds)
                self._found["build"] = {"lines": [], "data": {"found": found}}
            elif name == "tests":
                self._tests(seconds)
            else:
                self._measure(name, seconds)
        except subprocess.TimeoutExpired:
            self._failed[name] = f"took longer than {seconds:.0f} s"
        except subprocess.CalledProcessError as error:
            self._failed[name] = f"exit status {error.returncode}"
        except (RuntimeError, OSError, ValueError) as error:
            self._failed[name] = str(error)
        if name in self._failed:
            print(f"== {name} FAILED: {self._failed[name]}", flush=True)
        self._found.setdefault(name, {"lines": [], "data": {}})
        self._found[name]["seconds"] = time.monotonic() - start
        self._save()

    def finish(self) -> int:
        """Print the table; the exit status."""
        if self._failed:
            print(f"FAILED: {self._failed}", flush=True)
        return sum(STAGES[name][0] for name in self._failed)

    def _seconds_of(self, name: str) -> float:
        """What is left, without the shares of the stages behind it."""
        names = list(STAGES)
        behind = sum(STAGES[each][1] for each in names[names.index(name) + 1 :])
        left = self._end - time.monotonic() - behind * self._given.seconds
        return max(left, 10.0)

    def _build(self, seconds: float) -> str:
        with_cuda = self._given.device == "cuda"
        return build(os.cpu_count() or 1, with_cuda, seconds)

    def _tests(self, seconds: float) -> None:
        """All of tests/gpu: with the kernels, then by PyTorch's operations alone."""
        start = time.monotonic()
        ways: dict[str, dict[str, str]] = {"kernels": {}}
        if self._given.device == "cuda":
            ways["fallback"] = {"TDBG_CUDA_DRIVER": "/nonexistent"}
        failed = []
        for what, settings in ways.items():
            left = seconds - (time.monotonic() - start)
            print(f"== tests, {what}", flush=True)
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", "-q", "-W", "default"),
                    *("-p", "no:cacheprovider", str(ROOT / "tests" / "gpu")),
                    *("--junitxml", str(self._folder / f"tests-{what}.xml")),
                ],
                check=False,
                timeout=max(left, 1.0),
                cwd=ROOT,
                env={
                    **environment(),
                    **settings,
                    "TDBG_GPU_DEVICE": self._given.device,
                    "TDBG_GPU_PATH": what,
                },
            )
            if done.returncode:
                failed.append(f"exit status {done.returncode} with {what}")
        if failed:
            raise RuntimeError("; ".join(failed))

    def _measure(self, name: str, seconds: float) -> None:
        out = self._folder / f"{name}.json"
        out.unlink(missing_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="gpu-check-"))
        command = [
            *(sys.executable, "-m", f"benchmarks.gpu.{name}"),
            *("--device", self._given.device, "--out", str(out)),
            *("--folder", str(folder), "--seconds", f"{0.7 * seconds:.0f}"),
            *(["--small"] if self._given.small else []),
        ]
        try:
            subprocess.run(
                command, check=True, timeout=seconds, cwd=ROOT, env=environment()
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if out.exists():
                self._found[name] = json.loads(out.read_text(encoding="utf-8"))

    def _save(self) -> None:
        """Everything so far, as one result of the benchmarks."""
        device = self._found.get("training", {}).get("data", {}).get("device", {})
        table = Table(f"On a GPU: {device.get('name', 'not measured')}", COLUMNS)
        for found in self._found.values():
            for line in found["lines"]:
                table.add(*line)
        for name, reason in self._failed.items():
            table.add(name, "FAILED", reason, "")
        Report(
            "gpu/check",
            self._given,
            packages=("numpy", "torch"),
            tables=[table],
            data={"stages": self._found, "failed": self._failed},
        ).save()


if __name__ == "__main__":
    sys.exit(main())
