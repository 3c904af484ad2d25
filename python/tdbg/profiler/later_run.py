"""``LaterRun``: a path to a run whose directory is not known yet.

Workers of a loader may start before the run of their training does.  They get the name
of a symbolic link, and look at what it leads to from time to time.

A process that is killed leaves its link behind; the next one that makes a link removes
it.

Thread safety: one owner.  Errors: none; a link that cannot be made leads nowhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import uuid
from itertools import islice
from pathlib import Path

from tdbg.run.stacks import process_namespace, process_start

__all__ = ["LaterRun"]

# Which process made a link: only processes of its namespace know whether it lives.
_NAME = re.compile(r"tdbg-run-(\w+)-(\d+)-(\d+)-[0-9a-f]{32}\Z")
# Names of a folder that are looked at.
_MAX_NAMES = 100_000


class LaterRun:
    """The run that a process is going to write.

    Attributes:
        path: The link, which leads nowhere before ``lead_to`` and after ``forget``.

    Example:
        >>> run = LaterRun()
        >>> run.lead_to(Path.cwd())
        >>> Path(run.path).resolve() == Path.cwd()
        True
        >>> run.forget()
        >>> Path(run.path).exists()
        False
    """

    def __init__(self) -> None:
        pid = os.getpid()
        name = f"tdbg-run-{_namespace()}-{pid}-{process_start(pid)[1]}"
        folder = Path(tempfile.gettempdir())
        self.path = str(folder / f"{name}-{uuid.uuid4().hex}")

    def lead_to(self, run: Path) -> None:
        """Let the path lead to a run, in place of an earlier one."""
        self.forget()
        with contextlib.suppress(OSError):
            _remove_stale(Path(self.path).parent)
        with contextlib.suppress(OSError):
            os.symlink(run.resolve(), self.path)  # noqa: PTH211

    def forget(self) -> None:
        """Let the path lead nowhere."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)  # noqa: PTH108


def _namespace() -> str:
    return re.sub(r"\W", "", process_namespace())


def _remove_stale(folder: Path) -> None:
    """Remove the links of this user's processes that have ended."""
    with os.scandir(folder) as entries:
        for entry in islice(entries, _MAX_NAMES):
            found = _NAME.fullmatch(entry.name)
            if found is None or found[1] != _namespace() or not entry.is_symlink():
                continue
            is_mine = entry.stat(follow_symlinks=False).st_uid == os.geteuid()
            if is_mine and process_start(int(found[2]))[1] != int(found[3]):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)  # noqa: PTH108
