"""The directories of the runs of one launch: ``run``, ``run-2``, ``run-3``, ...

A program may train several models, one after another or in processes of its own.  Each
training is a run, and the runs of one launch have the directory that the user named,
with a number.

Thread safety: pure functions; any number of processes may call ``claim`` at once.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from tdbg.run.directory import is_run, writer_directories
from tdbg.run.in_use import LivingWriter, living_writer

__all__ = ["appeared", "claim", "existing", "in_use", "member"]


def member(out: Path, number: int) -> Path:
    """Return the directory of the run of this number, counted from 1.

    Example:
        >>> member(Path("runs/digits"), 2)
        PosixPath('runs/digits-2')
    """
    return out if number == 1 else out.with_name(f"{out.name}-{number}")


def existing(out: Path) -> dict[str, int]:
    """Return the directories before a launch, and the time of each last writer.

    The result is what ``claim`` and ``appeared`` compare with, and can be JSON.
    """
    return {str(path): _last_writer(path) for path in _directories(out)}


def claim(out: Path, before: Mapping[str, int], *, may_join: bool) -> Path:
    """Take a directory that no other training of this launch has.

    Args:
        out: The first directory of the family.
        before: The result of ``existing`` at the launch.
        may_join: Whether a run of an earlier launch may be taken; the training is then
            a further attempt of that run.

    Raises:
        OSError: If the directory cannot be made.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        path = member(out, number)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if not may_join or before.get(str(path)) != _last_writer(path):
                continue
            if in_use(path) is not None:
                continue
        return path
    raise AssertionError


def appeared(out: Path, before: Mapping[str, int]) -> list[Path]:
    """Return the runs that were made or joined since the launch, by number."""
    return [
        path
        for path in _directories(out)
        if is_run(path) and before.get(str(path)) != _last_writer(path)
    ]


def in_use(path: Path) -> LivingWriter | None:
    """Return a writer of the run whose process lives, or None."""
    return living_writer(
        each for each in writer_directories(path) if each.role == "train"
    )


def _directories(out: Path) -> list[Path]:
    numbered = {}
    for path in out.parent.glob(f"{glob.escape(out.name)}-*"):
        number = path.name[len(out.name) + 1 :]
        if number.isdecimal() and path == member(out, int(number)):
            numbered[int(number)] = path
    paths = [out, *(numbered[number] for number in sorted(numbered))]
    return [path for path in paths if path.is_dir()]


def _last_writer(path: Path) -> int:
    """Return when the last writer came, by its directory; 0 if there was none."""
    try:
        return (path / "w").stat().st_mtime_ns
    except OSError:
        return 0
