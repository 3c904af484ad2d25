"""Reads files of TensorBoard back, with its own reader."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

# TensorBoard looks for this module to know that it should do without TensorFlow, which
# it would import otherwise: that takes ten seconds, and leaves much behind.
sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))

from tensorboard.backend.event_processing.event_accumulator import (  # noqa: E402
    EventAccumulator,
)

__all__ = ["KeyValueStore", "files"]


class KeyValueStore:
    """A run of TensorBoard: a folder with event files."""

    def __init__(self, folder: Path) -> None:
        self._read = EventAccumulator(str(folder), {"scalars": 0, "histograms": 0})
        self._read.Reload()

    @property
    def scalar_tags(self) -> set[str]:
        return set(self._read.Tags()["scalars"])

    @property
    def histogram_tags(self) -> set[str]:
        return set(self._read.Tags()["histograms"])

    def scalars(self, tag: str) -> dict[int, float]:
        """Values by step; each step has one."""
        events = self._read.Scalars(tag)
        found = {event.step: event.value for event in events}
        assert len(found) == len(events)
        return found

    def times(self, tag: str) -> list[float]:
        return [event.wall_time for event in self._read.Scalars(tag)]

    def histograms(self, tag: str) -> dict[int, Any]:
        events = self._read.Histograms(tag)
        found = {event.step: event.histogram_value for event in events}
        assert len(found) == len(events)
        return found


def files(out: Path) -> dict[str, bytes]:
    """Contents of all files by path, those that are hidden included."""
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file()
    }
