"""The numbers that a run holds on disk, each once: docs/format.md.

The writing and the reading side both import them from here, and
tests/python/run/test_schema.py compares them with the core's.  Roles of tensors and
modes are on disk too, but are defined where users import them: ``tdbg.config.Role``
and ``tdbg.modes.ModeKeys``.

On disk: never renumber.
"""

from __future__ import annotations

import enum

__all__ = [
    "ALIGNMENT",
    "CHUNK_BYTES",
    "RECORD_HEADER_BYTES",
    "EventKind",
    "GapContent",
    "GapReason",
    "PlacementKind",
    "RowFlag",
    "StepFlag",
]

#: Bytes that the beginning of every record is aligned to.
ALIGNMENT = 64
#: Size of a record's header, in bytes.
RECORD_HEADER_BYTES = 64
#: Bytes of a tensor that are compressed and checked together.
CHUNK_BYTES = 256 * 1024


class EventKind(enum.IntEnum):
    """What an ``event`` record says."""

    CONFIGURATION = 1
    COLLECTIONS = 2
    CHANGE = 3
    FINDING = 4
    STATUS = 5
    MESSAGE = 6


class StepFlag(enum.IntEnum):
    """What was special about a step; bits."""

    SKIPPED = 1
    """The gradient scaler left the optimizer's update out."""
    INTERRUPTED = 2
    """The step did not end in order."""
    SAMPLED = 4
    """Values were left out on purpose: the overflow policy is ``sample``."""


class RowFlag(enum.IntEnum):
    """What was special about a row of statistics; bits."""

    RESCALED = 1
    """The values were multiplied by a factor first, such as 1 / loss scale."""


class PlacementKind(enum.IntEnum):
    """How a dimension of the ranks holds a tensor."""

    SHARD = 1
    REPLICATE = 2
    PARTIAL = 3


class GapReason(enum.IntEnum):
    """Why records were dropped."""

    QUEUE_FULL = 1
    DISK_NEARLY_FULL = 2
    IO_ERROR = 3
    LARGER_THAN_QUEUE = 4
    REFUSED = 5
    STALLED = 6
    SAMPLED = 7
    DEVICE_ERROR = 8


class GapContent(enum.IntEnum):
    """What was among the dropped records; bits."""

    ROWS = 1
    TENSORS = 2
    SCALARS = 4
    STEPS = 8
    EVENTS = 16
    SPANS = 32
    HISTOGRAMS = 64
