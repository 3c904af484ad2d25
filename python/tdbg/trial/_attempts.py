"""Attempts of a training, and which steps of which writer count.

A training that is resumed writes into new directories.  From its first step on it
replaces what earlier attempts wrote: a step that was repeated, or that came after
the checkpoint from which it resumed, is the newest attempt's or nobody's.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tdbg.errors import QueryError
from tdbg.trial._writer_view import WriterView

__all__ = ["Attempt", "Lane", "attempts_of", "lanes_of", "select"]

# Beyond every step.
NO_END = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the training.

    Attributes:
        number: 0 for the first, 1 for its first resumption, ...
        uuid: That of its first worker, in hex.
        world_size: How many workers the training said there are to write.
        writers: Names of the writer directories.
        first_step: Lowest global step recorded, or None.
        last_step: Highest global step recorded, or None.
        started_ns: When the last of its writers began, in ns since 1970 UTC.
    """

    number: int
    uuid: str
    world_size: int
    writers: tuple[str, ...]
    first_step: int | None
    last_step: int | None
    started_ns: int


@dataclass(frozen=True, slots=True)
class Lane:
    """The steps ``start <= step < stop`` of a writer, which count."""

    writer: WriterView
    attempt: int
    start: int
    stop: int

    @property
    def worker(self) -> str:
        """Name of the worker that wrote it."""
        return f"worker_{self.writer.rank}"


def attempts_of(writers: Sequence[WriterView]) -> list[list[WriterView]]:
    """Writers by attempt, oldest attempt first; each by rank and generation.

    Writers of one uuid are one attempt, and so are those of one ordinal: ranks that
    could not agree on a uuid still count their restarts alike.
    """
    ordinals: dict[bytes, int] = {}
    for writer in writers:
        uuid, ordinal = writer.identity["attempt"], writer.identity["attempt_ordinal"]
        ordinals[uuid] = max(ordinals.get(uuid, 0), int(ordinal))
    groups: dict[int, list[WriterView]] = {}
    for writer in writers:
        groups.setdefault(ordinals[writer.identity["attempt"]], []).append(writer)
    return [
        sorted(groups[ordinal], key=lambda w: (w.rank, w.generation))
        for ordinal in sorted(groups)
    ]


def describe(number: int, group: list[WriterView]) -> Attempt:
    """What a user is told about the attempt."""
    firsts = [w.first_step for w in group if w.first_step is not None]
    return Attempt(
        number=number,
        uuid=group[0].identity["attempt"].hex(),
        world_size=max(int(writer.identity["world_size"]) for writer in group),
        writers=tuple(writer.name for writer in group),
        first_step=min(firsts) if firsts else None,
        last_step=max(w.last_step for w in group) if firsts else None,
        started_ns=max(int(writer.identity["created_ns"]) for writer in group),
    )


def select(
    groups: list[list[WriterView]], attempt: int | None
) -> list[list[WriterView]]:
    """The attempts that are looked at: all, or the one of that number.

    Raises:
        QueryError: If there is no attempt of that number.
    """
    if attempt is None:
        return groups
    if not -len(groups) <= attempt < len(groups):
        msg = f"there is no attempt {attempt}: the run has {len(groups)}"
        raise QueryError(msg)
    return [groups[attempt]]


def lanes_of(groups: list[list[WriterView]], start: int, stop: int) -> list[Lane]:
    """What counts of each writer within ``start <= step < stop``.

    In the order of attempts, within one of ranks, and within one of generations.
    """
    lanes: list[Lane] = []
    end = stop
    for number in range(len(groups) - 1, -1, -1):
        group = groups[number]
        later: dict[int, int] = {}
        of_attempt = []
        for writer in reversed(group):
            # A rank that was restarted within its attempt replaces itself.
            limit = min(end, later.get(writer.rank, NO_END))
            of_attempt.append(Lane(writer, number, start, max(start, limit)))
            if writer.first_step is not None:
                later[writer.rank] = min(limit, writer.first_step)
        lanes[:0] = reversed(of_attempt)
        end = min([end, *later.values()])
    return lanes
