"""Reading from a store: time, requests and bytes of tdbg and of peers.

    python -m benchmarks.reader.remote [values] [shards] [rows] [--quick]

A local server of S3, to each of whose requests 20 ms are added.  ``values``: one
tensor of 4 MiB of a run of 1 GB.  ``shards``: opening a run of 1,000 shards, beside
the count of the rows of 1,000 Parquet files.  ``rows``: name, step and norm of
1,000,000 rows of statistics into pandas.  ``--quick`` takes a sixteenth of each.
Every answer is verified, and each opens everything anew.  Server and proxy share the
machine's cores with the readers, which distorts times; requests and bytes are exact.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._harness import (
    Measured,
    Report,
    Table,
    check,
    check_close,
    check_equal,
    interleave,
    options,
)
from benchmarks.reader._remote_formats import Answers, Rows, Shards, Tensors
from benchmarks.reader._remote_store import SERVERS, RemoteStore

ENVIRONMENT = "tables"
COLUMNS = ("how", "ms", "time / first's", "requests", "MB moved")


def values(quick: bool) -> Tensors:
    """1 GB: 16 steps of 16 tensors of 4 MiB; or 64 MB."""
    return Tensors(4, 4, 1 << 20) if quick else Tensors(16, 16, 1 << 20)


def shards(quick: bool) -> Shards:
    """A thousand, or 60."""
    return Shards(60 if quick else 1000)


def rows(quick: bool) -> Rows:
    """A million, or 60,000."""
    return Rows(60 if quick else 100, 1000 if quick else 10_000)


WHAT: dict[str, Callable[[bool], Any]] = {
    "values": values,
    "shards": shards,
    "rows": rows,
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("what", nargs="*", default=list(WHAT), help=", ".join(WHAT))
    parser.add_argument("--server", choices=SERVERS, default=SERVERS[0])
    parser.add_argument("--latency", type=float, default=20.0, help="ms a request")
    given = parser.parse_args()
    for what in given.what:
        measure(what, given).save()


def measure(what: str, given: argparse.Namespace) -> Report:
    """Store one of ``WHAT`` as all contenders do, then ask each in turn."""
    with tempfile.TemporaryDirectory() as below:
        folder = Path(below)
        (folder / "store").mkdir()
        asked = WHAT[what](given.quick)
        with RemoteStore(folder / "store", given.server) as store:
            asked.write(folder)
            store.latency(given.latency / 1e3)
            answers: Answers = asked.answers()
            samples = interleave(
                {name: measured(store, ask) for name, ask in answers.items()},
                baseline=next(iter(answers)),
                rounds=given.rounds or (2 if given.quick else 10),
                seed=given.seed,
                verify=lambda found: verify(found, asked.expected),
            )
    title = f"Reading from a store, {given.latency:g} ms a request: {what}"
    table = Table(title, COLUMNS, note=f"Server: {given.server}. Medians.")
    for name in samples.seconds:
        also = {k: statistics.median(v) for k, v in samples.also[name].items()}
        table.add(
            name,
            f"{1e3 * samples.seconds_of(name):.0f}",
            samples.text(name),
            f"{also['requests']:.0f}",
            f"{also['bytes'] / 1e6:.2f}",
        )
    packages = ("numpy", "tdbg", "s3fs", "h5py", "zarr", "pyarrow", "safetensors")
    return Report(
        f"reader/remote-{what}",
        given,
        packages=packages,
        tables=[table],
        data={what: samples.to_json()},
    )


def measured(store: RemoteStore, ask: Callable[[], Any]) -> Callable[[], Measured]:
    """Count what an answer asks of the store."""

    def run() -> Measured:
        store.counts()
        start = time.perf_counter()
        found = ask()
        seconds = time.perf_counter() - start
        requests, n_bytes = store.counts()
        check(requests, "nothing was asked of the store")
        return Measured(seconds, found, {"requests": requests, "bytes": n_bytes})

    return run


def verify(answers: dict[str, Any], expected: Any) -> None:
    """Fail on a wrong answer."""
    for name, found in answers.items():
        if isinstance(expected, float):
            check_close(found, expected, 1e-9, name)
        else:
            check_equal(found, expected, name)


if __name__ == "__main__":
    main()
