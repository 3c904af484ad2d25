"""What measuring a DataLoader costs a batch, and how well it predicts more workers.

    python -m benchmarks.profiler.loader [--rounds 30] [--quick]

Cost: blocks of an epoch over a data set that costs nothing, measured and not, take
turns; the figure is processor time of the training's thread, by the batches.  Each
batch must have a row, and no block without measuring may have one.

Prediction: a fetch sleeps 80 ms and the training 20 ms.  From the rows of each number
of workers the share of waiting is predicted for all others (``1 - workers * rest /
fetch``; without workers ``fetch / (fetch + rest)``), and compared with what the
program's own clock says.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

import tdbg.pytorch as td
from benchmarks._harness import (
    Measured,
    Report,
    Table,
    check,
    check_equal,
    interleave,
    options,
)
from tdbg.config.profiler import ProfilerConfig
from tdbg.profiler import Loaders

N_BATCHES = 500
WORKERS = (0, 1, 2, 4)
FETCH, REST = 0.08, 0.02


class Free(Dataset[torch.Tensor]):
    """Samples that cost nothing."""

    def __len__(self) -> int:
        return N_BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        return SAMPLE


SAMPLE = torch.zeros(8)


class Slow(Dataset[torch.Tensor]):
    """Samples that take a while."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(FETCH)
        return SAMPLE


class Noted:
    """A session that keeps the rows."""

    def __init__(self, session: Any) -> None:
        self.clock, self.place = session.clock, None
        self.is_live, self.is_closed = True, False
        self.rows: list[NDArray[Any]] = []

    def write_samples(self, _: str, rows: NDArray[Any]) -> None:
        """Keep rows."""
        self.rows.append(rows)

    def write_event(self, *_: Any) -> None:
        """Keep no event."""


def epoch(loader: Any) -> Measured:
    """Iterate once; the iterator is made before the clock starts."""
    batches = iter(loader)
    began = time.thread_time()
    n = sum(1 for _ in batches)
    return Measured(time.thread_time() - began, n)


def cost(session: Any, n_workers: int, rounds: int) -> tuple[float, float]:
    """Return what a batch costs without and with measuring, in seconds."""
    loader = DataLoader(
        Free(), batch_size=None, num_workers=n_workers, persistent_workers=n_workers > 0
    )

    def measured() -> Measured:
        noted = Noted(session)
        part = Loaders(noted)  # type: ignore[arg-type]
        try:
            found = epoch(loader)
        finally:
            part.close()
        check_equal(sum(map(len, noted.rows)), N_BATCHES, "rows")
        return found

    contenders: dict[str, Callable[[], object]] = {
        "plain": lambda: epoch(loader),
        "measured": measured,
    }
    samples = interleave(contenders, baseline="plain", rounds=rounds)
    plain, with_rows = (
        float(np.median(samples.seconds[name])) / N_BATCHES for name in contenders
    )
    return plain, with_rows


def waits(session: Any, n_workers: int, n: int) -> tuple[float, float, float]:
    """Train; return the share of waiting, and medians of the fetch and of the rest."""
    noted = Noted(session)
    part = Loaders(noted)  # type: ignore[arg-type]
    try:
        loader = DataLoader(Slow(n), batch_size=None, num_workers=n_workers)
        batches, skipped = iter(loader), max(2, n_workers * 2)
        waited, worked = [], []
        for _ in range(n):
            began = time.monotonic()
            next(batches)
            arrived = time.monotonic()
            time.sleep(REST)
            waited.append(arrived - began)
            worked.append(time.monotonic() - arrived)
    finally:
        part.close()
    rows = np.concatenate(noted.rows)
    check_equal(len(rows), n, "rows")
    near = np.abs(rows["wait_ns"] / 1e9 - waited) < 0.02
    check(float(near.mean()) > 0.9, "waits are those of the program's clock")
    check(bool((rows["fetch_ns"] >= FETCH * 1e9).all()), "fetches are whole")
    share = sum(waited[skipped:]) / (sum(waited[skipped:]) + sum(worked[skipped:]))
    return share, float(np.median(rows["fetch_ns"])) / 1e9, float(np.median(worked))


def predicted(n_workers: int, fetch: float, rest: float) -> float:
    """Return the share of waiting at a number of workers."""
    if n_workers == 0:
        return fetch / (fetch + rest)
    return max(0.0, 1.0 - n_workers * rest / fetch)


def measure(given: argparse.Namespace) -> Report:
    """Measure both."""
    rounds = given.rounds or (4 if given.quick else 30)
    costs = Table(
        "A batch of a DataLoader, measured", ("workers", "plain", "costs more")
    )
    shares = Table(
        "Predicted and measured waiting",
        ("workers", "measured", "predicted from 1 worker", "difference"),
        note="Shares of the step; a fetch of 80 ms, 20 ms between two batches.",
    )
    data: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        profiler = ProfilerConfig(enabled=False)
        hook = td.Hook(Path(folder) / "run", profiler=profiler)
        for n_workers in (0, 2):
            plain, with_rows = cost(hook._session, n_workers, rounds)
            costs.add(
                n_workers,
                f"{plain * 1e6:.1f} us",
                f"{(with_rows - plain) * 1e6:.1f} us",
            )
            data[f"cost {n_workers}"] = [plain, with_rows]
        n = 24 if given.quick else 100
        found = {each: waits(hook._session, each, n) for each in WORKERS}
        _, fetch, rest = found[1]
        for n_workers, (share, *_) in found.items():
            told = predicted(n_workers, fetch, rest)
            shares.add(
                n_workers, f"{share:.2f}", f"{told:.2f}", f"{abs(share - told):.2f}"
            )
            data[f"share {n_workers}"] = [share, told]
        hook.close()
    return Report(
        "profiler/loader",
        given,
        packages=("torch", "tdbg"),
        tables=[costs, shares],
        data=data,
    )


def main() -> None:
    measure(options(__doc__).parse_args()).save()


if __name__ == "__main__":
    main()
