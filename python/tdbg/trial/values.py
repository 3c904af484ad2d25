"""Raw values: what was saved of one tensor at a step, as one array.

Thread safety: the functions are used with the trial's lock held; ``ValuesOfSteps`` may
be used from any thread, the lock is held inside.

Errors: ``TensorUnavailableForStep`` where not all parts of a sharded tensor are there,
``StorageError`` where they cannot be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdbg._core import Definition, reduce
from tdbg.config.collections import Role
from tdbg.errors import CorruptionError, TensorUnavailableForStep
from tdbg.trial.run import RunState
from tdbg.trial.shards import (
    OF_SAMPLES,
    assemble,
    element_type,
    is_shard,
    role_of,
    tell_missing,
)
from tdbg.trial.writers import Source, WriterReader

__all__ = [
    "Call",
    "RawEntry",
    "RowEntry",
    "ValuesOfSteps",
    "add_up",
    "calls_of",
    "entries",
    "entries_between",
    "incomplete",
    "is_call",
    "of_call",
    "read_value",
    "reduce_value",
    "row_entries",
    "saved_steps",
    "value_of",
]


class Call(NamedTuple):
    """Which micro-batch of a step, and which call of the module within it."""

    micro_batch: int
    call: int


class RawEntry(NamedTuple):
    """A saved value: a tensor, or a scalar where ``scalar`` is not None."""

    source: Source
    definition: Definition
    call: Call
    row: int
    scalar: float | None


class RowEntry(NamedTuple):
    """The statistics rows that one worker has of a tensor at one step."""

    source: Source
    rows: NDArray[np.void]


def entries(
    run: RunState, name: str, step: int, worker: str | None = None
) -> list[RawEntry]:
    """Values of *name* at the global *step*, by rank, micro-batch and call."""
    return entries_between(run, name, step, step + 1, worker).get(step, [])


def entries_between(
    run: RunState, name: str, start: int, stop: int, worker: str | None = None
) -> dict[int, list[RawEntry]]:
    """Return the entries of all steps in ``start <= step < stop`` that have any."""
    found: dict[int, list[RawEntry]] = {}
    for source in run.sources_of(worker):
        ids = source.writer.ids.get(name, [])
        first, last = max(start, source.start), min(stop, source.stop)
        if ids and first < last:
            for step, of_source in _of_source(source, ids, first, last).items():
                found.setdefault(step, []).extend(of_source)
    return found


def _of_source(
    source: Source, ids: Sequence[int], start: int, stop: int
) -> dict[int, list[RawEntry]]:
    reader, definitions = source.writer.reader, source.writer.definitions
    rows, places = reader.find_tensors(start, stop, ids)
    # Of a value that was saved twice for one call, the later counts.  A process may
    # hold several parts of one: it has several devices.
    of_calls: dict[int, dict[tuple[Call, tuple[int, ...]], RawEntry]] = {}
    keys = zip(
        rows["step"].tolist(),
        rows["definition"].tolist(),
        rows["micro_batch"].tolist(),
        rows["call"].tolist(),
        places.tolist(),
        strict=True,
    )
    for step, number, micro_batch, which, place in keys:
        call = Call(micro_batch, which)
        definition = definitions[number]
        part = definition.global_offset if is_shard(definition) else ()
        entry = RawEntry(source, definition, call, place, None)
        of_calls.setdefault(step, {})[call, part] = entry
    found = {
        step: sorted(calls.values(), key=lambda entry: entry.call)
        for step, calls in of_calls.items()
    }
    rows, _ = reader.find_scalars(start, stop, ids)
    for row in rows:
        definition = definitions[int(row["definition"])]
        entry = RawEntry(source, definition, Call(0, 0), -1, float(row["value"]))
        # Of a scalar that was saved twice in a step, the later counts.
        found.setdefault(int(row["step"]), []).insert(0, entry)
    return found


def row_entries(
    run: RunState, name: str, step: int, worker: str | None = None
) -> list[RowEntry]:
    """Statistics rows of *name* at the global *step*, by rank."""
    found = []
    for source in _sources_at(run, step, worker):
        ids = source.writer.ids_of(name)
        if len(ids):
            rows = source.writer.segments.rows(step, ids)
            if len(rows):
                found.append(RowEntry(source, rows))
    return found


def calls_of(entry: RowEntry) -> list[Call]:
    """Which call each of the rows is of."""
    pairs = zip(entry.rows["micro_batch"], entry.rows["call"], strict=True)
    return [Call(int(micro_batch), int(call)) for micro_batch, call in pairs]


def _sources_at(run: RunState, step: int, worker: str | None) -> list[Source]:
    sources = run.sources_of(worker)
    return [source for source in sources if source.start <= step < source.stop]


def read_value(entry: RawEntry) -> NDArray[Any]:
    """The array that was saved; it cannot be written to.

    Raises:
        StorageError: If it cannot be read, or does not fit its definition.
    """
    if entry.scalar is not None:
        value = np.array(entry.scalar, np.float64)
        value.flags.writeable = False
        return value
    definition = entry.definition
    dtype = element_type(definition)
    raw = entry.source.writer.reader.read_tensor(entry.row)
    expected = math.prod(definition.shape) * dtype.itemsize
    if raw.nbytes != expected:
        msg = f"{definition.name!r} has {raw.nbytes} bytes instead of {expected}"
        raise CorruptionError(msg, kind="damage")
    return raw.view(dtype).reshape(definition.shape)


def reduce_value(entry: RawEntry, step: int) -> RowEntry:
    """The statistics row of a saved value, by the kernel that captures them."""
    row = reduce(read_value(entry)).reshape(1).copy()
    row["step"] = step
    row["definition"] = entry.definition.id
    row["micro_batch"], row["call"] = entry.call
    return RowEntry(entry.source, row)


def is_call(found: Call, call: int | None, micro_batch: int | None) -> bool:
    """Whether it is the call that is asked for; None asks for any."""
    return call in (None, found.call) and micro_batch in (None, found.micro_batch)


def of_call(entry: RowEntry, call: int | None, micro_batch: int | None) -> RowEntry:
    """Its rows of the call that is asked for; None asks for any."""
    rows = entry.rows
    if call is not None:
        rows = rows[rows["call"] == call]
    if micro_batch is not None:
        rows = rows[rows["micro_batch"] == micro_batch]
    return RowEntry(entry.source, rows)


def add_up(entries: Sequence[RawEntry]) -> NDArray[Any]:
    """Unit summaries of the same units, added: they count elements."""
    first = read_value(entries[0])
    if len(entries) == 1:
        return first
    total = first.copy()
    for entry in entries[1:]:
        if entry.definition.shape == first.shape:
            total += read_value(entry)
    total.flags.writeable = False
    return total


# What has which kinds of entries.
KINDS = {
    "rows": ("any", "statistics", "tensors"),
    "tensors": ("any", "values", "tensors"),
    "scalars": ("any", "values"),
}


def _ids(
    writer: WriterReader, name: str | None, but: frozenset[Role]
) -> Sequence[int] | None:
    """Return the definitions of a tensor, or of all; None: whatever there is."""
    if name is not None:
        return writer.ids.get(name, [])
    if not but:
        return None
    known = writer.definitions.items()
    return [number for number, each in known if role_of(each) not in but]


def saved_steps(
    run: RunState,
    name: str | None,
    what: str,
    worker: str | None = None,
    *,
    but: frozenset[Role] = frozenset(),
) -> NDArray[np.int64]:
    """Global steps at which something of *name* (None: of anything) was saved.

    Args:
        run: The run.
        name: A tensor, or None for all.
        what: "values", "statistics", "any" of both, "tensors" for both without scalars,
            or "histograms".
        worker: Only what this worker saved.
        but: Roles of tensors that do not count.
    """
    parts: list[NDArray[np.int64]] = []
    for source in run.sources_of(worker):
        ids = _ids(source.writer, name, but)
        if ids is not None and not ids:
            continue
        if what == "histograms":
            parts.append(source.writer.histograms.steps(ids, source.start, source.stop))
        else:
            kinds = {kind: what in KINDS[kind] for kind in KINDS}
            found = source.writer.reader.saved_steps(
                source.start, source.stop, ids, **kinds
            )
            parts.append(found)
    if len(parts) == 1:
        return parts[0]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)


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
    """Return that of the first micro-batch and call, of all workers together.

    What each worker has of a batch is put together by rank, and losses that are one
    number are averaged; unit summaries are added up, and the parts of a sharded tensor
    put together.  Of anything else the first worker has what all have.

    Args:
        run: The run.
        name: The tensor.
        step: The global step.
        found: What was saved there, not empty.
        is_whole: Whether to join the parts of all workers; else one worker's is meant.
    """
    if role_of(found[0].definition) is Role.UNIT_SUMMARY:
        return add_up(found)
    parts = [entry for entry in found if entry.call == found[0].call]
    definition = found[0].definition
    if not is_whole or not is_shard(definition):
        is_of_samples = is_whole and role_of(definition) in OF_SAMPLES
        # A distributed tensor without shards is the same on all workers.
        if len(parts) > 1 and is_of_samples and not definition.placements:
            return _batch(name, step, parts)
        return read_value(found[0])
    whole = assemble([(entry.definition, read_value(entry)) for entry in parts])
    if whole is None:
        raise incomplete(run, name, step, parts)
    return whole


def _batch(name: str, step: int, parts: Sequence[RawEntry]) -> NDArray[Any]:
    """Put together what workers have of a batch, in the order of their ranks.

    Raises:
        TensorUnavailableForStep: If their parts do not fit together.
    """
    of_worker = {entry.source.writer.rank: entry for entry in reversed(parts)}
    shares = [read_value(of_worker[rank]) for rank in sorted(of_worker)]
    if len(shares) == 1:
        return shares[0]
    if all(share.ndim == 0 for share in shares):
        stacked = np.stack(shares)
        is_loss = role_of(parts[0].definition) is Role.LOSS
        found = stacked.mean(dtype=np.float64) if is_loss else stacked
        whole = np.asarray(found, shares[0].dtype)
    elif len({share.shape[1:] for share in shares if share.ndim}) == 1 and all(
        share.ndim for share in shares
    ):
        whole = np.concatenate(shares)
    else:
        shapes = ", ".join(str(share.shape) for share in shares)
        msg = (
            f"the shares that workers have of {name!r} at step {step} do not fit "
            f"together (their shapes are {shapes}): use worker= to read one of them"
        )
        raise TensorUnavailableForStep(msg)
    whole.flags.writeable = False
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
            definitions.append(entry.source.writer.definitions[number])
    savers = dict.fromkeys(entry.source.worker for entry in found)
    msg = (
        f"{name!r} is sharded, and incomplete at step {step}: "
        f"{tell_missing(definitions, savers, run.workers)}; use "
        f"worker= to read one worker's part"
    )
    return TensorUnavailableForStep(msg)
