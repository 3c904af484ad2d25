"""What the capture side uses of the core, as a type, and a stand-in for dry runs."""

# ruff: noqa: A002, D102 - names and documentation are the core's

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["NullSink", "Sink"]


class Sink(Protocol):
    """What is used of ``_core.Capture``; documented there."""

    def define(
        self,
        name: str,
        role: int,
        dtype: str = "",
        shape: Sequence[int] = (),
        *,
        item_size: int = 0,
        aliases: Sequence[str] = (),
        global_shape: Sequence[int] = (),
        global_offset: Sequence[int] = (),
        placements: Sequence[tuple[int, int, int, int, int]] = (),
    ) -> int: ...

    def statistics(
        self,
        step: int,
        ids: Sequence[int],
        pointers: Sequence[int],
        strides: Sequence[Sequence[int] | None] | None = None,
        *,
        call: int = 0,
        micro_batch: int = 0,
        scale: float = 1.0,
    ) -> None: ...

    def values(
        self,
        step: int,
        id: int,
        pointer: int,
        strides: Sequence[int] | None = None,
        *,
        call: int = 0,
        micro_batch: int = 0,
    ) -> bool: ...

    def unit_summary(
        self,
        step: int,
        unit_id: int,
        id: int,
        pointer: int,
        strides: Sequence[int] | None = None,
        *,
        call: int = 0,
        micro_batch: int = 0,
        low: float = ...,
        high: float = ...,
        of_rows: bool = False,
    ) -> bool: ...

    def count_histogram(
        self,
        step: int,
        id: int,
        pointer: int,
        strides: Sequence[int] | None = None,
        *,
        call: int = 0,
        micro_batch: int = 0,
        scale: float = 1.0,
    ) -> bool: ...

    def add_rows(
        self,
        step: int,
        ids: Sequence[int],
        calls: Sequence[int],
        micro_batches: Sequence[int],
        flags: Sequence[int],
        words: Any,
    ) -> None: ...

    def scalar(self, step: int, id: int, value: float, wall_ns: int) -> bool: ...

    def event(self, step: int, kind: int, severity: int, json: bytes) -> bool: ...

    def refuse(self, step: int, n_records: int = 1, n_bytes: int = 0) -> None: ...

    def end_step(
        self,
        step: int,
        mode: int,
        mode_step: int,
        *,
        flags: int = 0,
        micro_batches: int = 1,
        capture_ns: int = 0,
        duration_ns: int = 0,
    ) -> bool: ...

    def graph_id(self, device: int, stream: int) -> int: ...

    def graph_replayed(
        self, graph: int, step: int, device: int, stream: int
    ) -> bool: ...

    def device_state(self, device: int) -> dict[str, Any]: ...

    def flush(self, durable: bool = False, timeout: float = 30.0) -> None: ...

    def close(self, timeout: float = 5.0) -> bool: ...

    def counters(self) -> dict[str, int]: ...

    def losses(self) -> dict[str, tuple[int, int, int]]: ...

    @property
    def n_lost(self) -> int: ...


class NullSink:
    """Takes everything and keeps nothing: for dry runs."""

    n_lost = 0

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def define(self, *_: Any, **__: Any) -> int:
        """A new number."""
        return next(self._numbers)

    def statistics(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def add_rows(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def refuse(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def flush(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def take(self, *_: Any, **__: Any) -> bool:
        """As if it were taken."""
        return True

    values = unit_summary = count_histogram = scalar = event = end_step = close = take
    graph_replayed = take

    def graph_id(self, *_: Any) -> int:
        """None."""
        return 0

    def device_state(self, _: int) -> dict[str, Any]:
        """There is no device."""
        return {}

    def counters(self) -> dict[str, int]:
        """Nothing was offered."""
        return {"offered": 0, "written": 0, "dropped": 0, "failed": 0}

    def losses(self) -> dict[str, tuple[int, int, int]]:
        """Nothing was lost."""
        return {}
