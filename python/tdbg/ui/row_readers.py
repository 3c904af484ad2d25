"""Processes that read the rows of many runs.

To read a run takes milliseconds of Python, which runs in one thread of a process at a
time.  So the rows of a thousand runs are read by a process for each core.  They have
the server's low priority, and end when all rows are read, or with the server.

Thread safety: a ``RowReader`` belongs to one thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from typing import Any

from tdbg.errors import StorageError, TdbgError
from tdbg.trial import create_trial
from tdbg.ui.rows import row_of

__all__ = ["RowReader", "read_row", "readers_for"]

# A process takes a third of a second to start: as long as it takes to read so many.
RUNS_EACH = 32
MOST_READERS = 8


def readers_for(n_runs: int) -> int:
    """Return how many processes are worth while for so many runs; it may be none."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, MOST_READERS, n_runs // RUNS_EACH)


def read_row(path: str) -> dict[str, Any]:
    """Return the row of a run.

    Raises:
        TdbgError: If it cannot be read.
    """
    return row_of(create_trial(path))


class RowReader:
    """A process that reads rows, one at a time.

    Until it has started, this process reads them.
    """

    def __init__(self) -> None:
        self._process = _started()
        self._is_ready = False

    def read(self, path: str) -> dict[str, Any]:
        """Return the row of a run.

        Raises:
            TdbgError: If it cannot be read.
        """
        if not self.has_started():
            return read_row(path)
        answer = self._answer(json.dumps(path))
        if not answer:
            self.close()
            self._process, self._is_ready = _started(), False
            msg = f"{path}: the process that read it has ended"
            raise StorageError(msg, file=path, kind="io")
        told: dict[str, Any] = json.loads(answer)
        if "error" in told:
            raise TdbgError(told["error"])
        row: dict[str, Any] = told["row"]
        return row

    @property
    def process(self) -> int:
        """The number of the process."""
        return self._process.pid

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process.kill()
        self._process.wait()

    def has_started(self) -> bool:
        """Whether it answers by now."""
        if not self._is_ready and self._process.stdout is not None:
            said, _, _ = select.select([self._process.stdout], [], [], 0)
            self._is_ready = bool(said) and self._process.stdout.readline() != b""
        return self._is_ready

    def _answer(self, question: str) -> bytes:
        """Return what it answers; empty if it has ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            return b""
        try:
            stdin.write(question.encode() + b"\n")
            stdin.flush()
            return stdout.readline()
        except OSError:
            return b""


def _started() -> subprocess.Popen[bytes]:
    code = "from tdbg.ui.row_readers import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,  # Open for as long as somebody reads.
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


def main() -> None:
    """Read the runs whose paths come line by line; what such a process runs."""
    says, sys.stdout = sys.stdout, sys.stderr
    print("ready", file=says, flush=True)
    for line in sys.stdin:
        told: dict[str, Any]
        try:
            told = {"row": read_row(json.loads(line))}
        except TdbgError as error:
            told = {"error": str(error)}
        print(json.dumps(told), file=says, flush=True)
