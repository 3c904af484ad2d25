"""Which ranks of a training write, and what they agree on before they begin.

Thread safety: pure functions.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from tdbg.config import nearest
from tdbg.errors import ConfigurationError
from tdbg.run_directory import Run, writer_directories

__all__ = ["AttemptId", "Board", "find_attempt", "parse_workers"]

_ONE, _ALL = "one", "all"


class Board(Protocol):
    """A key-value store that all ranks share.

    Its methods raise nothing but OSError and RuntimeError, and block for no longer
    than one exchange with the store takes.
    """

    def post(self, key: str, value: bytes) -> None:
        """Put the value there; whoever looks from now on sees it."""

    def look(self, key: str) -> bytes | None:
        """The value, or None where nobody has posted one; never waits for it."""

    def settle(self, key: str, value: str) -> str:
        """The value of whoever was first to settle this key: this one, or another's."""

    def keep_pace(self) -> bool:
        """Wait for what this rank had asked of its device before the last such call.

        Returns:
            Whether it has a device that works behind its processor.
        """


class AttemptId(NamedTuple):
    """Names one start of a training, in the headers of its writers.

    Attributes:
        uuid: The same on all ranks, where they could agree.
        ordinal: Greater than that of any start before.
    """

    uuid: bytes
    ordinal: int


def parse_workers(include_workers: object, world_size: int) -> tuple[int, ...]:
    """The ranks that write, ascending.

    Args:
        include_workers: "one", the first of all; "all"; or ranks.
        world_size: How many ranks there are.

    Raises:
        ConfigurationError: If it is none of these, or no rank is left.
    """
    if include_workers == _ONE:
        return (0,)
    if include_workers == _ALL:
        return tuple(range(world_size))
    if isinstance(include_workers, str) or not isinstance(include_workers, Iterable):
        valid = (_ONE, _ALL)
        msg = (
            f"include_workers: unknown {include_workers!r}; "
            f"{nearest(include_workers, valid)} A list of ranks is valid, too"
        )
        raise ConfigurationError(msg)
    ranks = list(include_workers)
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int):
            msg = f"include_workers: {rank!r} is no rank: use numbers from 0 on"
            raise ConfigurationError(msg)
        if not 0 <= rank < world_size:
            msg = (
                f"include_workers: there is no rank {rank}: "
                f"the training has {world_size}, counted from 0"
            )
            raise ConfigurationError(msg)
    if not ranks:
        msg = "include_workers: an empty list; use 'one', 'all', or ranks"
        raise ConfigurationError(msg)
    return tuple(sorted(set(ranks)))


def find_attempt(
    run: Run, rank: int, board: Board | None = None, launch: str = ""
) -> AttemptId:
    """What this start of the training goes by, agreed on with the other ranks.

    Whoever comes first says it on the board.  Without one the launcher's name for
    the start serves, with how often this rank has started; ranks that differ in
    that are told apart by readers only as far as their ordinals say.

    Args:
        run: Where it writes.
        rank: Of this process.
        board: Shared by the ranks; None where there is a single one.
        launch: What the launcher calls this start; may be empty.
    """
    earlier = {
        writer.rank: writer.generation
        for writer in writer_directories(run)  # Ascending: the last one stays.
        if writer.role == "train"
    }
    if board is not None:
        # Nobody of this start has a writer before this is settled.
        mine = AttemptId(uuid.uuid4().bytes, max(earlier.values(), default=0))
        offer = f"{run.uuid.hex()}/{mine.uuid.hex()}/{mine.ordinal}"
        try:
            whose, name, ordinal = board.settle("attempt", offer).split("/")
            if whose == run.uuid.hex():
                return AttemptId(bytes.fromhex(name), int(ordinal))
        except (OSError, RuntimeError, ValueError):
            pass  # No board yet, or not of these ranks.
    ordinal_here = earlier.get(rank, 0)
    if not launch:
        return AttemptId(uuid.uuid4().bytes, ordinal_here)
    space = uuid.UUID(bytes=run.uuid)
    return AttemptId(uuid.uuid5(space, f"{launch}/{ordinal_here}").bytes, ordinal_here)
