"""Events of TensorBoard, and the records that its files are made of.

Only the messages come from the package ``tensorboard``.  Its own writer would import
TensorFlow where that is installed, and computes checksums in Python; the records are
those of TFRecord, whose checksum is that of tdbg's shards.

Thread safety: pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from tdbg import _core
from tdbg.errors import ConfigurationError
from tdbg.export.buckets import buckets
from tdbg.histogram import Histogram

__all__ = ["Messages", "record", "require_tensorboard"]


def require_tensorboard() -> Messages:
    """The messages of TensorBoard.

    Raises:
        ConfigurationError: If its package is missing or does not work.
    """
    try:
        return Messages()
    except Exception as error:  # A protobuf that does not fit raises anything.
        msg = (
            "files of TensorBoard need its package, which is not there or does not "
            f"work ({error}): pip install 'tdbg[tensorboard]'"
        )
        raise ConfigurationError(msg) from error


class Messages:
    """Makes events."""

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
        """Numbers by tag; TensorBoard holds them in float32."""
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
        """A histogram of at least one finite element.

        Args:
            step: The step.
            wall_time: When, in seconds since 1970.
            tag: Its name.
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
    """An event as it stands in a file."""
    data: bytes = event.SerializeToString(deterministic=True)
    length = struct.pack("<Q", len(data))
    return b"".join(
        (
            length,
            struct.pack("<I", _core.masked_crc32c(length)),
            data,
            struct.pack("<I", _core.masked_crc32c(data)),
        )
    )
