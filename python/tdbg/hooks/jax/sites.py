"""The taps of one hook: their numbers, what is taken of each, and where it goes.

Thread safety: the training's thread, but for ``add``, which the thread that traces
calls; numbers are never given twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdbg._core import TapPlan, TapTensors, close_tap_step
from tdbg.capture.adapter import TensorRef, UnitSummarySpec, bytes_of
from tdbg.capture.naming import MAX_CALLS
from tdbg.capture.recorder import MAX_MICRO_BATCH
from tdbg.capture.schedule import (
    HISTOGRAM,
    LIMITED_VALUES,
    ROWS,
    SMALL_VALUES,
    UNITS,
    VALUES,
    StepPlan,
)
from tdbg.capture.session import Session
from tdbg.capture.steps import Step
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.hooks.jax.argument_taps import ArgumentTaps
from tdbg.hooks.jax.primitive import PASSES
from tdbg.hooks.jax.shards import part_of

__all__ = ["SitePlan", "Sites"]

_numbers = itertools.count(1)
_ANY_SIZE = (1 << 63) - 1
_LARGEST_ELEMENT = 16
# Copies of one step that may wait until they are written.
_MOST_BYTES = 256 << 20
_MOST_PATTERNS = 256


class _Site(NamedTuple):
    """A place that was traced; ``arguments`` are those of which it shows one."""

    name: str
    role: Role
    classes: frozenset[str]
    units: UnitSummarySpec | None
    entry: TensorEntry
    arguments: ArgumentTaps | None


class SitePlan(NamedTuple):
    """What is taken of the taps at a step.

    Attributes:
        core: The same for the core.
        flags: By the number of a tap, what the step plan says.
        arguments: The entries of the arguments that are taken.
    """

    core: TapPlan
    flags: dict[int, int]
    arguments: frozenset[TensorEntry] = frozenset()


class _Rows(NamedTuple):
    """Where rows go that arrive in the same order at every step."""

    ids: tuple[int, ...]
    calls: tuple[int, ...]
    micro_batches: tuple[int, ...]
    kept: tuple[int, ...] | None  # Indices; None: all.


class Sites:
    """The taps of one hook.

    Args:
        session: Receives what they show.
        precise: Whether statistics are computed as exactly as those of float64.

    Attributes:
        revision: Grows when a step captures what traces have left out.
    """

    def __init__(self, session: Session, *, precise: bool = False) -> None:
        self.revision = 0
        self._session = session
        self._precise = precise
        self._sites: dict[int, _Site] = {}
        # What traces have left out, because no step captures it.
        self._left_out: set[tuple[str, Role, frozenset[str]]] = set()
        self._plans: dict[tuple[StepPlan, ArgumentTaps | None], SitePlan] = {}
        self._tensors = TapTensors()
        self._patterns: dict[bytes, _Rows] = {}

    def captures(self, name: str, role: Role, classes: frozenset[str]) -> bool:
        """Return whether any step captures a tensor; a trace leaves out the others.

        A tap costs more than its call: XLA computes and stores what it shows, which it
        may otherwise have fused with what uses it.
        """
        if self._session.captures(name, role, classes):
            return True
        self._left_out.add((name, role, classes))
        return False

    def add(
        self,
        name: str,
        role: Role,
        classes: frozenset[str],
        units: UnitSummarySpec | None,
        arguments: ArgumentTaps | None = None,
    ) -> int:
        """Return the number of a further tap; of *arguments*, if it is one of these."""
        number = next(_numbers)
        entry = self._session.entry(name, role, (), classes, units)
        self._sites[number] = _Site(name, role, classes, units, entry, arguments)
        self._plans.clear()
        return number

    def refresh(self) -> None:
        """Forget what is taken, because collections have changed."""
        self._plans.clear()
        if any(self._session.captures(*each) for each in self._left_out):
            self._left_out.clear()
            self.revision += 1

    def plan(
        self, step_plan: StepPlan, arguments: ArgumentTaps | None = None
    ) -> SitePlan | None:
        """Return what is taken at a step; None: nothing.

        Args:
            step_plan: Says what is captured at the step.
            arguments: The arguments that its program shows, if it does.
        """
        key = step_plan, arguments
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._make_plan(step_plan, arguments)
        return plan if plan.flags else None

    def empty(self) -> SitePlan:
        """Return the plan that takes nothing."""
        return SitePlan(TapPlan([], self._precise, _MOST_BYTES), {})

    def _make_plan(
        self, step_plan: StepPlan, arguments: ArgumentTaps | None
    ) -> SitePlan:
        requests, all_flags, taken = [], {}, set()
        for number, site in self._sites.items():
            flags = step_plan.of_entry(site.entry)
            if not flags:
                continue
            if site.arguments is not None:
                # What is more than a row Python reads where it lies, without a copy.
                if site.arguments is not arguments or flags != ROWS:
                    continue
                taken.add(site.entry)
            all_flags[number] = flags
            spec = site.entry.unit_spec or UnitSummarySpec()
            counts = bool(flags & UNITS and site.entry.units is not None)
            requests += [
                (
                    number * PASSES + i,
                    bool(flags & ROWS),
                    _copy_limit(flags, site.entry),
                    counts,
                    float(spec.low),
                    float(spec.high),
                    bool(spec.rows_are_units),
                )
                for i in range(PASSES)
            ]
        core = TapPlan(requests, self._precise, _MOST_BYTES)
        return SitePlan(core, all_flags, frozenset(taken))

    # ---- what has arrived --------------------------------------------------------

    def deliver(self, step: Step, ticket: int, plan: SitePlan) -> None:
        """Write what the program of a step has shown; it has ended."""
        writer = self._session.writer
        numbers, words, others = close_tap_step(ticket, plan.core, self._tensors)
        if len(numbers):
            rows = self._rows(numbers)
            if rows.kept is not None:
                words = words[list(rows.kept)]
            if rows.ids:
                writer.add_rows(
                    step.number,
                    rows.ids,
                    rows.calls,
                    rows.micro_batches,
                    (0,) * len(rows.ids),
                    np.ascontiguousarray(words),
                )
        if others:
            self._deliver_others(step, plan, others)

    def _rows(self, numbers: NDArray[np.int32]) -> _Rows:
        key = numbers.tobytes()
        rows = self._patterns.get(key)
        if rows is None:
            if len(self._patterns) >= _MOST_PATTERNS:
                self._patterns.clear()
            rows = self._patterns[key] = self._make_rows(numbers.tolist())
        return rows

    def _make_rows(self, numbers: Sequence[int]) -> _Rows:
        writer = self._session.writer
        calls = dict(enumerate(self._calls(numbers)))
        kept = {i: call for i, call in calls.items() if call is not None}
        found = [self._place(numbers[i], call) for i, call in kept.items()]
        return _Rows(
            tuple(place.entry.id_of(place.ref, writer) for place in found),
            tuple(place.call for place in found),
            tuple(place.micro_batch for place in found),
            None if len(kept) == len(numbers) else tuple(kept),
        )

    def _calls(self, numbers: Sequence[int]) -> list[int | None]:
        """Return how often the same had been shown in the step before; None: again.

        One name may have several taps (a module that is called twice), each of which
        may be shown several times (in a loop): in the order in which they were traced.
        What a later pass of ``jax.checkpoint`` computes again counts only where no
        earlier pass has shown it.
        """
        shown = [self._tensors.describe(number)[:2] for number in numbers]
        first_pass: dict[int, int] = {}
        for code, _ in shown:
            tap, number = divmod(code, PASSES)
            first_pass[tap] = min(number, first_pass.get(tap, number))
        counts: dict[Any, int] = {}
        calls: list[int | None] = []
        for code, part in shown:  # In the order of the taps: the core sorts them.
            tap, number = divmod(code, PASSES)
            call = None
            if number == first_pass[tap]:
                site = self._sites[tap]
                key = (site.name, site.role, part)
                call = counts[key] = counts.get(key, -1) + 1
            calls.append(None if call is None or call >= MAX_CALLS else call)
        return calls

    def _place(self, number: int, call: int) -> _Place:
        code, part, dtype, shape, global_shape, offset = self._tensors.describe(number)
        tap = code // PASSES
        site = self._sites[tap]
        entry = site.entry
        if call:
            name = f"{site.name}@{call + 1}"
            entry = self._session.entry(name, site.role, (), site.classes, site.units)
        where = part_of(shape, global_shape, offset)
        ref = TensorRef(0, dtype, shape, part=where)
        micro_batch = 0 if global_shape else min(part, MAX_MICRO_BATCH)
        return _Place(entry, ref, call, micro_batch, tap, global_shape, offset)

    def _deliver_others(
        self, step: Step, plan: SitePlan, others: Sequence[tuple[int, Any, Any]]
    ) -> None:
        """Write values, histograms and unit counts."""
        tables: dict[tuple[TensorEntry, int], NDArray[np.uint64]] = {}
        calls = self._calls([number for number, _, _ in others])
        for (number, data, units), call in zip(others, calls, strict=True):
            if call is None:
                continue
            place = self._place(number, call)
            flags = plan.flags.get(place.tap, 0)
            if data is not None:
                self._write_values(step, place, flags, data)
            if units is not None and place.entry.units is not None:
                _add_units(tables, place.entry.units, place, units)
        for (entry, call), table in tables.items():
            self._session.writer.values(
                step.number,
                entry.id_of(TensorRef(0, "uint64", table.shape), self._session.writer),
                table.ctypes.data,
                call=call,
            )

    def _write_values(
        self, step: Step, place: _Place, flags: int, data: NDArray[np.uint8]
    ) -> None:
        writer, pointer = self._session.writer, data.ctypes.data
        identity = place.entry.id_of(place.ref, writer)
        is_small = flags & SMALL_VALUES and all(n == 1 for n in place.ref.shape)
        is_within = flags & LIMITED_VALUES and place.entry.core.is_within_limit(
            bytes_of(place.ref)
        )
        if place.micro_batch == 0 and (flags & VALUES or is_small or is_within):
            writer.values(step.number, identity, pointer, call=place.call)
        if flags & HISTOGRAM:
            writer.count_histogram(
                step.number,
                identity,
                pointer,
                call=place.call,
                micro_batch=place.micro_batch,
            )


class _Place(NamedTuple):
    """Where a tensor that was shown goes."""

    entry: TensorEntry
    ref: TensorRef
    call: int
    micro_batch: int
    tap: int
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]


def _copy_limit(flags: int, entry: TensorEntry) -> int:
    """Return how large a tensor may be, in bytes, whose elements are copied."""
    if flags & (VALUES | HISTOGRAM):
        return _ANY_SIZE
    limit = entry.raw_limit if flags & LIMITED_VALUES else 0
    return max(limit, _LARGEST_ELEMENT if flags & SMALL_VALUES else 0)


def _add_units(
    tables: dict[tuple[TensorEntry, int], NDArray[np.uint64]],
    units: TensorEntry,
    place: _Place,
    counts: NDArray[np.uint64],
) -> None:
    """Add the counts of a part to those of the whole: units may be divided, too."""
    spec = place.entry.unit_spec or UnitSummarySpec()
    n_units, first = counts.shape[1], 0
    if place.global_shape:
        axis = spec.axis(len(place.global_shape))
        n_units, first = place.global_shape[axis], place.offset[axis]
    key = units, place.call
    table = tables.setdefault(key, np.zeros((3, n_units), np.uint64))
    table[:, first : first + counts.shape[1]] += counts
