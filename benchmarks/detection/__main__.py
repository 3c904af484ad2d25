"""``python -m benchmarks.detection``."""

from __future__ import annotations

import argparse
import sys

from benchmarks.detection.verify import verify


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection")
    parser.add_argument("verb", choices=["verify"])
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--corpus", action="append", default=[])
    given = parser.parse_args()
    troubles = 0
    for verdict in verify(given.only, range(given.seeds), given.jobs, given.corpus):
        print(verdict.line, flush=True)
        troubles += bool(verdict.trouble)
    sys.exit(f"{troubles} in trouble" if troubles else 0)


if __name__ == "__main__":
    main()
