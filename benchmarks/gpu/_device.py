"""The device that is measured, and its clock.

``cpu`` stands in for a GPU, so that every line of the programs runs where there is
none; its figures mean nothing and are never reported as a GPU's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tdbg import _core
from tdbg.capture.schedule import ROWS
from tdbg.config import Role
from tdbg.hooks.pytorch.device.tensors import TYPES
from tdbg.run.directory import create_run

__all__ = ["Device", "RowCapture", "options"]


def options(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments of every stage."""
    parser = argparse.ArgumentParser(description=(doc or "").strip().splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--small", action="store_true", help="only to see that it works"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="about as long")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    parser.add_argument("--folder", type=Path, required=True, help="for runs")
    return parser


class Device:
    """Where tensors are, and how long work there takes.

    Args:
        name: ``cuda`` or ``cpu``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_cuda = name == "cuda"

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.is_cuda:
            torch.cuda.synchronize()

    def seconds(self, action: Callable[[], object]) -> float:
        """Of the device, for what *action* puts on its current stream."""
        if not self.is_cuda:
            start = time.perf_counter()
            action()
            return time.perf_counter() - start
        before = torch.cuda.Event(enable_timing=True)
        after = torch.cuda.Event(enable_timing=True)
        self.wait()
        before.record()
        action()
        after.record()
        after.synchronize()
        return before.elapsed_time(after) / 1e3

    def samples(self, action: Callable[[], object], rounds: int) -> list[float]:
        """Seconds of several, ascending, after two that do not count."""
        for _ in range(2):
            self.seconds(action)
        return sorted(self.seconds(action) for _ in range(rounds))

    def free_bytes(self) -> int:
        """Of the device's memory, as its driver counts."""
        if not self.is_cuda:
            return 0
        self.wait()
        return int(torch.cuda.mem_get_info()[0])

    def copy_rate(self, n_bytes: int, rounds: int) -> dict[str, float]:
        """Bytes per second of a copy on the device.

        Returns:
            ``moved``: read and written together, which is what its memory delivers;
            ``read``: half of that; both by the median; ``fastest`` and ``slowest``:
            as ``moved``.
        """
        source = torch.ones(n_bytes, dtype=torch.uint8, device=self.name)
        target = torch.empty_like(source)
        times = self.samples(lambda: target.copy_(source), rounds)
        seconds = statistics.median(times)
        return {
            "moved": 2 * n_bytes / seconds,
            "read": n_bytes / seconds,
            "fastest": 2 * n_bytes / times[0],
            "slowest": 2 * n_bytes / times[-1],
        }

    def describe(self) -> dict[str, Any]:
        """Its name, and what else belongs to a figure."""
        if not self.is_cuda:
            return {"name": "none: the CPU stood in", "torch": torch.__version__}
        properties = torch.cuda.get_device_properties(0)
        return {
            "name": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "torch": torch.__version__,
            "devices": torch.cuda.device_count(),
        }


class RowCapture:
    """Takes the rows of a set of tensors, step after step, without a hook's policy.

    Args:
        folder: For the run.
        tensors: By name.
    """

    def __init__(self, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        run = create_run(folder)
        self.path = folder
        self._capture = _core.Capture(
            str(run.path), run_uuid=run.uuid, attempt_uuid=bytes(16), min_free_bytes=0
        )
        self._batch_capture = _core.BatchCapture(self._capture, TYPES)
        role = int(Role.OTHER)
        self._entries = tuple(_core.TensorEntry(name, role) for name in tensors)
        self._tensors = tuple(tensors.values())
        self._wanted = (ROWS,) * len(tensors)
        self._step = 0

    def take(self) -> None:
        """Put the reduction of all on the current stream."""
        left = self._batch_capture.take(
            self._step, self._entries, self._tensors, self._wanted, 0, 0, 1.0, False
        )
        if left:
            msg = f"{len(left)} tensors were left to PyTorch's operations"
            raise RuntimeError(msg)

    def end(self) -> None:
        """End the step."""
        self._capture.end_step(self._step, 1, self._step)
        self._step += 1

    def step(self) -> None:
        """Both."""
        self.take()
        self.end()

    def close(self) -> None:
        """Wait for the rows, and end the run.

        Raises:
            RuntimeError: If rows were refused or lost: too little was measured.
        """
        self._capture.flush()
        dropped = self._capture.counters()["dropped"]
        self._capture.close()
        if dropped:
            msg = f"{dropped} rows were dropped"
            raise RuntimeError(msg)
