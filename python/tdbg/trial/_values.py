"""Raw values: what was saved of one tensor at a step, as one array.

Thread safety: the functions are used with the trial's lock held; ``ValuesOfSteps`` may
be used from any thread, the lock is held inside.

Errors: ``TensorUnavailableForStep`` where not all parts of a sharded tensor are there,
``StorageError`` where they cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from tdbg.collections import Role
from tdbg.errors import TensorUnavailableForStep
from tdbg.trial._lookup import RawEntry, RowEntry, add_up, read_value
from tdbg.trial._roles import role_of
from tdbg.trial._run import RunState
from tdbg.trial._shards import assemble, is_shard, tell_missing

__all__ = ["ValuesOfSteps", "incomplete", "value_of"]


class ValuesOfSteps(Mapping[int, NDArray[Any]]):
    """The values of a tensor by step: found at once, read when they are asked for.

    Args:
        run: The run.
        name: The tensor.
        found: What was saved at each step.
    """

    def __init__(
        self, run: RunState, name: str, found: Mapping[int, Sequence[RawEntry]]
    ) -> None:
        self._run = run
        self._name = name
        self._found = found

    def __getitem__(self, step: int) -> NDArray[Any]:
        found = self._found[step]
        with self._run.lock:
            return value_of(self._run, self._name, step, found)

    def __contains__(self, step: object) -> bool:
        return step in self._found

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._found))

    def __len__(self) -> int:
        return len(self._found)


def value_of(
    run: RunState,
    name: str,
    step: int,
    found: Sequence[RawEntry],
    *,
    is_whole: bool = True,
) -> NDArray[Any]:
    """That of the first worker's first micro-batch and call.

    Unit summaries are added up instead, and the parts of a sharded tensor put together.

    Args:
        run: The run.
        name: The tensor.
        step: The global step.
        found: What was saved there, not empty.
        is_whole: Whether the parts are wanted as a whole, and not that of one worker.
    """
    if role_of(found[0].definition) is Role.UNIT_SUMMARY:
        return add_up(found)
    if not is_whole or not is_shard(found[0].definition):
        return read_value(found[0])
    parts = [entry for entry in found if entry.call == found[0].call]
    whole = assemble([(entry.definition, read_value(entry)) for entry in parts])
    if whole is None:
        raise incomplete(run, name, step, parts)
    return whole


def incomplete(
    run: RunState, name: str, step: int, found: Sequence[RawEntry | RowEntry]
) -> TensorUnavailableForStep:
    """The error for a sharded tensor of which there are not all parts."""
    definitions = []
    for entry in found:
        if isinstance(entry, RawEntry):
            definitions.append(entry.definition)
        else:
            number = int(entry.rows["definition"][0])
            definitions.append(entry.lane.writer.definitions[number])
    savers = dict.fromkeys(entry.lane.worker for entry in found)
    msg = (
        f"{name!r} is sharded, and not whole at step {step}: "
        f"{tell_missing(definitions, savers, run.workers)}; worker= gives "
        f"the part of one"
    )
    return TensorUnavailableForStep(msg)
