"""How much the samples of a large node take on the disk, each hour.

    python -m benchmarks.profiler.size [--minutes 5] [--cores 192] [--gpus 8]

Rows of made-up figures are written by the core, as many together as the sampler
writes: of the host and its processes those of 1.5 s, of cores and devices those of
5.5 s.  A sample has the 8 ranks and 5 of their 64 loader workers.  Prints a line of
JSON: MB an hour of each table, of its rows alone, and of the whole run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness.verify import check
from tdbg import _core
from tdbg.run.directory import create_run
from tdbg.run.profile_tables import TABLES, core_type, table_name, written_columns
from tdbg.trial import create_trial

INTERVAL_NS = 500_000_000
HOUR_NS = 3600 * 10**9


class Written(NamedTuple):
    """A table as the sampler writes it.

    Attributes:
        rows: Of a sample.
        samples: Of a record.
        instances: Devices, which have a table each.
    """

    rows: int
    samples: int
    instances: int = 1


def tables_of(gpus: int) -> dict[str, Written]:
    return {
        "system": Written(1, 3),
        "process": Written(13, 3),
        "core": Written(1, 11),
        "disk": Written(1, 11, 4),
        "network": Written(1, 11, 4),
        "gpu": Written(1, 11, gpus),
    }


def write(table: str, how: Written, kind: np.dtype[Any], n_samples: int) -> int:
    """Write a run of one table; return its bytes."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        run = create_run(Path(folder) / "run")
        capture = _core.Capture(
            str(run.path), run_uuid=run.uuid, attempt_uuid=bytes(16), min_free_bytes=0
        )
        for first in range(0, n_samples, how.samples):
            n = min(how.samples, n_samples - first)
            for number in range(how.instances):
                name = table_name(table, str(number) if how.instances > 1 else "")
                rows = some_rows(kind, n * how.rows, random)
                rows["time"] = (first + np.arange(n).repeat(how.rows)) * INTERVAL_NS
                capture.samples(name, written_columns(kind), rows.tobytes())
        capture.close()
        n_rows = n_samples * how.rows * how.instances
        check(len(create_trial(run.path).profile.table(table)) == n_rows, table)
        return sum(
            each.stat().st_size for each in run.path.rglob("*") if each.is_file()
        )


def some_rows(kind: np.dtype[Any], n: int, random: np.random.Generator) -> NDArray[Any]:
    """Rows of bytes that nothing could make smaller."""
    return np.frombuffer(random.bytes(n * kind.itemsize), kind).copy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=5)
    parser.add_argument("--cores", type=int, default=192)
    parser.add_argument("--gpus", type=int, default=8)
    given = parser.parse_args()
    n_samples = given.minutes * 60 * 10**9 // INTERVAL_NS
    an_hour = HOUR_NS // INTERVAL_NS / n_samples / 1e6
    found: dict[str, dict[str, float]] = {}
    for table, how in tables_of(given.gpus).items():
        kind = core_type(given.cores) if table == "core" else TABLES[table]
        n_bytes = write(table, how, kind, n_samples)
        alone = n_samples * how.rows * how.instances * kind.itemsize
        found[table] = {"all": n_bytes * an_hour, "rows": alone * an_hour}
    found["node"] = {
        what: sum(each[what] for each in found.values()) for what in ("all", "rows")
    }
    rounded = {
        table: {what: round(size, 2) for what, size in sizes.items()}
        for table, sizes in found.items()
    }
    sys.stdout.write(json.dumps(rounded) + "\n")


if __name__ == "__main__":
    main()
