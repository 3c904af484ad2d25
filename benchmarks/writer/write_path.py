"""Uncompressed values at full speed, over the speed of the disk.

    python -m benchmarks.writer.write_path [--quick] [--folder ON_THE_DISK]

A producer offers tensors of one size as fast as the writer takes them; beside it, in
turn: the same bytes written with O_DIRECT, 4 MiB a call, to a file whose blocks are
reserved; the same bytes copied once in memory; and their checksum.  The processor time
of all threads, less that of the copy and of the checksum, is what the writer adds.
All tensors of the last round are read back and compared.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks._harness import (
    Measured,
    Report,
    Samples,
    Table,
    check,
    check_equal,
    interleave,
    options,
)
from benchmarks._harness.report import results_folder
from tdbg import _core
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, 512 * KIB, MIB, 4 * MIB, 16 * MIB)
BLOCK = 4 * MIB
RESERVE = 64 * MIB
STEP = 64 * MIB  # Bytes of a training step.
KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
GB = 1e9


def main() -> None:
    arguments = options(__doc__)
    arguments.add_argument("--folder", type=Path, help="on the disk to measure")
    given = arguments.parse_args()
    folder = given.folder or results_folder()
    folder.mkdir(parents=True, exist_ok=True)
    n_bytes = (128 if given.quick else 512) * MIB
    table = Table(
        "Writing uncompressed values",
        (
            "bytes of a tensor",
            "GB/s",
            "speed / O_DIRECT's",
            "processor, ms per GB",
            "of it copy, checksum",
            "the rest",
        ),
        note="O_DIRECT: 4 MiB a call, same round, same disk.",
    )
    data = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory(dir=folder, prefix="write-") as below:
            samples = measure(size, n_bytes, Path(below), given)
        data[str(size)] = samples.to_json()
        add_row(table, size, n_bytes, samples)
    Report("writer/write_path", given, tables=[table], data=data).save()


def measure(
    size: int, n_bytes: int, folder: Path, given: argparse.Namespace
) -> Samples:
    """All rounds with tensors of one size."""
    source = memory(2 * STEP)
    source[:] = np.random.default_rng(size).integers(0, 256, 2 * STEP, np.uint8)
    copy = memory(2 * STEP)
    copy[:] = 0
    chunks = [source[at : at + 256 * KIB].tobytes() for at in range(0, STEP, 256 * KIB)]
    writer = Producer(size, n_bytes, folder, source)

    def copying() -> None:
        for at in range(0, n_bytes, STEP):
            part = slice(at % (2 * STEP), at % (2 * STEP) + STEP)
            np.copyto(copy[part], source[part])

    def checksum() -> None:
        for _ in range(n_bytes // STEP):
            for chunk in chunks:
                _core.masked_crc32c(chunk)

    samples = interleave(
        {
            "direct": with_cpu(lambda: write_direct(folder / "direct", n_bytes)),
            "tdbg": with_cpu(writer.round),
            "copy": with_cpu(copying),
            "checksum": with_cpu(checksum),
        },
        baseline="direct",
        rounds=given.rounds or (6 if given.quick else 15),
        seed=given.seed,
        verify=lambda _: writer.remove_sealed(),
    )
    writer.close_and_verify()
    return samples


def memory(n_bytes: int) -> np.ndarray:
    """On huge pages, like the writer's."""
    mapping = mmap.mmap(-1, n_bytes)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8)


def with_cpu(run: Callable[[], object]) -> Callable[[], Measured]:
    """Adds the processor time of all threads."""

    def measured() -> Measured:
        busy, start = time.process_time(), time.perf_counter()
        run()
        seconds = time.perf_counter() - start
        return Measured(seconds, None, {"cpu": time.process_time() - busy})

    return measured


def write_direct(path: Path, n_bytes: int) -> None:
    """What the disk takes: 4 MiB a call past the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    block = memory(BLOCK)
    block[:] = 7
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
    try:
        for at in range(0, n_bytes, BLOCK):
            if at % RESERVE == 0:
                libc.fallocate(
                    file, KEEP_SIZE, ctypes.c_long(at), ctypes.c_long(RESERVE)
                )
            check(os.pwrite(file, block, at) == BLOCK, "bytes written directly")
    finally:
        os.close(file)
        path.unlink()


class Producer:
    """A training that offers nothing but tensors of one size."""

    def __init__(self, size: int, n_bytes: int, folder: Path, source: np.ndarray):
        run = create_run(folder / "run")
        self._capture = _core.Capture(
            str(run.path),
            run_uuid=run.uuid,
            attempt_uuid=bytes(16),
            min_free_bytes=0,
            shard_bytes=256 * MIB,
            codec="none",
        )
        self._id = self._capture.define("t", int(Role.WEIGHT), "uint8", (size,))
        self._size = size
        self._n_steps = n_bytes // STEP
        self._source = source
        self._step = 0

    def at(self, step: int, number: int) -> int:
        """Where in the source tensor *number* of a step begins: never the same."""
        return (step * 4160 + number * self._size) % (self._source.size - self._size)

    def round(self) -> None:
        """Offer the bytes of a round, and wait until they can be read."""
        values, start = self._capture.values, self._source.ctypes.data
        for _ in range(self._n_steps):
            for number in range(STEP // self._size):
                values(self._step, self._id, start + self.at(self._step, number))
            self._capture.end_step(self._step, ModeKeys.TRAIN.value, self._step)
            self._step += 1
        self._capture.flush()

    def remove_sealed(self) -> None:
        """Keep the newest shards only: what a long run would, too."""
        shards = sorted(Path(self._capture.directory).glob("*.tds"))
        for path in shards[:-4]:
            path.unlink()
            path.with_suffix(".tdi").unlink(missing_ok=True)

    def close_and_verify(self) -> None:
        """Compare what the last round wrote with the source."""
        self._capture.close()
        counters = self._capture.counters()
        check(counters["written"] == counters["offered"], f"all written: {counters}")
        reader = _core.RunReader(self._capture.directory)
        table = reader.tensors()
        first = self._step - self._n_steps
        n_checked = 0
        for index, step in enumerate(table["step"].tolist()):
            if step < first:
                continue
            number = n_checked % (STEP // self._size)
            at = self.at(step, number)
            expected = self._source[at : at + self._size]
            check_equal(reader.read_tensor(index), expected, f"tensor of step {step}")
            n_checked += 1
        check(n_checked == self._n_steps * (STEP // self._size), "tensors found")
        problems = [p.message for p in reader.problems() if p.kind != "missing"]
        check(not problems, f"problems: {problems}")  # Removed shards are missing.


def add_row(table: Table, size: int, n_bytes: int, samples: Samples) -> None:
    """Medians of the rounds; a ratio of speeds is the direct time over tdbg's."""
    gigabytes = n_bytes / GB
    cpu = {
        name: 1e3 * float(np.median(also["cpu"])) / gigabytes
        for name, also in samples.also.items()
    }
    speed = samples.ratio("direct", over="tdbg")
    table.add(
        f"{size:,}",
        f"{gigabytes / samples.seconds_of('tdbg'):.2f}",
        speed,
        f"{cpu['tdbg']:.0f}",
        f"{cpu['copy']:.0f}, {cpu['checksum']:.0f}",
        f"{cpu['tdbg'] - cpu['copy'] - cpu['checksum']:.0f}",
    )


if __name__ == "__main__":
    main()
