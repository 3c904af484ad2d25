"""The numbers that a run holds on disk, each once: docs/format.md.

The writing and the reading side both import them from here, and
tests/python/run/test_schema.py compares them with the core's.  Roles of tensors and
modes are on disk too, but are defined where users import them: ``tdbg.config.Role``
and ``tdbg.modes.ModeKeys``.

On disk: never renumber.
"""

from __future__ import annotations

import enum
import hashlib

__all__ = [
    "ALIGNMENT",
    "CHUNK_BYTES",
    "MAX_NAME_BYTES",
    "RECORD_HEADER_BYTES",
    "EventKind",
    "GapContent",
    "GapReason",
    "PlacementKind",
    "RowFlag",
    "StepFlag",
    "stored_name",
]

#: Bytes that the beginning of every record is aligned to.
ALIGNMENT = 64
#: Size of a record's header, in bytes.
RECORD_HEADER_BYTES = 64
#: Bytes of a tensor that are compressed and checked together.
CHUNK_BYTES = 256 * 1024
#: The longest name that is stored as it is, in bytes.
MAX_NAME_BYTES = 4096


def stored_name(name: str) -> str:
    """Return the name under which a tensor of this name is stored.

    A longer one than ``MAX_NAME_BYTES`` is cut and completed with its SHA-256, so that
    different names stay different.

    Example:
        >>> stored_name("fc.weight"), len(stored_name("x" * 5000))
        ('fc.weight', 4096)
    """
    if len(name) <= MAX_NAME_BYTES // 4:
        return name
    data = name.encode(errors="backslashreplace")
    if len(data) <= MAX_NAME_BYTES:
        return name
    head = data[: MAX_NAME_BYTES - 65].decode(errors="ignore")
    return f"{head}#{hashlib.sha256(data).hexdigest()}"


class EventKind(enum.IntEnum):
    """The content of an ``event`` record."""

    CONFIGURATION = 1
    COLLECTIONS = 2
    CHANGE = 3
    FINDING = 4
    STATUS = 5
    MESSAGE = 6


class StepFlag(enum.IntEnum):
    """Exceptional facts about a step; bits."""

    SKIPPED = 1
    """The gradient scaler left the optimizer's update out."""
    INTERRUPTED = 2
    """The step did not end in order."""
    SAMPLED = 4
    """Values were left out on purpose: the overflow policy is ``sample``."""


class RowFlag(enum.IntEnum):
    """Exceptional facts about a row of statistics; bits."""

    RESCALED = 1
    """The values were multiplied by a factor first, such as 1 / loss scale."""


class PlacementKind(enum.IntEnum):
    """The way in which a dimension of the ranks holds a tensor."""

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
    RETENTION = 9


class GapContent(enum.IntEnum):
    """The types of the dropped records; bits."""

    ROWS = 1
    TENSORS = 2
    SCALARS = 4
    STEPS = 8
    EVENTS = 16
    SPANS = 32
    HISTOGRAMS = 64
    SAMPLES = 128
