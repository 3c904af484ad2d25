"""Data sets and a session for tests of what measures data loaders.

Workers that are spawned import this.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from tdbg.run.profile_tables import LOADER, Phase


class Clock:
    """Notes the phases that begin and end."""

    coming_step = 0
    phase = Phase.OTHER

    def __init__(self) -> None:
        self.log: list[tuple[str, Phase]] = []

    def enter(self, phase: Phase) -> None:
        self.log.append(("enter", phase))

    def leave(self, phase: Phase) -> None:
        self.log.append(("leave", phase))


class FakeSession:
    """A session as far as loaders and collectives know one."""

    place = None
    is_live = True
    is_closed = False

    def __init__(self) -> None:
        self.clock = Clock()
        self.tables: dict[str, list[Any]] = {}
        self.events: list[dict[str, Any]] = []

    def write_samples(self, table: str, rows: Any, _: str = "") -> None:
        self.tables.setdefault(table, []).append(rows)

    def write_event(self, _: int, content: dict[str, Any], __: int = -1) -> None:
        self.events.append(content)

    def rows(self, table: str = "loader") -> Any:
        found = self.tables.get(table)
        return np.zeros(0, LOADER) if not found else np.concatenate(found)


class Sleeping(Dataset[torch.Tensor]):
    """Samples of three numbers, each after a sleep."""

    def __init__(self, n: int = 8, seconds: float = 0.002) -> None:
        self.n, self.seconds = n, seconds

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((3,), float(index))


class Stream(IterableDataset[torch.Tensor]):
    """A stream of eight samples, shared by the workers."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, 8, step):
            yield torch.full((3,), float(index))


class Nested(Dataset[torch.Tensor]):
    """Each sample is a batch of a loader inside."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return next(iter(DataLoader(Sleeping(2, 0.0), batch_size=2)))


class Failing(Sleeping):
    """The second sample cannot be read."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 2:
            raise KeyError(index)
        return super().__getitem__(index)


initialized: list[int] = []


def note_worker(worker: int) -> None:
    """Be the program's ``worker_init_fn``."""
    initialized.append(worker)
    info = get_worker_info()
    assert info is not None
    info.dataset.n_initialized = len(initialized)  # type: ignore[attr-defined]


class Initialized(Sleeping):
    """Each sample says how often the worker was initialized."""

    n_initialized = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([self.n_initialized])
