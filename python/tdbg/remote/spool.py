"""The spool of a run at a URL: a run directory of this machine, shipped and emptied.

Writers of this machine share one, and one uploader ships it.  Two locks say who is
there: ``users.lock`` is held, shared, by each process that writes, ``uploader.lock`` by
the uploader.  A lock goes with its process, so nothing is left of one that was killed.

Thread safety: all functions may be called from any thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tdbg.errors import StorageError
from tdbg.run.json_values import load_json, mapping_of

__all__ = [
    "has_users",
    "join_spool",
    "lead_spool",
    "leave_spool",
    "read_note",
    "spool_of",
    "spool_url",
    "try_to_lead",
    "write_note",
]

VARIABLE = "TDBG_SPOOL"
USERS, UPLOADER = "users.lock", "uploader.lock"
# What is noted beside the run: where it goes, and how far the uploader is.
SPOOL_NOTE, STATUS_NOTE = "SPOOL.json", "UPLOADS.json"
# Is there once an uploader knows the store.
READY = "ready"
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")

_lock = threading.Lock()
# Of this process: descriptor and number of users, by spool.  The system forgets a lock
# when any descriptor of its file is closed, so there is one for all.
_joined: dict[Path, tuple[int, int]] = {}


def spool_of(url: str) -> Path:
    """Where this machine keeps what is not yet at the URL.

    Below ``$TDBG_SPOOL``, or else ``~/.cache/tdbg/spool`` (``$XDG_CACHE_HOME``).
    """
    given = os.environ.get(VARIABLE, "").strip()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(given or Path(cache) / "tdbg" / "spool").expanduser()
    # Machines may share a home folder, and each ships what is its own.
    digest = hashlib.sha256(f"{url}\n{platform.node()}".encode()).hexdigest()[:12]
    name = _ODD.sub("-", url.rstrip("/").rpartition("/")[2])[:40]
    return Path(os.path.abspath(root)) / f"{name}-{digest}"  # noqa: PTH100


def join_spool(url: str) -> Path:
    """Make the spool of a URL if need be, and be one of its users.

    Raises:
        StorageError: If it cannot be made.
    """
    path = spool_of(url)
    with _lock:
        descriptor, n = _joined.get(path, (-1, 0))
        try:
            while n == 0 and descriptor < 0:
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
                descriptor = _lock_users(path)
        except OSError as error:
            raise StorageError.of(error, "make the spool", path) from error
        _joined[path] = descriptor, n + 1
    if read_note(path, SPOOL_NOTE).get("url") != url:
        write_note(path, SPOOL_NOTE, {"url": url})
    return path


def leave_spool(path: Path) -> None:
    """Be one user less of a spool."""
    with _lock:
        descriptor, n = _joined.get(path, (-1, 0))
        if n > 1:
            _joined[path] = descriptor, n - 1
        elif n == 1:
            del _joined[path]
            os.close(descriptor)


def _lock_users(path: Path) -> int:
    """A descriptor with the shared lock; -1: the spool was removed meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = _open(path / USERS)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH)
            if os.fstat(descriptor).st_ino == (path / USERS).stat().st_ino:
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    return -1


def has_users(path: Path) -> bool:
    """Whether a process writes to the spool; asked by its uploader."""
    try:
        descriptor = _open(path / USERS)
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_if_unused(path: Path) -> bool:
    """Remove a spool, of which everything was shipped; False: somebody joined it."""
    descriptor = _open(path / USERS)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def try_to_lead(path: Path) -> int | None:
    """A descriptor that makes its holders the uploader; None: there is one.

    The lock is that of the descriptor, so a process that inherits it has the lock.
    """
    descriptor = _open(path / UPLOADER)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


@contextlib.contextmanager
def lead_spool(path: Path) -> Iterator[bool]:
    """Be the uploader of a spool until the block is left; yields whether that is so."""
    lock = try_to_lead(path)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)
            if not has_users(path) and not any(path.glob("w/*/*.td?")):
                remove_if_unused(path)


def spool_url(path: Path) -> str | None:
    """Where the spool goes; None: the folder is no spool."""
    url = read_note(path, SPOOL_NOTE).get("url")
    return url if isinstance(url, str) else None


def read_note(path: Path, name: str) -> dict[str, Any]:
    """Return what is noted in a file of a spool; empty if nothing is."""
    with contextlib.suppress(OSError, ValueError):
        return dict(mapping_of(load_json((path / name).read_bytes())))
    return {}


def write_note(path: Path, name: str, content: dict[str, Any]) -> None:
    """Write a note, which appears whole."""
    temporary = path / f".{name}-{os.getpid()}-{threading.get_ident()}"
    with contextlib.suppress(OSError):
        with os.fdopen(_open(temporary), "w") as file:
            json.dump(content, file)
        temporary.replace(path / name)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


def _forget() -> None:
    # A forked child has no locks of its parent; its descriptors stay open.
    global _lock  # noqa: PLW0603 - it may have been held when the process forked
    _lock = threading.Lock()
    _joined.clear()


os.register_at_fork(after_in_child=_forget)
