"""Runs below a URL: found level by level, all folders of one at once.

Errors: those of ``Store``.
"""

from __future__ import annotations

import contextlib
import difflib

from tdbg.errors import StorageError
from tdbg.remote.fetching import Fetcher
from tdbg.remote.stores import Store, open_store

__all__ = ["find_runs", "nearest_runs"]

RUN_FILE = "RUN.json"
_SHOWN = 3


def find_runs(url: str, depth: int = 3) -> list[str]:
    """The URLs of the runs at or below *url*, in order of their names.

    Takes one listing for each folder that is no run, and one for each run: what is
    in a run is not listed.

    Args:
        url: Of a run or a folder of runs.
        depth: How many levels to go down.

    Raises:
        ConfigurationError: If the URL is bad, or what reads it is missing.
        StorageError: If the store does not answer, or refuses.
    """
    store = open_store(url)
    found = _runs_below(Fetcher(store), "", depth)
    return [f"{store.url}/{name}".rstrip("/") for name in found]


def _runs_below(fetcher: Fetcher, root: str, depth: int) -> list[str]:
    """The folders of runs at or below *root*, by their names below the URL."""
    found, level = [], [root]
    for left in range(depth, -1, -1):
        entries = fetcher.each(
            lambda folder: fetcher.again(lambda: fetcher.store.entries(folder)), level
        )
        below: list[str] = []
        for folder, (folders, objects) in zip(level, entries, strict=True):
            if RUN_FILE in objects:
                found.append(folder)
            elif left:
                below += [f"{folder}/{each}".lstrip("/") for each in folders]
        level = below
    return sorted(found)


def nearest_runs(store: Store) -> list[str]:
    """URLs of some runs below one that is none, or else beside it; for a message."""
    with contextlib.suppress(StorageError):
        below = _runs_below(Fetcher(store), "", 2)
        if below:
            return [f"{store.url}/{name}" for name in below[:_SHOWN]]
        parent, _, name = store.url.rpartition("/")
        if parent.endswith("/"):
            return []  # Beside a bucket is what belongs to others.
        above = open_store(parent)
        beside = _runs_below(Fetcher(above), "", 1)
        near = difflib.get_close_matches(name, beside, _SHOWN, cutoff=0.5)
        return [f"{above.url}/{each}" for each in near or beside[:_SHOWN]]
    return []
