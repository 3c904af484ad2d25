"""The table of runs: those that were found, and their rows as they are read.

To read a run takes milliseconds of Python, which runs in one thread of a process at a
time.  So the rows of a thousand runs are read by a process for each core.  They have
the server's low priority, and end when all rows are read, or with the server.

Thread safety: functions; a ``RowReader`` belongs to one thread.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any, Self

from tdbg.errors import StorageError, TdbgError
from tdbg.run.annotations import NOTHING
from tdbg.ui.places import FAR_OPENERS
from tdbg.ui.row import read_row, row_of
from tdbg.ui.runs import Runs
from tdbg.view import RunRow

__all__ = ["RowReader", "list_runs", "readers_for", "tell_runs"]

# A process takes a third of a second to start: longer than it takes to read so many.
RUNS_EACH = 32
MOST_READERS = 8
# Threads that wait for the disk; Python runs in one of them at a time.
OPENERS = 4
# Rows that were read in so many seconds are told together: at first, and at most.
TOGETHER_SECONDS = 0.05
MOST_SECONDS = 0.4


def readers_for(n_runs: int) -> int:
    """Return how many processes are worth while for so many runs; it may be none."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, MOST_READERS, max(0, n_runs // RUNS_EACH - 1))


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
    code = "from tdbg.ui.row import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,  # Open for as long as somebody reads.
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


# --- The table -----------------------------------------------------------------


def list_runs(runs: Runs) -> dict[str, Any]:
    """Every run at once: those in training first, then the newest.

    A run that was not read yet, or has changed since, has its name, time and state
    alone, without a ``verdict``: ``tell_runs`` reads it.

    Returns:
        ``listing``, as ``Runs`` has it, ``places``, their ``troubles``, ``runs``, and
        under ``common`` the settings that all share, which are not in their records.
    """
    listing = runs.listing()
    listed = [_listed(runs, id_) for id_ in runs.found()]
    listed.sort(key=lambda each: str(each.get("created", "")), reverse=True)
    listed.sort(key=lambda each: each.get("state") != "running")
    places = {"places": runs.places, "troubles": runs.troubles}
    return {"listing": listing, **places, **_with_common(listed)}


def tell_runs(runs: Runs, ids: Sequence[str]) -> Generator[dict[str, Any]]:
    """What is said of some runs, in parts, as they are read; the first ones first.

    Yields:
        ``runs`` and ``common``, as ``list_runs`` has them.  Whoever asks for no more
        closes the iterator.
    """
    far, near = _to_read(runs, ids)
    seconds = TOGETHER_SECONDS
    with _Telling(runs, readers_for(near), FAR_OPENERS if far else OPENERS) as telling:
        waiting = {telling.row(id_): id_ for id_ in ids}
        while waiting:
            done = wait(waiting, timeout=seconds).done
            # A page draws the table anew for each part.
            seconds = min(2 * seconds, MOST_SECONDS)
            told = [each for each in waiting if each in done]
            if told:
                yield _with_common([each.result() for each in told])
            for each in told:
                del waiting[each]


class _Telling:
    """Threads that read rows, each with a process of its own if there are many.

    The first rows, which somebody may see, do not share the processor with processes
    that start.
    """

    def __init__(self, runs: Runs, n_readers: int, n_threads: int) -> None:
        self._runs = runs
        self._n_readers = n_readers
        self._readers: list[RowReader] = []
        self._idle: SimpleQueue[RowReader | None] = SimpleQueue()
        self._numbers = itertools.count()
        self._threads = ThreadPoolExecutor(max(n_readers, n_threads))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        for each in self._readers:
            each.close()

    def row(self, id_: str) -> Future[dict[str, Any]]:
        return self._threads.submit(_told, self._runs, id_, self._read)

    def _read(self, path: str) -> dict[str, Any]:
        number = next(self._numbers)
        if not self._n_readers or number < RUNS_EACH:
            return read_row(path)
        if number == RUNS_EACH:
            self._start()
        reader = self._idle.get()
        try:
            return read_row(path) if reader is None else reader.read(path)
        finally:
            self._idle.put(reader)

    def _start(self) -> None:
        for _ in range(self._n_readers):
            reader = None
            with contextlib.suppress(OSError):  # Too many processes: this one reads.
                reader = RowReader()
                self._readers.append(reader)
            self._idle.put(reader)


def _with_common(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return rows without the settings that all of them share, and these."""
    settings = [each["record"]["settings"] for each in rows if "record" in each]
    common = {
        name: value
        for name, value in (settings[0] if settings else {}).items()
        if all(name in each and each[name] == value for each in settings)
    }
    return {"common": common, "runs": [_without(each, common) for each in rows]}


def _without(row: dict[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    if "record" not in row:
        return row
    record = row["record"]
    own = {n: value for n, value in record["settings"].items() if n not in common}
    return {**row, "record": {**record, "settings": own}}


def _to_read(runs: Runs, ids: Sequence[str]) -> tuple[int, int]:
    """Return how many runs are not known yet: in stores, and of this machine."""
    found = [0, 0]
    for id_ in ids:
        with contextlib.suppress(TdbgError):
            if runs.known(id_) is None:
                found[not runs.is_far(id_)] += 1
    return found[0], found[1]


def _listed(runs: Runs, id_: str) -> dict[str, Any]:
    try:
        known = runs.known(id_)
        if known is None:
            known = runs.glance(id_)
        return {**_named(runs, id_), **known}
    except TdbgError as error:
        return _unreadable(runs, id_, error)


def _told(
    runs: Runs, id_: str, read: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    try:
        return {**_named(runs, id_), **runs.row(id_, read, row_of)}
    except TdbgError as error:
        return _unreadable(runs, id_, error)


def _named(runs: Runs, id_: str) -> dict[str, Any]:
    """Name of a run, where it is, and what somebody said about it."""
    try:
        said = runs.annotation(id_).to_json()
    except TdbgError as error:
        said = {**NOTHING.to_json(), "unsaid": str(error)}
    return {"id": id_, "name": runs.name(id_), "is_far": runs.is_far(id_), **said}


def _unreadable(runs: Runs, id_: str, error: TdbgError) -> dict[str, Any]:
    try:
        name = runs.name(id_)
    except TdbgError:
        name = id_
    return {"id": id_, "name": name, **RunRow(None, str(error)).to_json()}
