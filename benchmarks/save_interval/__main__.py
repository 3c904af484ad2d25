"""What each save interval costs, beside the figures of the paper of smdebug.

    python -m benchmarks.save_interval                        all figures, ten minutes
    python -m benchmarks.save_interval --only resnet,bert --device cuda
    python -m benchmarks.save_interval --seconds 3600         narrower intervals

A table a figure: ResNet18 (figure 4), one of Keras (figure 9) and a transformer
as large as BERT (figure 10), at intervals of 1 to 500 steps.  Each figure has a process
of its own.  What was recorded is compared with what was trained, and losses with those
of a plain training.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from benchmarks._harness import options

#: Share of the time; the module and its first argument.
FIGURES = {
    "resnet": (0.3, ["benchmarks.save_interval._torch", "resnet"]),
    "keras": (0.3, ["benchmarks.save_interval._keras"]),
    "bert": (0.4, ["benchmarks.save_interval._torch", "bert"]),
}
# Seconds of a figure that count, of all: models are made, compiled and checked.
MEASURED = 0.6


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", default=",".join(FIGURES), help="with commas")
    parser.add_argument("--device", default="cpu", help="of the figures of PyTorch")
    parser.add_argument("--seconds", type=float, default=540.0, help="of all figures")
    given = parser.parse_args()
    chosen = given.only.split(",")
    unknown = [name for name in chosen if name not in FIGURES]
    if unknown:
        parser.error(f"no figure {unknown[0]!r}, only {', '.join(FIGURES)}")
    whole = sum(FIGURES[name][0] for name in chosen)
    failed = [name for name in chosen if _run(name, given, FIGURES[name][0] / whole)]
    if failed:
        sys.exit(f"FAILED: {', '.join(failed)}")


def _run(name: str, given: argparse.Namespace, share: float) -> int:
    seconds = MEASURED * share * given.seconds
    command = [sys.executable, "-m", *FIGURES[name][1], f"--seconds={seconds:.0f}"]
    if "_torch" in command[2]:
        command.append(f"--device={given.device}")
    for option in ("rounds", "seed"):
        value = getattr(given, option)
        command += [] if value is None else [f"--{option}={value}"]
    command += ["--quick"] if given.quick else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=False, env=environment).returncode


if __name__ == "__main__":
    main()
