"""``wandb.watch(log="all")``: histograms of parameters and gradients.

Offline: nothing leaves the machine, but wandb's own process works on a second core.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wandb
from wandb.proto.wandb_internal_pb2 import Record

from benchmarks._harness import check, check_close, check_equal
from benchmarks.overhead import contenders
from benchmarks.overhead.training import Snapshot


class Watcher(contenders.Watcher):
    """One run, in offline mode."""

    captures = frozenset({"histograms"})

    def attach(self) -> None:
        """Start a run and watch the model."""
        os.environ["WANDB_MODE"] = "offline"
        self.run = wandb.init(
            mode="offline",
            project="overhead",
            dir=self.directory,
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, x_disable_meta=True
            ),
        )
        self.run.watch(self.training.model, log="all", log_freq=self.capture.interval)

    def first_save(self) -> int:
        """It saves when it has counted to the interval, not at step 0."""
        return self.capture.interval - 1

    def after_step(self, step: int, loss: float) -> None:  # noqa: ARG002
        """Sends what was watched too."""
        self.run.log({"loss": loss})

    def close(self) -> None:
        """Wait for its process."""
        self.run.finish()

    def verify(self, snapshot: Snapshot) -> None:
        """Counts and ranges of the histograms, and the loss."""
        (path,) = self.directory.rglob("*.wandb")
        history = dict(steps(path))
        check(snapshot.step in history, f"no step {snapshot.step}")
        found = history[snapshot.step]
        check_close(found["loss"], snapshot.loss, 1e-12, "loss")
        expected = {f"parameters/{k}": v for k, v in snapshot.before.items()}
        expected |= {f"gradients/{k}": v for k, v in snapshot.gradients.items()}
        for name, array in expected.items():
            where = f"{name} at step {snapshot.step}"
            histogram = found[name]
            total = int(sum(histogram["values"]))
            # It counts in float32.
            check_close(total, array.size, 1e-6, f"count of {where}")
            bins = histogram.get("bins") or unpacked(histogram["packedBins"])
            check_close(bins[0], array.min(), 1e-5, f"minimum of {where}")
            check_close(bins[-1], array.max(), 1e-5, f"maximum of {where}")


def unpacked(packed: dict[str, Any]) -> list[float]:
    """The edges of bins of equal width."""
    low, width, n = packed["min"], packed["size"], packed["count"]
    return [low + i * width for i in range(n + 1)]


def steps(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """What was logged, by step."""
    for payload in records(path.read_bytes()):
        record = Record.FromString(payload)
        if record.HasField("history"):
            logged: dict[str, Any] = {}
            for item in record.history.item:
                *path_to, last = item.nested_key or [item.key]
                inner = logged
                for key in path_to:
                    inner = inner.setdefault(key, {})
                inner[last] = json.loads(item.value_json)
            yield record.history.step.num, logged


def records(data: bytes) -> Iterator[bytes]:
    """The payloads of a .wandb file, which is a log of LevelDB behind 7 bytes."""
    check_equal(data[:4], b":W&B", "beginning of the file")
    block, at, parts = 32768, 7, b""
    while at + 7 <= len(data):
        if block - at % block < 7:  # No header fits: zeros up to the next block.
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        at += 7
        parts += data[at : at + length]
        at += length
        if kind in {1, 4}:  # Whole, or the last part.
            yield parts
            parts = b""
