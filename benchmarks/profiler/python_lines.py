"""How true the shares are that the Python sampler sees, and what it costs.

    python -m benchmarks.profiler.python_lines [--seconds 30] [--py-spy PATH] [--quick]

A program spends its time, in turn, in Python that never gives the interpreter's lock
up, in calls of C that do not (a sort), in calls that do (a hash), and asleep, while
another thread of Python runs now and then.  It measures each part with its own clock.
The sampler's shares, and those of py-spy where it is installed, are compared with
that.  Cost: blocks of the first part, sampled and not, take turns.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks._harness import Report, Table, check, interleave, options
from tdbg.profiler import PythonSampler
from tdbg.run.profile_tables import Phase

PARTS = ("in_python", "in_c", "without_lock", "asleep")
CHUNK = bytes(20_000_000)
TrueAndSeen = tuple[dict[str, float], dict[str, float]]
NUMBERS = list(range(200_000, 0, -1)) * 2


def in_python() -> int:
    total = 0
    for i in range(300_000):
        total += i
    return total


def in_c() -> None:
    sorted(NUMBERS)


def without_lock() -> None:
    hashlib.sha256(CHUNK).digest()


def asleep() -> None:
    time.sleep(0.005)


def work(seconds: float) -> Counter[str]:
    """Return the seconds of each part, by the program's own clock."""
    spent: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, part in (
            ("in_python", in_python),
            ("in_c", in_c),
            ("without_lock", without_lock),
            ("asleep", asleep),
        ):
            began = time.monotonic()
            part()
            spent[name] += time.monotonic() - began
    return spent


class Noted:
    """A session that keeps the events."""

    def __init__(self) -> None:
        self.is_live = True
        self.clock = SimpleNamespace(phase=Phase.OTHER)
        self.samples: list[dict[str, Any]] = []

    def write_event(self, _: int, content: dict[str, Any]) -> None:
        """Keep the samples."""
        self.samples += content["samples"]


def shares(counts: dict[str, float]) -> dict[str, float]:
    """Return parts of one."""
    total = sum(counts.values())
    return {name: counts.get(name, 0.0) / total for name in PARTS}


def sampled(
    seconds: float, interval: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the true shares and those of the sampler."""
    session = Noted()
    sampler = PythonSampler(session, interval)  # type: ignore[arg-type]
    try:
        spent = work(seconds)
    finally:
        sampler.close()
    seen: Counter[str] = Counter()
    for each in session.samples:
        seen.update(_part_of(each["stack"], each["count"]))
    expected = seconds / interval
    n = sum(each["count"] for each in session.samples)
    check(0.8 * expected < n < 1.2 * expected, f"{n} samples of {expected:.0f}")
    return shares(spent), shares(seen)


def _part_of(stack: list[str], count: int) -> Counter[str]:
    names = [call.rpartition(" ")[2] for call in stack]
    return Counter({name: count for name in PARTS if name in names})


def spied(seconds: float, program: str, *, blocking: bool) -> TrueAndSeen:
    """Return the true shares and those of py-spy at 100 Hz."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "stacks"
        mode = () if blocking else ("--nonblocking",)
        command = [program, "record", "-p", str(os.getpid()), "-r", "100", "-f", "raw",
                   "-i", *mode, "-d", str(int(seconds)), "-o", str(out)]  # fmt: skip
        spy = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(0.5)
        spent = work(seconds)
        spy.wait(60)
        seen: Counter[str] = Counter()
        for line in out.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            for name in PARTS:
                if f"{name} (" in stack:
                    seen[name] += int(count)
    return shares(spent), shares(seen)


def measure(given: argparse.Namespace) -> Report:
    """Measure truth, then cost."""
    seconds = 4.0 if given.quick else given.seconds
    truth = Table(
        "Shares of a program's time, as samplers see them",
        ("sampler", *PARTS, "largest error"),
        note="Each cell: seen, and in brackets true by the program's own clock.",
    )
    ended = threading.Event()

    def beside() -> None:
        while not ended.wait(0.01):
            sum(range(20_000))

    threading.Thread(target=beside, daemon=True).start()
    found = {
        f"tdbg, {1 / interval:.0f} Hz": sampled(seconds, interval)
        for interval in (0.05, 0.01)
    }
    spy = given.py_spy or shutil.which("py-spy")
    if spy is not None:
        for blocking in (False, True):
            name = f"py-spy, 100 Hz, {'blocking' if blocking else 'nonblocking'}"
            found[name] = spied(seconds, spy, blocking=blocking)
    ended.set()
    for name, (true, seen) in found.items():
        cells = [f"{seen[part]:.2f} ({true[part]:.2f})" for part in PARTS]
        error = max(abs(seen[part] - true[part]) for part in PARTS)
        truth.add(name, *cells, f"{error:.3f}")
        if name.startswith("tdbg"):
            check(error < 0.15, f"{name} sees what is there: {error:.3f}")
    return Report(
        "profiler/python_lines",
        given,
        packages=("tdbg",),
        tables=[truth, _cost(given)],
        data={name: [*both] for name, both in found.items()},
    )


def _cost(given: argparse.Namespace) -> Table:
    def sampled_block(interval: float) -> Any:
        def block() -> int:
            sampler = PythonSampler(Noted(), interval)  # type: ignore[arg-type]
            try:
                return _block()
            finally:
                sampler.close()

        return block

    rounds = given.rounds or (6 if given.quick else 40)
    samples = interleave(
        {"plain": _block, "20 Hz": sampled_block(0.05), "100 Hz": sampled_block(0.01)},
        baseline="plain",
        rounds=rounds,
        clock=time.thread_time,
    )
    table = Table("What sampling costs Python", ("sampler", "processor time"))
    plain = float(np.median(samples.seconds["plain"]))
    for name in ("20 Hz", "100 Hz"):
        ratio = float(np.median(samples.seconds[name])) / plain
        table.add(name, f"x{ratio:.3f}")
    return table


def _block() -> int:
    return sum(in_python() for _ in range(20))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each sampler")
    parser.add_argument("--py-spy", help="the program, if it is not on the path")
    measure(parser.parse_args()).save()


if __name__ == "__main__":
    main()
