"""The process that ships a spool; ``python -m tdbg.remote.process LOCK``, by a hook.

On its input it reads one line of JSON: the spool and the URL.  On its output it says in
one line whether it could begin.  Then it has neither, and writes its log and its status
into the spool.  It goes on when the training has ended, however that was.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tdbg.errors import StorageError, TdbgError
from tdbg.remote.spool import (
    READY,
    STATUS_NOTE,
    has_users,
    remove_if_unused,
    write_note,
)
from tdbg.remote.stores import scrub
from tdbg.remote.uploader import Progress, Uploader

__all__ = ["main"]

# How long it tries in vain when nobody writes any more; `tdbg ship` resumes.
PATIENCE_SECONDS = 3600.0
LOG = "uploader.log"
MAX_LOG_BYTES = 1 << 20
STATUS_SECONDS = 0.5


class _Follower:
    """Follows one spool until everything in it is shipped.

    Args:
        spool: The spool.
        url: Where it goes.
    """

    def __init__(self, spool: Path, url: str) -> None:
        self._spool = spool
        self._patience = time.monotonic() + PATIENCE_SECONDS
        self._shipped = -1
        self._last: Progress | None = None
        self._told = 0.0
        self.uploader = Uploader(spool, url, empties=True, is_over=self._is_over)

    def _is_over(self) -> bool:
        return time.monotonic() > self._patience or not self._spool.is_dir()

    def is_needed(self) -> bool:
        """Whether somebody may still write."""
        if not has_users(self._spool):
            return False
        self._patience = time.monotonic() + PATIENCE_SECONDS
        return True

    def tell(self, progress: Progress) -> None:
        """Write the status where who waits for the end reads it."""
        if progress.n_files != self._shipped:
            self._shipped = progress.n_files
            self._patience = time.monotonic() + PATIENCE_SECONDS
        last = self._last
        same = last is not None and progress._replace(uploads=last.uploads) == last
        if same and time.monotonic() - self._told < STATUS_SECONDS:
            return
        if progress.error and (last is None or progress.error != last.error):
            self._log(progress.error)
        self._last, self._told = progress, time.monotonic()
        write_note(self._spool, STATUS_NOTE, {"pid": os.getpid(), **progress._asdict()})

    def _log(self, text: str) -> None:
        with contextlib.suppress(OSError):
            path = self._spool / LOG
            if not path.exists() or path.stat().st_size < MAX_LOG_BYTES:
                path.touch(0o600)
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                with path.open("a") as file:
                    file.write(f"{now} {scrub(text)}\n")

    def run(self) -> bool:
        """Ship, and remove the spool; whether everything was shipped."""
        while self.uploader.run(is_needed=self.is_needed, tell=self.tell):
            if remove_if_unused(self._spool):
                return True
        return False


def main() -> int:
    """Ship what a hook asks for; what the process runs."""
    asked = json.loads(sys.stdin.buffer.readline())
    spool = Path(asked["spool"])
    try:
        follower = _Follower(spool, asked["url"])
        follower.uploader.prepare()
    except TdbgError as error:
        _answer(_as_json(error))
        return 2
    (spool / READY).touch(0o600)
    _answer({})
    _cut_loose()
    return 0 if follower.run() else 1


def _as_json(error: TdbgError) -> dict[str, Any]:
    return {
        "error": scrub(error),
        "class": type(error).__name__,
        "kind": error.kind if isinstance(error, StorageError) else None,
    }


def _answer(answer: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(answer).encode() + b"\n")


def _cut_loose() -> None:
    """Hold nothing open that belongs to the program that was started."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.chdir("/")
    with contextlib.suppress(OSError):
        os.nice(5)


if __name__ == "__main__":
    sys.exit(main())
