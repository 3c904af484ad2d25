"""Tensors that a training could not capture, and why, as its events tell.

Thread safety: values and pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tdbg.config.messages import printable
from tdbg.config.quantities import conjoin

__all__ = ["Refused", "enumerated", "in_words"]

WHAT = "refused"
# So many tensors are named in a sentence; the rest is counted.
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Refused:
    """Records of one tensor that could not be captured.

    Attributes:
        tensor: Its name.
        reason: Why not.
        records: How many records.
        step: The first step that lacks one; -1: none in particular.
    """

    tensor: str
    reason: str
    records: int
    step: int

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold: the event, and what displays send."""
        return {
            "what": WHAT,
            "tensor": self.tensor,
            "reason": self.reason,
            "records": self.records,
            "step": self.step,
        }

    @classmethod
    def of_event(cls, data: Mapping[str, Any]) -> Refused | None:
        """Return what an event says; None if it is about something else."""
        if data.get("what") != WHAT:
            return None
        try:
            return cls(
                str(data["tensor"]),
                str(data["reason"]),
                int(data["records"]),
                int(data["step"]),
            )
        except (KeyError, TypeError, ValueError):
            return None


def in_words(
    refused: Iterable[Refused], others: Mapping[str, int] | None = None
) -> str:
    """Name the tensors and the reasons; empty if there are none.

    Args:
        refused: The tensors that have names.
        others: By reason, how many more there are.

    Example:
        >>> in_words([Refused("gradient/a", "it is sparse", 2, 0)])
        'gradient/a: it is sparse'
    """
    names: dict[str, list[str]] = {}
    for each in refused:
        names.setdefault(each.reason, []).append(each.tensor)
    more = others or {}
    return "; ".join(
        f"{enumerated(tensors, more.get(reason, 0))}: {printable(reason)}"
        for reason, tensors in names.items()
    )


def enumerated(tensors: Iterable[str], n_more: int = 0) -> str:
    """Name the first tensors, and say how many others there are.

    Args:
        tensors: Their names.
        n_more: How many there are that have no names here.

    Example:
        >>> enumerated(["a", "b", "c", "d"], 3)
        'a, b, c and 4 more'
    """
    names = [*tensors]
    listed = [printable(name) for name in names[:MOST_NAMED]]
    more = len(names) - len(listed) + n_more
    return conjoin(listed + ([f"{more:,} more"] if more else []))
