"""What who writes a run at a URL holds: its spool, and the process that ships it.

Nothing here loads the library of a store: that is for the process.

Thread safety: any thread.

Errors: joining raises; after that nothing does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from tdbg.config.quantities import plural
from tdbg.errors import ConfigurationError, StorageError, TdbgError
from tdbg.remote.spool import (
    READY,
    STATUS_NOTE,
    join_spool,
    leave_spool,
    read_note,
    spool_of,
    try_to_lead,
)
from tdbg.remote.stores import check_url
from tdbg.run.json_values import load_json, mapping_of

__all__ = [
    "Shipping",
    "leave_waiting_to_launcher",
    "ship_seconds",
    "wait_until_sent",
]

_log = logging.getLogger("tdbg")

# A shard is sealed, and shipped, at this size or age: docs/remote.md.
SHARD_BYTES = 64 << 20
SHARD_AGE_SECONDS = 30.0
SPOOL_BYTES = 2 << 30
WAIT_VARIABLE = "TDBG_SHIP_SECONDS"
WAIT_SECONDS = 60.0
OPENING_SECONDS = 40.0
# A process that dies is started again after these pauses.
RESTART_SECONDS = (1.0, 10.0, 60.0)
_LOOK_SECONDS = 0.05
# URLs for which the process that has launched this one waits at its end.
_awaited: set[str] = set()


def leave_waiting_to_launcher(url: str) -> None:
    """At its exit, this process does not wait until what it wrote to a URL is sent."""
    _awaited.add(check_url(url))


def ship_seconds() -> float:
    """How long a process waits at its exit until everything was shipped."""
    try:
        return max(0.0, float(os.environ.get(WAIT_VARIABLE, "")))
    except ValueError:
        return WAIT_SECONDS


class Shipping:
    """A writer's share in the spool of a run at a URL.

    Args:
        url: Of the run.

    Attributes:
        url: Of the run.
        path: The spool: a run directory of this machine.

    Raises:
        ConfigurationError: If the URL is bad, or a library is missing.
        StorageError: If the store refuses or does not answer, or the spool cannot be
            made.

    Example:
        >>> with Shipping("s3://bucket/run") as shipping:  # doctest: +SKIP
        ...     write_to(shipping.path)
    """

    def __init__(self, url: str) -> None:
        self.url = check_url(url)
        self.path = join_spool(self.url)
        self._has_left = False
        try:
            self._begin(time.monotonic() + OPENING_SECONDS)
        except BaseException:
            self.leave()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def _begin(self, deadline: float) -> None:
        """Start the process, or wait until that of another writer can begin."""
        while True:
            lock = try_to_lead(self.path)
            if lock is not None:
                with contextlib.suppress(FileNotFoundError):
                    (self.path / READY).unlink()
                _watch(_start(self.path, self.url, lock, deadline), self.path, self.url)
                return
            if (self.path / READY).exists():
                return
            if time.monotonic() > deadline:
                msg = f"{self.url} does not answer"
                raise StorageError(msg, file=self.url, kind="io")
            time.sleep(_LOOK_SECONDS)

    def bounds(self, spool_bytes: int | None = None) -> dict[str, float]:
        """How the core's writer is to write to the spool: arguments of ``Capture``.

        Args:
            spool_bytes: The most that is to wait there; None: 2 GiB.
        """
        bound = SPOOL_BYTES if spool_bytes is None else spool_bytes
        return {
            "shard_age": SHARD_AGE_SECONDS,
            "shard_bytes": min(SHARD_BYTES, bound // 4),
            "spool_bytes": bound,
        }

    def leave(self) -> None:
        """Write no more; what is in the spool is shipped all the same."""
        if not self._has_left:
            self._has_left = True
            leave_spool(self.path)

    def finish(self, seconds: float | None = None) -> bool:
        """Leave, and wait until everything was shipped.

        What is not is logged, with the command that resumes.

        Args:
            seconds: How long to wait; None: ``$TDBG_SHIP_SECONDS``, or a minute.

        Returns:
            Whether everything is there.
        """
        self.leave()
        rest = wait_until_sent(self.url, seconds)
        if rest:
            _log.warning("%s", rest)
        return not rest

    def end(self) -> None:
        """``finish``, at the exit of the process; raises nothing."""
        with contextlib.suppress(Exception):
            if self.url in _awaited:
                self.leave()
            else:
                self.finish()


def wait_until_sent(
    url: str, seconds: float | None = None, *, until: Callable[[], bool] = bool
) -> str:
    """Wait until everything that this machine has written to a URL is there.

    REQUIRES: this process does not write there any more.

    Args:
        url: Of the run.
        seconds: How long to wait; None: ``$TDBG_SHIP_SECONDS``, or a minute.
        until: Returns True if it is to wait no longer.

    Returns:
        What is not there, and the command that resumes; "" if everything is.
    """
    path = spool_of(url)
    deadline = time.monotonic() + (ship_seconds() if seconds is None else seconds)
    while path.exists() and time.monotonic() < deadline and not until():
        _revive(path, url, deadline)
        time.sleep(_LOOK_SECONDS)
    return _rest_in(path, url) if path.exists() else ""


def _rest_in(path: Path, url: str) -> str:
    left = []
    for each in path.glob("w/*/*.td?"):
        with contextlib.suppress(FileNotFoundError):  # It is there by now.
            left.append(each.stat().st_size)
    why = read_note(path, STATUS_NOTE).get("error") or "there was no time"
    return (
        f"{plural(len(left), 'file')} ({sum(left) / 1e6:.1f} MB) "
        f"{'is' if len(left) == 1 else 'are'} not at {url} yet ({why}). A process of "
        f"this machine goes on sending; if it ends before, `tdbg ship {path}` resumes"
    )


def _start(path: Path, url: str, lock: int, deadline: float) -> subprocess.Popen[bytes]:
    """Start the process, which inherits the lock, and wait until it can begin."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TDBG_DISABLED": "1"}
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(Path(__file__).parents[2])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(lock,),
            start_new_session=True,
            env=environment,
        )
    except OSError as error:
        raise StorageError.of(error, "start the process that ships to", url) from error
    finally:
        os.close(lock)
    # By its input: arguments are seen by everybody.
    asked = json.dumps({"spool": str(path), "url": url}).encode() + b"\n"
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # type: ignore[union-attr]
        stdin.write(asked)
    refusal = _error_of(_answer_of(process, deadline))
    if refusal is not None:
        process.wait()
        raise refusal
    return process


def _error_of(answer: Mapping[str, Any]) -> TdbgError | None:
    """The error that an answer of the process tells of; None: it could begin."""
    text = answer.get("error")
    if text is None:
        return None
    if answer.get("class") == ConfigurationError.__name__:
        return ConfigurationError(text)
    return StorageError(text, kind=answer.get("kind"))


_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop()); "
    "from tdbg.remote.process import main; sys.exit(main())"
)


def _answer_of(process: subprocess.Popen[bytes], deadline: float) -> dict[str, Any]:
    """The line that the process says when it can begin, or cannot."""
    with process.stdout as output:  # type: ignore[union-attr]
        line = b""
        while not line.endswith(b"\n"):
            wait = max(0.0, deadline - time.monotonic())
            if not select.select([output], [], [], wait)[0]:
                process.kill()
                return {"error": "the process that ships the run does not answer"}
            piece = os.read(output.fileno(), 1 << 16)
            if not piece:
                break
            line += piece
    try:
        return dict(mapping_of(load_json(line)))
    except ValueError:
        return {"error": "the process that ships the run has ended at once"}


def _watch(process: subprocess.Popen[bytes], path: Path, url: str) -> None:
    """Start the process again if it dies, from a thread that sleeps until then."""

    def watch() -> None:
        running = process
        for pause in (*RESTART_SECONDS, None):
            if running.wait() == 0 or pause is None:
                return
            time.sleep(pause)
            lock = try_to_lead(path) if path.exists() else None
            if lock is None:
                return
            try:
                running = _start(path, url, lock, time.monotonic() + OPENING_SECONDS)
            except Exception as error:
                _log.warning("what is written to %s is not sent: %s", url, error)
                return

    threading.Thread(target=watch, name="tdbg-shipping", daemon=True).start()


def _revive(path: Path, url: str, deadline: float) -> None:
    """Start the process if there is none any more."""
    with contextlib.suppress(OSError):
        lock = try_to_lead(path)
        if lock is not None:
            _watch(_start(path, url, lock, deadline), path, url)
