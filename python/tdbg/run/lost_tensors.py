"""The tensors of records that a writer of the core lost, and why, as its events tell.

Thread safety: values and pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tdbg.run.refused import Refused
from tdbg.run.schema import GapReason

__all__ = ["LOSS_REASONS", "LostTensors"]

WHAT = "lost"
# Complete what was lost by a reason why.
LOSS_REASONS = {
    GapReason.QUEUE_FULL: "the queue was full",
    GapReason.DISK_NEARLY_FULL: "the disk was nearly full",
    GapReason.IO_ERROR: "the disk refused to write",
    GapReason.LARGER_THAN_QUEUE: "it does not fit into the queue",
    GapReason.REFUSED: "nothing can store it",
    GapReason.STALLED: "the disk made no progress",
    GapReason.SAMPLED: "left out, so that other steps could be kept whole",
    GapReason.DEVICE_ERROR: "the device did not deliver it",
}


@dataclass(frozen=True, slots=True)
class LostTensors:
    """Tensors that lost records for one reason.

    Attributes:
        reason: Why.
        tensors: Those that the writer names; a row or a scalar counts as a record.
        more: How many others there are.
    """

    reason: GapReason
    tensors: tuple[Refused, ...]
    more: int

    @classmethod
    def of_event(cls, data: Mapping[str, Any]) -> LostTensors | None:
        """Return what an event says; None if it is about something else.

        Example:
            >>> event = {"what": "lost", "reason": 1, "tensors": [], "more": 2}
            >>> LostTensors.of_event(event).more
            2
        """
        if data.get("what") != WHAT:
            return None
        try:
            reason = GapReason(int(data["reason"]))
            words = LOSS_REASONS[reason]
            tensors = tuple(
                Refused(
                    str(each["tensor"]),
                    words,
                    int(each["records"]),
                    int(each["step"]),
                )
                for each in data["tensors"]
            )
            return cls(reason, tensors, int(data["more"]))
        except (KeyError, TypeError, ValueError):
            return None
