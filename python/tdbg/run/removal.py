"""Removes data of runs that exist: what a retention says, or all of it.

Thread safety: functions over files; two processes may call them at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from tdbg.config.retention import Retention
from tdbg.errors import NotARun, RunInUse, StorageError
from tdbg.run.annotations import forget
from tdbg.run.directory import RUN_FILE, Run, WriterDirectory, open_run
from tdbg.run.directory import writer_directories as directories_of
from tdbg.run.in_use import living_writer

__all__ = ["CollectReport", "Collected", "RemovedRun", "collect", "remove_run"]

# What tdbg makes in the directory of a run; the last one says that it is a run.
OWN_FOLDERS = ("w", "ctl", "tensorboard")


@dataclass(frozen=True, slots=True)
class Collected:
    """What went from one shard.

    Attributes:
        writer: Name of the writer's directory.
        shard: Number of the shard.
        values_only: Whether only raw values went; else all but events.
        first_step: The first global step that lacks something, over all removals.
        last_step: The last one.
        n_bytes: By how much the files shrank, in bytes.
    """

    writer: str
    shard: int
    values_only: bool
    first_step: int
    last_step: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class CollectReport:
    """What a retention removed from a run, or would.

    Attributes:
        run: The directory of the run.
        is_live: Whether a training writes to it.
        is_dry: Whether nothing was done.
        before: Bytes of the training's files before.
        after: And afterwards.
        shards: What went from each shard.
    """

    run: str
    is_live: bool
    is_dry: bool
    before: int
    after: int
    shards: tuple[Collected, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return asdict(self)


def collect(
    run: Run | str | os.PathLike[str], retention: Retention, *, dry_run: bool = False
) -> CollectReport:
    """Remove from a run what a retention does not keep; only from sealed shards.

    It is safe while the training writes: what it writes to is not touched.

    Args:
        run: The run.
        retention: What stays; its ``max_bytes`` are divided among the ranks.
        dry_run: Change nothing, and return what would go.

    Raises:
        NotARun: If there is no run.
        StorageError: If its files cannot be read or replaced.

    Example:
        report = collect("runs/digits", Retention(values="last 100"), dry_run=True)
        print(report.before - report.after)  # bytes
    """
    opened = run if isinstance(run, Run) else open_run(run)
    core = import_module("tdbg._core")
    by_rank: dict[int, list[WriterDirectory]] = defaultdict(list)
    for each in directories_of(opened):
        if each.role == "train":
            by_rank[each.rank].append(each)
    training = [each for group in by_rank.values() for each in group]
    is_live = living_writer(training) is not None
    newest = max((_last_step(opened, each) for each in training), default=-1)
    before, after, shards = _size(training), 0, []
    for group in by_rank.values():
        removals, left = core.apply_retention(
            [str(each.path) for each in sorted(group)],
            newest,
            keep_last=retention.last,
            keep_every=retention.every,
            max_bytes=retention.share(len(by_rank)),
            is_dry=dry_run,
            is_live=is_live,
        )
        after += left
        shards += [
            Collected(
                writer=Path(each["directory"]).name,
                shard=each["shard"],
                values_only=each["values_only"],
                first_step=each["first_step"],
                last_step=each["last_step"],
                n_bytes=each["bytes"],
            )
            for each in removals
        ]
    return CollectReport(
        str(opened.path), is_live, dry_run, before, after, tuple(shards)
    )


def _last_step(run: Run, writer: WriterDirectory) -> int:
    """Return the last step that a writer recorded; -1 if there is none."""
    reader = import_module("tdbg._core").RunReader(str(writer.path), run.uuid)
    recorded = reader.recorded_steps()
    return -1 if recorded is None else int(recorded[1])


def _size(writers: list[WriterDirectory]) -> int:
    total = 0
    for writer in writers:
        with os.scandir(writer.path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_size
    return total


@dataclass(frozen=True, slots=True)
class RemovedRun:
    """What ``remove_run`` did.

    Attributes:
        run: The directory that was the run.
        n_bytes: Bytes of the files that went.
        left: Names of files and folders in it that are none of tdbg's: they stay.
    """

    run: str
    n_bytes: int
    left: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return asdict(self)


def remove_run(
    path: str | os.PathLike[str], *, force: bool = False, dry_run: bool = False
) -> RemovedRun:
    """Remove a run: its files, and its directory unless others have files there.

    What somebody said about it goes with it: tags and note.

    Args:
        path: The directory of the run.
        force: Remove it even while a training writes to it, which then counts what it
            offers as lost.
        dry_run: Change nothing, and return what would go.

    Raises:
        NotARun: If it is no run, or a symbolic link.
        RunInUse: If a training writes to it, without *force*.
        StorageError: If a file cannot be removed.
    """
    run = open_run(path)
    if run.path.is_symlink():
        msg = (
            f"{run.path} is a symbolic link: give the directory it names, "
            f"{run.path.resolve()}"
        )
        raise NotARun(msg, file=str(run.path), kind="foreign")
    living = None if force else living_writer(directories_of(run))
    if living is not None:
        msg = (
            f"{run.path} is in use: process {living.process} is training and writes "
            "to it. Stop it first (tdbg stop), or pass --force"
        )
        raise RunInUse(msg, file=str(run.path), kind="in_use")
    own = [run.path / name for name in (*OWN_FOLDERS, RUN_FILE)]
    n_bytes = sum(_bytes_below(each) for each in own)
    left = {entry.name for entry in os.scandir(run.path)} - {each.name for each in own}
    if not dry_run:
        _remove(run.path, own)
        forget(run)
    return RemovedRun(str(run.path), n_bytes, tuple(sorted(left)))


def _remove(directory: Path, own: list[Path]) -> None:
    """Remove these; what says that it is a run goes last, so that it can be repeated.

    Raises:
        StorageError: If one cannot be removed.
    """
    try:
        for each in own:
            if each.is_symlink() or each.is_file():
                each.unlink()
            elif each.exists():
                shutil.rmtree(each)
        with contextlib.suppress(OSError):  # Somebody else's files are there.
            directory.rmdir()
    except OSError as error:
        raise StorageError.of(error, "remove", error.filename or directory) from error


def _bytes_below(path: Path) -> int:
    if path.is_symlink():
        return 0
    if path.is_file():
        return path.stat().st_size
    files = (each for each in path.rglob("*") if not each.is_symlink())
    return sum(each.stat().st_size for each in files if each.is_file())
