"""Counts records that cannot be captured, and writes down of which tensors, and why.

Thread safety: as the writer; two threads at once may count one record too few.

Errors: those of the core's writer.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from tdbg.config.quantities import plural
from tdbg.run.refused import Refused, in_words
from tdbg.run.schema import EventKind

if TYPE_CHECKING:
    from tdbg.capture.writer import Writer

__all__ = ["Refusals"]

# So many tensors are named; a program may make names without end.
MAX_NAMED = 200
_INFORMATION = 1
_log = logging.getLogger("tdbg")


class Refusals:
    """The records of one writer that were refused.

    Args:
        writer: Counts them, and has their events.

    Attributes:
        n: How many there were.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._found: dict[tuple[str, str], Refused] = {}
        self._written: dict[tuple[str, str], int] = {}
        self.n = 0

    def add(
        self, step: int, tensor: str, reason: str, n_records: int = 1, n_bytes: int = 0
    ) -> None:
        """Count records of a tensor that cannot be captured.

        Args:
            step: The step.
            tensor: Its name.
            reason: Why not.
            n_records: How many records.
            n_bytes: Their size, if it is known.
        """
        self.n += n_records
        self._writer.refuse(step, n_records, n_bytes)
        key = tensor, reason
        before = self._found.get(key)
        if before is not None:
            n_records += before.records
            self._found[key] = Refused(tensor, reason, n_records, before.step)
        elif len(self._found) < MAX_NAMED:
            self._found[key] = Refused(tensor, reason, n_records, step)
            self._write(key)

    def conclude(self) -> None:
        """Write how many there were, and log it: the training has ended."""
        for key, each in self._found.items():
            if self._written[key] != each.records:
                self._write(key)
        if self._found:
            _log.warning(
                "tdbg could not capture %s of %s",
                plural(self.n, "record"),
                in_words(self._found.values()),
            )

    def _write(self, key: tuple[str, str]) -> None:
        found = self._found[key]
        self._written[key] = found.records
        text = json.dumps(found.to_json(), separators=(",", ":")).encode()
        self._writer.event(found.step, EventKind.MESSAGE, _INFORMATION, text)
