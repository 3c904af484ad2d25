"""Performs one scenario in this process; tdbg comes in from outside, by `tdbg run`.

python -m benchmarks.detection.scenarios.play loader_sleeps --sick --outcome FILE
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.detection.scenarios.kit import WARM_SECONDS, Play, scenarios

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Perform a scenario and write down what it measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=sorted(scenarios()))
    parser.add_argument("--sick", action="store_true", help="with its fault")
    parser.add_argument("--mended", action="store_true", help="as the advice says")
    parser.add_argument("--workers", type=int, help="that the advice names")
    parser.add_argument("--seconds", type=float, help="of training")
    parser.add_argument("--warm-up", type=float, help="seconds that do not count")
    parser.add_argument("--outcome", type=Path, required=True)
    given = parser.parse_args(arguments)
    one = scenarios()[given.name]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    play = Play(
        sick=given.sick or given.mended,
        mended=given.mended,
        workers=given.workers,
        seconds=one.seconds if given.seconds is None else given.seconds,
        warm_up=WARM_SECONDS if given.warm_up is None else given.warm_up,
    )
    one.program(play)
    play.write(given.outcome)


if __name__ == "__main__":
    main()
