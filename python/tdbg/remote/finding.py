"""Runs below a URL: found by pages, or level by level, all folders of one at once.

Errors: those of ``Store``.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Container, Mapping
from functools import partial
from typing import Self

from tdbg.errors import ConfigurationError, StorageError
from tdbg.remote.fetching import Fetcher
from tdbg.remote.layout import MANIFESTS, newest_manifests
from tdbg.remote.stores import Store, check_url, open_store
from tdbg.run.foreign import are_of_smdebug, part_of_smdebug

__all__ = ["ListedRun", "beside", "find_runs", "nearest_runs"]

RUN_FILE = "RUN.json"
# Pages that may be listed in vain, and how many runs each must have on average.
PAGES, RUNS_A_PAGE = 2, 20
_SHOWN = 3


class ListedRun(str):
    """The URL of a run, which knows what a listing showed there.

    Whoever opens it need not list that again.

    Attributes:
        manifests: The highest number of each writer; None: they were not listed.
        is_of_smdebug: Whether smdebug wrote it: there are no manifests.
    """

    __slots__ = ("is_of_smdebug", "manifests")
    manifests: Mapping[str, int] | None
    is_of_smdebug: bool

    def __new__(
        cls,
        url: str,
        manifests: Mapping[str, int] | None = None,
        *,
        is_of_smdebug: bool = False,
    ) -> Self:
        """Make the URL."""
        made = super().__new__(cls, url)
        made.manifests, made.is_of_smdebug = manifests, is_of_smdebug
        return made


def find_runs(url: str, depth: int = 3) -> list[str]:
    """The URLs of the runs at or below *url*, in order of their names.

    What smdebug wrote counts.

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
    found = _runs_by_pages(fetcher, depth)
    if found is None:
        found = _runs_below(fetcher, "", depth)
    return [
        ListedRun(
            f"{store.url}/{name}".rstrip("/"),
            name.manifests,
            is_of_smdebug=name.is_of_smdebug,
        )
        for name in sorted(found)
    ]


def _runs_by_pages(fetcher: Fetcher, depth: int) -> list[ListedRun] | None:
    """The runs by their names below the URL; None: pages are not worth it."""
    folders: set[str] = set()
    names: dict[str, list[str]] = {}
    outputs: dict[str, set[str]] = {}
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
            elif part := part_of_smdebug(name):
                outputs.setdefault(part[0], set()).add(part[1])
        after = _behind(listed[-1], folders) if listed else ""
        n_pages += 1
    runs = [ListedRun(each, newest_manifests(names.get(each, []))) for each in folders]
    runs += [
        ListedRun(each, is_of_smdebug=True)
        for each, parts in outputs.items()
        if each not in folders and each.count("/") < depth and are_of_smdebug(parts)
    ]
    known = set(runs)
    return [each for each in runs if known.isdisjoint(_above(each))]


def _behind(name: str, runs: Container[str]) -> str:
    """The name after which to go on: what a run has written is not listed."""
    run = f"/{name}".rpartition("/w/")[0].lstrip("/")
    return f"{run}/w0".lstrip("/") if "/w/" in f"/{name}" and run in runs else name


def _above(folder: str) -> list[str]:
    """The folders in which one is, and "" for the URL itself."""
    parts = folder.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts))] if folder else []


def _runs_below(fetcher: Fetcher, root: str, depth: int) -> list[ListedRun]:
    """The runs at or below *root*, by their names below the URL."""
    found: list[ListedRun] = []
    level = [root]
    for left in range(depth, -1, -1):
        entries = fetcher.each(
            lambda folder: fetcher.again(lambda: fetcher.store.entries(folder)), level
        )
        below: list[str] = []
        for folder, (folders, objects) in zip(level, entries, strict=True):
            if RUN_FILE in objects:
                found.append(ListedRun(folder))
            elif are_of_smdebug([*folders, *objects]):
                found.append(ListedRun(folder, is_of_smdebug=True))
            elif left:
                below += [f"{folder}/{each}".lstrip("/") for each in folders]
        level = below
    return sorted(found)


def beside(url: str) -> list[str]:
    """The URLs of the folders that are where *url* is, itself among them if it is.

    Raises:
        ConfigurationError: If the URL is bad, that of a whole bucket, or what reads it
            is missing.
        StorageError: If the store does not answer, or refuses.
    """
    parent = check_url(url).rpartition("/")[0]
    if parent.endswith("/") and not parent.startswith("file:"):
        msg = f"{url} is a whole bucket: name a folder in it, as in {url}/run"
        raise ConfigurationError(msg)
    fetcher = Fetcher(open_store(parent))
    folders, _ = fetcher.again(fetcher.store.entries)
    return [f"{parent}/{each}" for each in folders]


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
