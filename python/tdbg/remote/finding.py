"""Runs below a URL: found by pages, or level by level, all folders of one at once.

Errors: those of ``Store``.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Container, Mapping
from functools import partial
from typing import Self

from tdbg.errors import StorageError
from tdbg.remote.fetching import Fetcher
from tdbg.remote.layout import MANIFESTS, newest_manifests
from tdbg.remote.stores import Store, open_store

__all__ = ["ListedRun", "find_runs", "nearest_runs"]

RUN_FILE = "RUN.json"
# Pages that may be listed in vain, and how many runs each must have on average.
PAGES, RUNS_A_PAGE = 2, 20
_SHOWN = 3


class ListedRun(str):
    """The URL of a run, which knows the manifests that a listing showed there.

    Whoever opens it need not list them again.

    Attributes:
        manifests: The highest number of each writer; None: they were not listed.
    """

    __slots__ = ("manifests",)
    manifests: Mapping[str, int] | None

    def __new__(cls, url: str, manifests: Mapping[str, int] | None = None) -> Self:
        """Make the URL."""
        made = super().__new__(cls, url)
        made.manifests = manifests
        return made


def find_runs(url: str, depth: int = 3) -> list[str]:
    """The URLs of the runs at or below *url*, in order of their names.

    A store that lists by pages is asked for few of them where runs are small.  Else it
    takes one listing for each folder that is no run, and one for each run: what is in
    a run is not listed.

    Args:
        url: Of a run or a folder of runs.
        depth: How many levels to go down.

    Raises:
        ConfigurationError: If the URL is bad, or what reads it is missing.
        StorageError: If the store does not answer, or refuses.
    """
    store = open_store(url)
    fetcher = Fetcher(store)
    found: Mapping[str, Mapping[str, int] | None] | None = _runs_by_pages(
        fetcher, depth
    )
    if found is None:
        found = dict.fromkeys(_runs_below(fetcher, "", depth))
    return [
        ListedRun(f"{store.url}/{name}".rstrip("/"), manifests)
        for name, manifests in sorted(found.items())
    ]


def _runs_by_pages(fetcher: Fetcher, depth: int) -> dict[str, dict[str, int]] | None:
    """The folders of runs, and their manifests; None: pages are not worth it."""
    folders: set[str] = set()
    names: dict[str, list[str]] = {}
    after, n_pages, is_last = "", 0, False
    while not is_last:
        if n_pages > PAGES + len(folders) / RUNS_A_PAGE:
            return None
        page = fetcher.again(partial(fetcher.store.page, after))
        if page is None:
            return None
        listed, is_last = page
        for name in listed:
            folder, _, base = name.rpartition("/")
            if base == RUN_FILE and folder.count("/") < depth:
                folders.add(folder)
            elif f"/{MANIFESTS}/" in f"/{name}":
                run = f"/{name}".rpartition(f"/{MANIFESTS}/")[0].lstrip("/")
                names.setdefault(run, []).append(name)
        after = _behind(listed[-1], folders) if listed else ""
        n_pages += 1
    return {
        folder: newest_manifests(names.get(folder, []))
        for folder in folders
        if not any(above in folders for above in _above(folder))
    }


def _behind(name: str, runs: Container[str]) -> str:
    """The name after which to go on: what a run has written is not listed."""
    run = f"/{name}".rpartition("/w/")[0].lstrip("/")
    return f"{run}/w0".lstrip("/") if "/w/" in f"/{name}" and run in runs else name


def _above(folder: str) -> list[str]:
    """The folders in which one is, and "" for the URL itself."""
    parts = folder.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts))] if folder else []


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
