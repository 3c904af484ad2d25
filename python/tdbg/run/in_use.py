"""Whether a process writes to a run at this moment.

By its writer's commit page: the process that it names is there, or, where that cannot
be seen from here (another machine, another namespace of processes), the page goes on
to change.  Nothing is locked, so nothing is left of a process that was killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from importlib import import_module
from typing import Any, NamedTuple

from tdbg.errors import RunInUse
from tdbg.run.directory import Run, WriterDirectory, writer_directories

__all__ = ["LivingWriter", "living_writer", "refuse_if_in_use", "state_at_a_glance"]

# A writer changes its page every half second.  One that nothing else tells of is
# watched for several times as long.
WATCHED_SECONDS = 2.0
LATE_SECONDS = 1.5
_PAUSE_SECONDS = 0.05
_LIVES = ("running", "stalled")
# That of a run is the first one that a writer has.
_STATES = (*_LIVES, "unknown", "dead", "closed")


class LivingWriter(NamedTuple):
    """A writer whose process lives.

    Attributes:
        writer: Its directory.
        process: Number of the process, on its own machine.
        is_here: Whether that is this machine.
    """

    writer: WriterDirectory
    process: int
    is_here: bool


def refuse_if_in_use(
    run: Run, rank: int, advice: str = "", below: int | None = None
) -> None:
    """Raise if another process writes to the run as this rank.

    Args:
        run: The run.
        rank: The rank of this process in its training.
        advice: Further sentences of the error: what to do.
        below: Only writers of an earlier generation are looked at.

    Raises:
        RunInUse: If another process does.
    """
    found = living_writer(
        each
        for each in writer_directories(run)
        if each.role == "train"
        and each.rank == rank
        and (below is None or each.generation < below)
    )
    if found is None:
        return
    where = "" if found.is_here else " of another machine"
    msg = (
        f"{run.path} is in use: process {found.process}{where} is training and writes "
        f"to it as {found.writer.path.name}. Give this training a directory of its "
        f"own, or end the other one first.{advice}"
    )
    raise RunInUse(msg, file=str(run.path), kind="in_use")


def living_writer(writers: Iterable[WriterDirectory]) -> LivingWriter | None:
    """Return one of these writers that another living process has, or None.

    Takes up to two seconds if there is one whose process cannot be seen from here and
    that was not closed.
    """
    pages = {writer: _page(writer) for writer in writers}
    pages = {writer: page for writer, page in pages.items() if not _is_mine(page)}
    for writer, page in pages.items():
        if page is not None and page["state"] in _LIVES:
            return LivingWriter(writer, page["pid"], is_here=True)
    pages = {writer: page for writer, page in pages.items() if _may_live(writer, page)}
    deadline = time.monotonic() + WATCHED_SECONDS
    while pages and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
        for writer, before in list(pages.items()):
            page = _page(writer)
            if page is not None and _has_moved(before, page):
                return LivingWriter(writer, page["pid"], page["state"] != "unknown")
            if not _may_live(writer, page):
                del pages[writer]
    return None


def state_at_a_glance(run: Run) -> str:
    """Return the state of the training, by the commit pages of its newest writers.

    For a list of many runs: no record is read.  ``Trial.status`` knows more, such as
    which writers belong to the newest attempt.
    """
    newest = {
        each.rank: each  # In ascending order of their generations.
        for each in writer_directories(run)
        if each.role == "train"
    }
    pages = [_page(writer) for writer in newest.values()]
    states = {"unknown" if page is None else str(page["state"]) for page in pages}
    return next((each for each in _STATES if each in states), "unknown")


def _page(writer: WriterDirectory) -> dict[str, Any] | None:
    page: dict[str, Any] | None = import_module("tdbg._core").look_at_writer(
        str(writer.path)
    )
    return page


def _is_mine(page: dict[str, Any] | None) -> bool:
    return page is not None and page["state"] in _LIVES and page["pid"] == os.getpid()


def _may_live(writer: WriterDirectory, page: dict[str, Any] | None) -> bool:
    """Whether the writer may live although its process is not seen."""
    if page is None:  # It is only being made.
        try:
            made = writer.path.stat().st_mtime
        except OSError:
            return False
        return abs(time.time() - made) < WATCHED_SECONDS
    if page["state"] == "dead":  # Or is in a namespace of its own.
        heartbeat: int = page["heartbeat_ns"]
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return now - heartbeat < LATE_SECONDS * 1e9
    return bool(page["state"] == "unknown")


def _has_moved(before: dict[str, Any] | None, page: dict[str, Any]) -> bool:
    if page["state"] == "closed":
        return False
    if before is None:
        return page["state"] in _LIVES
    return bool(page["counter"] != before["counter"])
