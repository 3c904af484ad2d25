"""The questions about histograms that a ``TensorHandle`` answers.

Thread safety: may be used from any thread; the trial's lock is held inside.
"""

from __future__ import annotations

from tdbg._core import Definition
from tdbg.config.collections import Role
from tdbg.errors import QueryError, TensorUnavailableForStep
from tdbg.modes import ModeKeys
from tdbg.run.schema import RowFlag
from tdbg.stats.histogram import Histogram, has_edge_values
from tdbg.trial import values
from tdbg.trial.run import RunState
from tdbg.trial.selection import (
    Count,
    StepState,
    count_of,
    global_step_of,
    in_words,
    missing_step,
    state_of,
    steps_of,
)
from tdbg.trial.shards import Contributions, role_of, tell_missing, whole_count

__all__ = ["HistogramQueries"]

GRADIENTS = frozenset(
    {
        Role.GRADIENT,
        Role.GRADIENT_UNCLIPPED,
        Role.GRADIENT_LOCAL,
        Role.UPDATE,
        Role.OUTPUT_GRADIENT,
    }
)


class HistogramQueries:
    """The histograms of a tensor handle, which has a run and a name."""

    _run: RunState
    name: str

    def histogram(
        self,
        step: int,
        mode: ModeKeys | str | None = None,
        worker: str | None = None,
        *,
        call: int | None = None,
        micro_batch: int | None = None,
    ) -> Histogram:
        """The histogram at *step*: quantiles, and what a narrow type would lose.

        Merged over calls, micro-batches and workers as ``stats`` is, unless one is
        asked for; like there, a sharded parameter has one only where no part is
        missing.  Histograms are saved where a collection or a rule asks for them.

        Raises:
            StepUnavailable: If nothing was saved at *step*.
            StepNotYetAvailable: If that step may still come.
            NoMoreData: If the training ended before it.
            TensorUnavailableForStep: If this tensor has no histogram there, or only
                those of some of its parts.
            InvalidWorker: If there is no such worker.
            StorageError: If it cannot be read.
            CorruptionError: If its checksum does not match.
        """
        with self._run.fresh() as run:
            key = count_of(run, self.name, mode)
            at = global_step_of(run, step, key)
            if at is not None:
                found = _merged(run, self.name, at, worker, call, micro_batch)
                if found is not None:
                    return found
            raise self._no_histogram(run, step, key, at)

    def histograms(
        self, mode: ModeKeys | str | None = None, worker: str | None = None
    ) -> dict[int, Histogram]:
        """Return all histograms by step: of training, unless a mode is given."""
        with self._run.fresh() as run, run.frozen():
            key = count_of(run, self.name, mode)
            steps = steps_of(run, self.name, key, "histograms", False, worker)
            return {step: self.histogram(step, key, worker) for step in steps}

    def _no_histogram(
        self, run: RunState, step: int, mode: Count, at: int | None
    ) -> QueryError:
        """The error for a histogram that is not there."""
        waiting = state_of(run, step, mode) is StepState.NOT_YET_AVAILABLE
        if at is None or waiting or not run.has_data(at):
            return missing_step(run, step, mode)
        msg = f"{self.name!r} has no histogram at step {step}{in_words(mode)}"
        near = steps_of(run, self.name, mode, "histograms")
        if near:
            nearest = min(near, key=lambda found: abs(found - step))
            msg += f"; the nearest step that has one is {nearest}"
        elif values.entries(run, self.name, at):
            msg += "; its value is there: tdbg.stats.Histogram.of(value(step))"
        else:
            msg += ", nor at any other: save them with Collection(save_histogram=True)"
        return TensorUnavailableForStep(msg)


def _merged(
    run: RunState,
    name: str,
    step: int,
    worker: str | None = None,
    call: int | None = None,
    micro_batch: int | None = None,
) -> Histogram | None:
    """The histogram of *name* at the global *step*, merged as rows are; None for none.

    Args:
        run: The run.
        name: The tensor.
        step: The global step.
        worker: Of this worker alone.
        call: Of this call alone.
        micro_batch: Of this micro-batch alone.

    Raises:
        TensorUnavailableForStep: If parts of it are missing.
    """
    contributions = Contributions()
    parts: list[Histogram] = []
    of_parts: dict[str, Definition] = {}  # By worker.
    expected = 0
    owner: int | None = None  # The rank whose histograms count where all hold alike.
    for source in run.sources_of(worker):
        if not source.start <= step < source.stop:
            continue
        rank = source.writer.rank
        for number in source.writer.ids.get(name, ()):
            saved = source.writer.histograms
            places = [
                place
                for place in saved.at(number, step)
                if call in (None, place.call)
                and micro_batch in (None, place.micro_batch)
            ]
            if not places or not contributions.counts(source, number):
                continue
            if not contributions.merges(source, number) and owner not in (None, rank):
                continue
            owner = rank
            definition = source.writer.definitions[number]
            of_parts.setdefault(source.worker, definition)
            expected = whole_count(definition)
            on_edges = _is_on_edges(run, definition, step)
            parts += [Histogram(*saved.read(p), on_edges=on_edges) for p in places]
    if not parts:
        return None
    merged = Histogram.merge(parts)
    if worker is None and merged.count < expected:
        msg = (
            f"the histogram of {name!r} is incomplete at step {step}: "
            f"{tell_missing(of_parts.values(), of_parts, run.workers)}; use "
            f"worker= for the histogram of one part"
        )
        raise TensorUnavailableForStep(msg)
    return merged


def _is_on_edges(run: RunState, definition: Definition, step: int) -> bool:
    """Whether the elements are edges of bins: not where they were multiplied.

    Only the row of a gradient says whether it was.
    """
    if not has_edge_values(definition.dtype):
        return False
    if role_of(definition) not in GRADIENTS:
        return True
    rows = values.row_entries(run, definition.name, step)
    flags = [int(flags) for entry in rows for flags in entry.rows["flags"]]
    return bool(flags) and not any(value & RowFlag.RESCALED for value in flags)
