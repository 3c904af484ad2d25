"""Which rows of which writer belong to which tensor.

To find that out asks for each definition what it is, which takes longer than to read
the rows of a step.  It stays the same until definitions come, so that it is kept for
those who ask again for the same names.

Thread safety: none; the trial's lock is held around every use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.messages import nearest_recorded, short
from tdbg.errors import TensorUnavailable
from tdbg.run.schema import stored_name
from tdbg.trial.run import RunState
from tdbg.trial.shards import Contributions, extreme_class, whole_count
from tdbg.trial.writers import Source

__all__ = ["Layout", "LayoutCache", "SourceLayout", "layout_of"]

# Lists of names of which the layout is remembered.
MAX_LAYOUTS = 8


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
        classes: Class of the extremes of each; float64 where its dtype has changed it.
        of_sources: In the order of ranks.
    """

    names: list[str]
    classes: NDArray[np.uint8]
    of_sources: list[SourceLayout]


def layout_of(sources: Sequence[Source], names: Sequence[str]) -> Layout:
    """The layout of *names*, each once, in what counts of each writer, by rank."""
    contributions = Contributions()
    of_sources = [_of_source(source, names, contributions) for source in sources]
    # Of names without definitions, too.
    low = np.full(len(names), np.iinfo(np.uint8).max, np.uint8)
    high = np.zeros(len(names), np.uint8)
    for each in of_sources:
        np.minimum.at(low, each.names, each.classes)
        np.maximum.at(high, each.names, each.classes)
    classes = np.where(low == high, high, 0).astype(np.uint8)
    return Layout(list(names), classes, of_sources)


def _of_source(
    source: Source, names: Sequence[str], contributions: Contributions
) -> SourceLayout:
    known = source.writer.ids
    found = sorted(
        (number, i) for i, name in enumerate(names) for number in known.get(name, ())
    )
    of_names = np.array([i for _, i in found], np.int64)
    definitions, counts, adds = [], [], []
    for number, _ in found:  # In one pass: few definitions are kept.
        definitions.append(source.writer.definitions[number])
        counts.append(contributions.counts(source, number))
        adds.append(contributions.merges(source, number))
    return SourceLayout(
        source=source,
        ids=np.array([number for number, _ in found], np.uint32),
        names=of_names,
        index=np.where(np.array(counts, np.bool_), of_names, -1),
        adds=np.array(adds, np.bool_),
        classes=np.array([extreme_class(d.dtype) for d in definitions], np.uint8),
        of_whole=np.array([whole_count(d) for d in definitions], np.uint64),
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
            kept = state, layout_of(sources, _known(run, asked))
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


def _known(run: RunState, names: Sequence[str]) -> list[str]:
    """The names as they are stored, each once."""
    requested = list(dict.fromkeys(map(stored_name, names)))
    for name in requested:
        if run.definition(name) is None:
            msg = f"no tensor {short(name)}; {nearest_recorded(name, run.names())}"
            raise TensorUnavailable(msg)
    return requested
