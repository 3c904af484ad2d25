"""Directories as smdebug's profiler wrote them, for tests of what reads them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: Microseconds since the epoch at which the profile of these tests begins.
START = 1_600_000_000_000_000
NODE = "algo-1"
HOUR = "2020091312"


def metric(
    kind: str, name: str, dimension: str, value: Any, seconds: float, node: str = NODE
) -> dict[str, Any]:
    """Return a metric of the system, some seconds after the start."""
    return {
        "Type": kind,
        "Name": name,
        "Dimension": dimension,
        "Value": value,
        "NodeId": node,
        "Timestamp": START / 1e6 + seconds,
    }


def system_file(
    root: Path, metrics: Iterable[dict[str, Any]], seconds: int = 0, tail: str = ""
) -> Path:
    """Write a file of metrics that begins some seconds after the start."""
    path = (
        root
        / "system"
        / "incremental"
        / HOUR
        / (f"{START // 1_000_000 + seconds}.{NODE}.json")
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in metrics) + tail)
    return path


def named(pid: int, name: str) -> dict[str, Any]:
    """Return the event that names a group of a timeline."""
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}


def interval(
    name: str, at_us: int, duration_us: int, pid: int = 1, /, **args: Any
) -> dict[str, Any]:
    """Return an interval of a timeline."""
    event = {"name": name, "ph": "X", "pid": pid, "ts": at_us, "dur": duration_us}
    return {**event, "args": args} if args else event


def timeline_text(events: Iterable[dict[str, Any]]) -> str:
    """Return a timeline whose times count from the start, an event a line."""
    origin = {"start_time_since_epoch_in_micros": START}
    first = {"name": "process_name", "ph": "M", "pid": 0, "args": origin}
    return "[\n" + ",\n".join(json.dumps(each) for each in [first, *events]) + "\n]"


def timeline_file(
    root: Path,
    events: Iterable[dict[str, Any]],
    end_us: int,
    suffix: str = "pythontimeline.json",
    node: str = "42-algo-1",
) -> Path:
    """Write a timeline whose last event ends some microseconds after the start."""
    path = root / "framework" / "pevents" / HOUR / f"{START + end_us}_{node}_{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(timeline_text(events))
    return path


def tensorflow_trace(root: Path, events: list[dict[str, Any]]) -> Path:
    """Write a trace of TensorFlow's profiler, with its metadata."""
    folder = (
        root / "framework" / "tensorflow" / "detailed_profiling" / HOUR / "000000002"
    )
    trace = folder / "plugins" / "profile" / "2020_09_13" / "host.trace.json.gz"
    trace.parent.mkdir(parents=True)
    (folder / f"42-{NODE}_{START}_{START + 10_000_000}.metadata").touch()
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return trace


def training(root: Path) -> Path:
    """Write a profile of 30 s with ten steps, loaders, cores and two GPUs."""
    metrics = []
    for second in range(30):
        metrics += [
            metric("cpu", "cpu0", "CPUUtilization", 40, second),
            metric("cpu", "cpu1", "CPUUtilization", 40, second),
            metric("cpu", "cpu0", "I/OWaitPercentage", 5, second),
            metric("memory", "MemoryUsedPercent", "", 30 + second, second),
            metric("network", "ReceiveBytesPerSecond", "Algorithm", 9, second),
            metric("gpu", "gpu0", "GPUUtilization", 95, second),
            metric("gpu", "gpu1", "GPUUtilization", 100 * (second < 20), second),
        ]
    system_file(root, metrics)
    steps = [named(1, "Step:ModeKeys.TRAIN"), named(2, "Step:ModeKeys.EVAL")]
    for step in range(10):
        mode, pid = ("TRAIN", 1) if step < 8 else ("EVAL", 2)
        at = 5_000_000 + 2_000_000 * step
        length = 1_800_000 if step != 3 else 1_900_000
        name = f"Step:ModeKeys.{mode}"
        steps.append(interval(name, at, length, pid, step_num=str(step), pid=42))
    timeline_file(root, steps, 25_000_000)
    inside = [named(1, "Forward"), named(2, "DataLoaderIter"), named(3, "Workers")]
    made = "_MultiProcessingDataLoaderIter.__init__"
    facts = {"num_workers": 2, "pin_memory": True}
    inside.append(
        interval("DataLoaderIterInitialize", 4_500_000, 9_000, 2, name=made, **facts)
    )
    for step in range(10):
        at = 5_000_000 + 2_000_000 * step
        inside.append(interval("Forward", at + 300_000, 500_000, 1))
        wait = 100_000 if step != 5 else 250_000
        get = "MultiProcessingDataLoaderIter::GetNext"
        inside.append(interval(get, at + 10_000, wait, 2, worker_id=step % 2))
    inside.append(interval("DataLoaderWorker", 4_600_000, 20_000_000, 3, worker_id=0))
    timeline_file(root, inside, 25_000_001, "model_timeline.json")
    return root
