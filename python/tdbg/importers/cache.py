"""The folder in which runs lie that were made of other tools' directories.

It is bounded: what was not opened for the longest time goes first, and nothing goes
that a process has open.

Thread safety: may be used from any thread and by several processes.

Errors: ``StorageError`` where the folder cannot be made.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from pathlib import Path

from tdbg.errors import ConfigurationError, StorageError

__all__ = ["evict", "folder", "is_cached", "newest", "next_after", "use"]

# Variables of the environment: where the folder is, and how many bytes it may have.
FOLDER, LIMIT = "TDBG_CACHE", "TDBG_CACHE_BYTES"
DEFAULT_LIMIT = 20 << 30
_USED = "used"

# What this process has open: an open file for each, locked until the process ends.
_in_use: dict[Path, int] = {}


def folder() -> Path:
    """Return the folder: ``$TDBG_CACHE``, or ``tdbg`` where caches of the user lie."""
    given = os.environ.get(FOLDER, "").strip()
    if given:
        return Path(given).expanduser() / "smdebug"
    home = os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache"
    return Path(home).expanduser() / "tdbg" / "smdebug"


def is_cached(run: str | os.PathLike[str]) -> bool:
    """Whether a run lies in the folder, where it may go at any time."""
    return folder().absolute() in Path(run).parents


def newest(identity: str) -> Path:
    """Return the place of what was last made of a directory, or is to be.

    Args:
        identity: Of the directory; another one has a place of its own.
    """
    key = hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:16]
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        numbers = [_number(each) for each in folder().glob(f"{key}-*")]
    except OSError as error:
        raise StorageError.of(error, "make the folder", folder()) from error
    return folder() / f"{key}-{max(numbers, default=0)}"


def next_after(place: Path) -> Path:
    """Return the place beside one whose content no longer fits the directory."""
    key, _, _ = place.name.partition("-")
    return place.with_name(f"{key}-{_number(place) + 1}")


def _number(place: Path) -> int:
    _, _, number = place.name.partition("-")
    return int(number) if number.isdecimal() else 0


def use(place: Path) -> None:
    """Keep a place for as long as this process lives."""
    if place in _in_use:
        with contextlib.suppress(OSError):
            os.utime(place / _USED)
        return
    # Where files cannot be locked, nothing is kept: eviction finds no lock either.
    with contextlib.suppress(OSError):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(place / _USED, flags, 0o600)
        os.utime(descriptor)
        _in_use[place] = descriptor
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def evict() -> list[Path]:
    """Remove what was not used for the longest time, until the rest fits the limit.

    Returns:
        The places that were removed.

    Raises:
        ConfigurationError: If the limit is no number of bytes.
    """
    limit = _limit()
    with contextlib.suppress(OSError):
        places = [each for each in folder().iterdir() if each.is_dir()]
        sizes = {place: _size(place) for place in places}
        total = sum(sizes.values())
        removed = []
        for place in sorted(places, key=_used_at):
            if total <= limit:
                break
            if _remove(place):
                total -= sizes[place]
                removed.append(place)
        return removed
    return []


def _limit() -> int:
    text = os.environ.get(LIMIT, "").strip()
    if not text:
        return DEFAULT_LIMIT
    if not text.isdecimal():
        msg = f"{LIMIT} is {text!r}: give a number of bytes, such as {DEFAULT_LIMIT}"
        raise ConfigurationError(msg)
    return int(text)


def _size(place: Path) -> int:
    total = 0
    for path, _, names in os.walk(place):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(path) / name).lstat().st_size
    return total


def _used_at(place: Path) -> float:
    try:
        return (place / _USED).stat().st_mtime
    except OSError:
        return 0.0


def _remove(place: Path) -> bool:
    """Remove a place that no process has open; say whether it went."""
    if place in _in_use:
        return False
    try:
        descriptor = os.open(place / _USED, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # It is only being made.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(place)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
