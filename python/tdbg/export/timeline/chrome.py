"""Encodes a timeline as Chrome's JSON trace, which many viewers read.

Thread safety: functions over values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tdbg.errors import ConfigurationError
from tdbg.export.timeline.model import Timeline, nested_lanes

__all__ = ["MOST_EVENTS", "chrome_trace"]

#: Viewers read the whole of such a file into memory.
MOST_EVENTS = 200_000


def chrome_trace(timeline: Timeline) -> Iterator[bytes]:
    """Yield the bytes of a trace.

    Times are microseconds since the beginning; ``otherData`` has that as wall time.

    Raises:
        ConfigurationError: If there are more than ``MOST_EVENTS`` events.
    """
    n = timeline.n_slices + timeline.n_values
    if n > MOST_EVENTS:
        msg = (
            f"a Chrome trace holds {MOST_EVENTS:,} events, not {n:,}: choose fewer "
            "steps (steps=, --steps), or write a Perfetto trace"
        )
        raise ConfigurationError(msg)
    about = {"start_wall_ns": timeline.wall_ns, "start_monotonic_ns": timeline.start_ns}
    yield b'{"displayTimeUnit":"ms","otherData":' + _json(about) + b',"traceEvents":['
    separator = b"\n"
    for event in _events(timeline):
        yield separator + _json(event)
        separator = b",\n"
    yield b"\n]}\n"


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for order, (number, name) in enumerate(timeline.processes.items()):
        yield _metadata("process_name", number, 0, {"name": name})
        yield _metadata("process_sort_index", number, 0, {"sort_index": order})
    row = 0
    for track in timeline.tracks:
        starts, durations = track.start.tolist(), track.duration.tolist()
        for nth, lane in enumerate(nested_lanes(track)):
            row += 1
            title = track.name if nth == 0 else f"{track.name} ({nth + 1})"
            yield _metadata("thread_name", track.process, row, {"name": title})
            yield _metadata(
                "thread_sort_index", track.process, row, {"sort_index": row}
            )
            for event in lane:
                if not event.begins:
                    continue
                i = event.slice
                found = {
                    "ph": "X",
                    "pid": track.process,
                    "tid": row,
                    "name": track.names[i],
                    "ts": (starts[i] - timeline.start_ns) / 1000,
                    "dur": max(durations[i], 0) / 1000,
                }
                if track.notes and track.notes[i]:
                    found["args"] = track.notes[i]
                yield found
    for counter in timeline.counters:
        title = f"{counter.name} ({counter.unit})" if counter.unit else counter.name
        values = zip(counter.time.tolist(), counter.values.tolist(), strict=True)
        for time, value in values:
            yield {
                "ph": "C",
                "pid": counter.process,
                "name": title,
                "ts": (time - timeline.start_ns) / 1000,
                "args": {"value": value},
            }


def _metadata(
    what: str, process: int, row: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": row, "args": args}
