"""Size and time of the report of an hour with 100,000 steps.

    python -m benchmarks.profiler.report [--steps 100000] [--repeat 3]

The run has steps of 36 ms with nine phases each, and a sample of the host every half
second.  Prints a line of JSON: how long judging it takes, and the time and size of the
whole report and of the one about time alone.  The limits are 500 kB and 5 s.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._harness.verify import check
from benchmarks.timeline.export import write_run
from tdbg import rules
from tdbg.report import render
from tdbg.trial import create_trial

MOST_BYTES = 500_000


def measured(run: Path, repeat: int, *, profile: bool) -> dict[str, float]:
    """Return the processor's seconds, the median of some, and the kilobytes."""
    seconds = []
    for _ in range(repeat):
        start = time.process_time()
        text = render(create_trial(run), profile=profile)
        seconds.append(time.process_time() - start)
        check("Where the time went" in text, "the report says nothing of time")
        check(len(text) < MOST_BYTES, f"the report has {len(text):,} bytes")
    return {
        "seconds": round(float(np.median(seconds)), 2),
        "kilobytes": round(len(text) / 1e3),
    }


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_run(run, arguments.steps)
        start = time.process_time()
        rules.check(run, record=True)
        found: dict[str, Any] = {"judging": round(time.process_time() - start, 2)}
        for name, profile in (("whole", False), ("profile", True)):
            found[name] = measured(run, arguments.repeat, profile=profile)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
