"""``LaterRun``: a path to a run whose directory is not known yet.

Workers of a loader may start before the run of their training does.  They get the name
of a symbolic link, and look at what it leads to from time to time.

Thread safety: one owner.  Errors: none; a link that cannot be made leads nowhere.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from pathlib import Path

__all__ = ["LaterRun"]


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
        folder = Path(tempfile.gettempdir())
        self.path = str(folder / f"tdbg-run-{os.getpid()}-{uuid.uuid4().hex}")

    def lead_to(self, run: Path) -> None:
        """Let the path lead to a run, in place of an earlier one."""
        self.forget()
        with contextlib.suppress(OSError):
            os.symlink(run.resolve(), self.path)  # noqa: PTH211

    def forget(self) -> None:
        """Let the path lead nowhere."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)  # noqa: PTH108
