"""Replicas: several workers of a training that one process runs.

Some frameworks train on several devices from one process: each device has a replica of
the model and its share of the batch (``tf.distribute.MirroredStrategy``).  Readers see
each replica as a worker, as they see each rank of a training with several processes.
The session records the first replica.  Every other replica has a writer of its own, and
the session ends its steps too.  Only the first replica records what all of them share.

If several processes have replicas, the first replica of each process has the rank of
the process, and the others have the numbers above.

Thread safety: that of the session.

Errors: if the writer of a replica cannot be opened, tdbg logs one warning, and refuses
and counts the records of that replica.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tdbg.errors import TdbgError

if TYPE_CHECKING:
    from tdbg.capture.events import StepWriter
    from tdbg.capture.recorder import Recorder, StepContext
    from tdbg.capture.tensor_entry import TensorEntry
    from tdbg.capture.writer import Writer

__all__ = ["Replicas", "worker_rank"]

_log = logging.getLogger("tdbg")
# Counters of writers that count no records, bytes or steps.
_WORST = frozenset({"state", "last_errno", "silence_ms"})


def worker_rank(replica: int, rank: int, world_size: int) -> int:
    """Return the rank of a replica among all workers.

    Args:
        replica: The number of the replica in its process.
        rank: The rank of the process.
        world_size: How many processes train.

    Example:
        >>> [worker_rank(replica, 0, 1) for replica in range(3)]
        [0, 1, 2]
        >>> [worker_rank(replica, 1, 2) for replica in range(3)]
        [1, 3, 5]
    """
    return rank + replica * world_size


class Replicas:
    """The workers of one session: one for each replica in its process.

    Args:
        recorder: The recorder of the session, which records the first replica.
        step_writer: Logs the records that writers lose.

    Attributes:
        open_recorder: Opens the recorder of a replica, given its number and the number
            of replicas; raises TdbgError. None: this process writes no files.
    """

    def __init__(self, recorder: Recorder, step_writer: StepWriter) -> None:
        self._first = recorder
        self._others: list[Recorder] = []
        self._step_writer = step_writer
        self.open_recorder: Callable[[int, int], Recorder] | None = None

    # ---- opening -------------------------------------------------------------

    def expect(self, n: int) -> None:
        """Make a worker of each of *n* replicas that is not one yet.

        Call it before the first step of these replicas, because it creates files.
        """
        while self.open_recorder is not None and len(self._others) + 1 < n:
            number = len(self._others) + 1
            try:
                made = self.open_recorder(number, n)
            except TdbgError as error:
                self.open_recorder = None
                _log.warning(
                    "tdbg captures nothing from replica %d of %d on, because "
                    "its worker cannot write: %s",
                    number,
                    n,
                    error,
                )
                return
            self._add(made)

    def _add(self, recorder: Recorder) -> None:
        self._others.append(recorder)
        self._step_writer.watch_losses(recorder.writer)
        self._first.write_end = self._first.pending.write_end = self._write_ends

    def _write_ends(self, number: int, mode: int, mode_step: int, **rest: Any) -> None:
        for writer in self._writers():
            writer.end_step(number, mode, mode_step, **rest)

    def _writers(self) -> Iterator[Writer]:
        yield self._first.writer
        for each in self._others:
            yield each.writer

    # ---- tensors -------------------------------------------------------------

    def take(
        self,
        replica: int,
        context: StepContext,
        entries: Sequence[TensorEntry],
        tensors: Sequence[Any],
        flags: Sequence[int],
        micro_batch: int = 0,
    ) -> None:
        """Capture tensors of one replica now.

        A dry run measures the first replica only.

        Args:
            replica: The number of the replica.
            context: The step.
            entries: The names of the tensors, as the session has them.
            tensors: The tensors.
            flags: What to capture of each, as the step plan says.
            micro_batch: Number of the forward in the step.
        """
        if not replica:
            self._first.take(context, entries, tensors, flags, 0, micro_batch)
        elif replica <= len(self._others):
            recorder = self._others[replica - 1]
            own = [_same(recorder, entry) for entry in entries]
            recorder.take(context, own, tensors, flags, 0, micro_batch)
        elif self._first.batch_capture is not None:
            for entry in entries:
                self._first.refuse(context, entry.name, "its replica has no writer")

    def refresh(self) -> None:
        """Decide anew what to capture for each name."""
        for each in (self._first, *self._others):
            each.refresh()

    # ---- writers -------------------------------------------------------------

    def flush(self, durable: bool, timeout: float) -> None:
        """Return when everything recorded so far can be read.

        Raises:
            StorageError: If it could not be written.
        """
        deadline = time.monotonic() + timeout
        for writer in self._writers():
            writer.flush(durable, max(0.0, deadline - time.monotonic()))

    def close(self, timeout: float) -> bool:
        """Close the writers within *timeout* seconds; True if all was written."""
        deadline = time.monotonic() + timeout
        closed = [
            writer.close(max(0.0, deadline - time.monotonic()))
            for writer in self._writers()
        ]
        return all(closed)

    def counters(self) -> dict[str, int]:
        """Return the counters of all writers: sums, and for states the worst."""
        every = [writer.counters() for writer in self._writers()]
        return {
            name: (max if name in _WORST else sum)([each[name] for each in every])
            for name in every[0]
        }

    @property
    def n_refused(self) -> int:
        """Number of tensors that could not be captured."""
        return sum(each.n_refused for each in (self._first, *self._others))

    @property
    def n_repeated(self) -> int:
        """Return the number of repeated rows of all replicas."""
        return sum(each.n_repeated for each in (self._first, *self._others))


def _same(recorder: Recorder, entry: TensorEntry) -> TensorEntry:
    """Return the entry that a recorder has for an entry of the session."""
    own = recorder.entries.get((entry.name, entry.role))
    if own is not None:
        return own
    facts = entry.aliases, entry.classes, entry.unit_spec
    return recorder.entry(entry.name, entry.role, *facts)
