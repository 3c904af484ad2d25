"""The folder of an export: a sub-folder for each mode, with one file for each run.

The name of the file has the identity of the run.  The file appears whole and replaces
that of an earlier export, so that nothing appears twice when a run is exported again.
Files that tdbg has not made are left alone.

Thread safety: none.  Between processes: one exports into a folder at a time.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from tdbg._core import masked_crc32c
from tdbg.errors import ConfigurationError, StorageError
from tdbg.modes import ModeKeys
from tdbg.stats.histogram import INFINITY, SIGN, Histogram

__all__ = [
    "EventFile",
    "ExportFolder",
    "Messages",
    "buckets",
    "record",
    "require_tensorboard",
]


LOOK_SECONDS = 0.05
_BUFFER = 1 << 20
_BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
_MODES = tuple(mode.name for mode in ModeKeys)


class EventFile:
    """A file of records, which readers see once it is published.

    Attributes:
        path: Path of the published file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f".tdbg-{path.name}.tmp")
        self._is_published = False
        with _storage(path, "write"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.parent.is_symlink():
                raise OSError(errno.ELOOP, "the folder is a symbolic link")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._temporary, flags, 0o666)
            self._file: BinaryIO = os.fdopen(descriptor, "wb", _BUFFER)

    def append(self, record: bytes) -> None:
        """Append a record.

        Raises:
            StorageError: If the record cannot be written.
        """
        with _storage(self.path, "write"):
            self._file.write(record)

    def publish(self) -> None:
        """Show readers all records that were appended so far.

        Raises:
            StorageError: If the file cannot be written.
        """
        with _storage(self.path, "write"):
            self._file.flush()
            if not self._is_published:
                self._temporary.replace(self.path)
                self._is_published = True

    def close(self) -> None:
        """Close the file, and remove it if it was never published."""
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._is_published:
            self._temporary.unlink(missing_ok=True)


class ExportFolder:
    """The folder that one run is exported to; locked until it is closed.

    Args:
        out: The folder; made if it does not exist.
        uuid: The run's identity, in hex.
        created: When the run was made, as ISO 8601 text.
        beside: Whether the folder may hold exports of other runs.
        wait: Seconds to wait for another export into the folder to end.

    Raises:
        ConfigurationError: If the folder contains the export of another run.
        StorageError: If the folder cannot be written, or another export locks it.
    """

    def __init__(
        self,
        out: Path,
        uuid: str,
        created: str,
        *,
        beside: bool = False,
        wait: float = 0.0,
    ) -> None:
        self.out = out
        self.created = _seconds(created)
        self._name = f"events.out.tfevents.{int(self.created):010d}.tdbg.{uuid}"
        self._files: dict[str, EventFile] = {}
        with _storage(out, "make"):
            out.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._lock = os.open(out, flags)
        try:
            self._hold(wait)
            other = next((path for path in self._exports(of_others=True)), None)
            if other is not None and not beside:
                msg = (
                    f"{out} contains the export of another run ({other.parent.name}/"
                    f"{other.name}), and TensorBoard would show both as one: choose "
                    "another folder for this one"
                )
                raise ConfigurationError(msg)
            self._sweep()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def files(self) -> dict[str, str]:
        """The paths of the files, by mode."""
        return {mode: str(file.path) for mode, file in sorted(self._files.items())}

    def file(self, mode: str) -> EventFile | None:
        """The file of a mode; None if it was not begun."""
        return self._files.get(mode)

    def begin(self, mode: str) -> EventFile:
        """Begin the file of a mode.

        Raises:
            StorageError: If the file cannot be written.
        """
        file = self._files[mode] = EventFile(self.out / mode / self._name)
        return file

    def publish(self) -> None:
        """Publish all files; remove those of an earlier export that have none now.

        Raises:
            StorageError: If a file cannot be written or removed.
        """
        for file in self._files.values():
            file.publish()
        for path in self._exports(of_others=False):
            if path.parent.name not in self._files:
                with _storage(path, "remove"):
                    path.unlink(missing_ok=True)

    def restart(self) -> None:
        """Discard all files; those of an earlier export stay until ``publish``."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def close(self) -> None:
        """Unlock the folder; what was not published is lost."""
        self.restart()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _hold(self, wait: float) -> None:
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _BUSY:
                    return  # A file system without locks.
                if time.monotonic() >= deadline:
                    msg = f"another export is writing to {self.out}"
                    raise StorageError(msg, file=str(self.out), kind="busy") from error
                time.sleep(LOOK_SECONDS)
            else:
                return

    def _exports(self, *, of_others: bool) -> Iterator[Path]:
        for mode in _MODES:
            for path in sorted((self.out / mode).glob("events.out.tfevents.*.tdbg.*")):
                if (path.name != self._name) == of_others:
                    yield path

    def _sweep(self) -> None:
        """Remove the temporary files of exports that were killed."""
        for mode in _MODES:
            for path in (self.out / mode).glob(".tdbg-*.tmp"):
                with contextlib.suppress(OSError):
                    path.unlink()


def _seconds(created: str) -> float:
    try:
        return max(0.0, dt.datetime.fromisoformat(created).timestamp())
    except (ValueError, OverflowError):
        return 0.0


@contextlib.contextmanager
def _storage(path: Path, what: str) -> Iterator[None]:
    """Raise failures as StorageErrors that name the path."""
    try:
        yield
    except OSError as error:
        raise StorageError.of(error, what, path) from error


_SHIFT = 4  # 2^4 bins make a bucket.
_END = INFINITY >> _SHIFT

Column = NDArray[np.float64]


def buckets(histogram: Histogram) -> tuple[Column, Column]:
    """Make the buckets of TensorBoard from the finite elements of a histogram.

    A bucket begins where the one before it ends, so that the gaps are empty buckets;
    the first one begins at its least element.

    Returns:
        The right edges of the buckets, ascending, and their numbers of elements; both
        are empty if no element is finite.
    """
    magnitude = (histogram.keys & ~np.uint16(SIGN)).astype(np.int64)
    finite = magnitude < INFINITY
    place = magnitude[finite] >> _SHIFT
    place[histogram.keys[finite] >= SIGN] *= -1
    found, which = np.unique(place, return_inverse=True)
    counts = np.bincount(which, histogram.counts[finite], len(found))
    # An empty bucket ends where the bucket after a gap begins.
    gaps = np.flatnonzero(np.diff(found) > 1) + 1
    limits = np.insert(_right(found), gaps, _left(found[gaps]))
    return limits, np.insert(counts, gaps, 0.0)


def _right(place: NDArray[np.int64]) -> Column:
    return np.where(place >= 0, _edge(place + 1), -_edge(-place))


def _left(place: NDArray[np.int64]) -> Column:
    return np.where(place > 0, _edge(place), -_edge(1 - place))


def _edge(place: NDArray[np.int64]) -> Column:
    """The edge nearer to zero of each positive bucket; arbitrary for the others."""
    bits = np.clip(place, 0, _END).astype(np.uint32) << (16 + _SHIFT)
    edges = bits.view(np.float32).astype(np.float64)
    return np.where(place == _END, 2.0**128, edges)


def require_tensorboard() -> Messages:
    """Load the messages of TensorBoard.

    Raises:
        ConfigurationError: If the package ``tensorboard`` is missing or does not work.
    """
    try:
        return Messages()
    except Exception as error:  # A protobuf that does not fit raises anything.
        msg = (
            "TensorBoard files need the tensorboard package, which is missing or does "
            f"not work ({error}): pip install 'tdbg[tensorboard]'"
        )
        raise ConfigurationError(msg) from error


class Messages:
    """Makes events of TensorBoard."""

    def __init__(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SourceMetadata
        from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

        self._event = Event
        self._source = SourceMetadata
        self._summary = Summary
        self._histogram = HistogramProto

    def header(self, wall_time: float) -> Any:
        """The first event of a file."""
        return self._event(
            wall_time=wall_time,
            file_version="brain.Event:2",
            source_metadata=self._source(writer="tdbg"),
        )

    def scalars(
        self, step: int, wall_time: float, values: Iterable[tuple[str, float]]
    ) -> Any:
        """An event with numbers by tag; TensorBoard holds numbers as float32."""
        with np.errstate(over="ignore"):
            found = [
                self._summary.Value(tag=tag, simple_value=float(np.float32(value)))
                for tag, value in values
            ]
        summary = self._summary(value=found)
        return self._event(step=step, wall_time=wall_time, summary=summary)

    def histogram(
        self,
        step: int,
        wall_time: float,
        tag: str,
        histogram: Histogram,
        row: tuple[float, float, float, float],
    ) -> Any:
        """An event with a histogram of at least one finite element.

        Args:
            step: Number of the step.
            wall_time: Time of the step, in seconds since 1970.
            tag: Name of the histogram.
            histogram: The counts.
            row: Minimum, maximum, mean and l2 norm of the finite elements.
        """
        limits, counts = buckets(histogram)
        low, high, mean, l2 = row
        limits[-1] = max(limits[-1], high)
        number = float(counts.sum())
        message = self._histogram(
            min=low,
            max=high,
            num=number,
            sum=mean * number,
            sum_squares=l2 * l2,
            bucket_limit=limits.tolist(),
            bucket=counts.tolist(),
        )
        value = self._summary.Value(tag=tag, histo=message)
        summary = self._summary(value=[value])
        return self._event(step=step, wall_time=wall_time, summary=summary)


def record(event: Any) -> bytes:
    """Frame an event as it stands in a file: length, checksums and bytes."""
    data: bytes = event.SerializeToString(deterministic=True)
    length = struct.pack("<Q", len(data))
    return b"".join(
        (
            length,
            struct.pack("<I", masked_crc32c(length)),
            data,
            struct.pack("<I", masked_crc32c(data)),
        )
    )
