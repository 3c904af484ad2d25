"""Which rows of which writer belong to which tensor.

To find that out takes as long as to read the rows of a step.  It stays the same until
definitions come, so that it is kept for those who ask again for the same names; not of
so many names that it would take megabytes.

Thread safety: none; the trial's lock is held around every use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.collections import NO_TENSORS
from tdbg.config.messages import nearest_recorded, short
from tdbg.errors import TensorUnavailable
from tdbg.run.schema import stored_name
from tdbg.trial.run import RunState
from tdbg.trial.shards import (
    PER_WORKER,
    Contributions,
    extreme_class,
    whole_count,
)
from tdbg.trial.writers import Source

__all__ = ["Layout", "LayoutCache", "SourceLayout", "layout_of"]

# Lists of names of which the layout is remembered, and the longest of these: a name
# takes 130 bytes.
MAX_LAYOUTS = 8
MAX_NAMES = 4096


@dataclass(frozen=True, slots=True, eq=False)
class SourceLayout:
    """The definitions of a writer that are of one of the names.

    Attributes:
        source: The writer, and which of its steps count.
        ids: The definitions, ascending.
        names: Index of the name of each.
        index: The same where its rows count; -1 where another worker's do.
        adds: Whether its rows add to those of other workers.
        classes: Class of its extremes.
        of_whole: Elements of the whole that it is a part of; 0 for none.
    """

    source: Source
    ids: NDArray[np.uint32]
    names: NDArray[np.int64]
    index: NDArray[np.int64]
    adds: NDArray[np.bool_]
    classes: NDArray[np.uint8]
    of_whole: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the rows of some tensors are.

    Attributes:
        names: The tensors, each once.
        known: Which of them there are so far.
        classes: Class of the extremes of each; float64 where its dtype has changed it.
        of_sources: In the order of ranks.
    """

    names: list[str]
    known: NDArray[np.bool_]
    classes: NDArray[np.uint8]
    of_sources: list[SourceLayout]


def layout_of(sources: Sequence[Source], names: Sequence[str]) -> Layout:
    """The layout of *names*, each once, in what counts of each writer, by rank."""
    contributions = Contributions()
    known = np.zeros(len(names), np.bool_)
    of_sources = [_of_source(source, names, contributions, known) for source in sources]
    # Of names without definitions, too.
    low = np.full(len(names), np.iinfo(np.uint8).max, np.uint8)
    high = np.zeros(len(names), np.uint8)
    for each in of_sources:
        np.minimum.at(low, each.names, each.classes)
        np.maximum.at(high, each.names, each.classes)
    classes = np.where(low == high, high, 0).astype(np.uint8)
    return Layout(list(names), known, classes, of_sources)


def _of_source(
    source: Source,
    names: Sequence[str],
    contributions: Contributions,
    known: NDArray[np.bool_],
) -> SourceLayout:
    """The layout of a source; notes in *known* which names are of tensors."""
    ids, places = source.writer.ids_of_names(names)
    order = np.argsort(ids, kind="stable")
    ids, of_names = ids[order], places[order].astype(np.int64)
    columns = source.writer.reader.definition_columns(ids)
    known[of_names[~np.isin(columns["role"], list(NO_TENSORS))]] = True
    counts = np.ones(len(ids), np.bool_)
    adds = np.isin(columns["role"], [role.value for role in PER_WORKER])
    of_whole = np.zeros(len(ids), np.uint64)
    for i in np.flatnonzero(columns["is_placed"]).tolist():
        number = int(ids[i])
        counts[i] = contributions.counts(source, number)
        adds[i] = contributions.merges(source, number)
        of_whole[i] = whole_count(source.writer.definitions[number])
    classes = np.array([extreme_class(each) for each in columns["dtypes"]], np.uint8)
    return SourceLayout(
        source=source,
        ids=ids,
        names=of_names,
        index=np.where(counts, of_names, -1),
        adds=adds,
        classes=classes[columns["dtype"]],
        of_whole=of_whole,
    )


class LayoutCache:
    """The layouts of the lists of names that were asked for last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, ...], tuple[Hashable, Layout]] = (
            OrderedDict()
        )

    def find(self, run: RunState, names: Sequence[str]) -> Layout:
        """The layout of *names*, as they were asked for.

        Raises:
            TensorUnavailable: If one of them is unknown so far.
        """
        asked = tuple(names)
        sources = run.sources_of(None)
        state = tuple(map(_state_of, sources))
        kept = self._kept.pop(asked, None)
        if kept is None or kept[0] != state:
            kept = state, _layout_of_known(run, sources, asked)
        if len(asked) <= MAX_NAMES:
            self._kept[asked] = kept
        if len(self._kept) > MAX_LAYOUTS:
            self._kept.popitem(last=False)
        return kept[1]


def _state_of(source: Source) -> Hashable:
    """Return a key that changes with a source's definitions and counted steps."""
    writer = source.writer
    return (
        *(writer.name, writer.n_openings, writer.reader.n_definitions),
        *(source.attempt, source.start, source.stop),
    )


def _layout_of_known(
    run: RunState, sources: Sequence[Source], names: Sequence[str]
) -> Layout:
    """The layout of names as they are stored, each once; all must be known."""
    stored = list(dict.fromkeys(map(stored_name, names)))
    layout = layout_of(sources, stored)
    if not layout.known.all():
        name = stored[int(np.argmin(layout.known))]
        msg = f"no tensor {short(name)}; {nearest_recorded(name, run.names())}"
        raise TensorUnavailable(msg)
    return layout
