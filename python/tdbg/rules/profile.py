"""What a rule sees of a profile: bins of time with the rows in them.

Implements docs/rules.md, "The profile".  Bins last 10 s and are counted from the first
step of the run.  A rule judges each bin once, when it is complete, so that its verdict
does not depend on when it reads the run.

Thread safety: bins are read-only; what ``derived`` keeps belongs to the engine's
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.rules.samples import SampleFacts
from tdbg.run.told_phases import ALL_TOLD, ToldPhases

__all__ = ["BIN_NS", "NO_PROFILE", "Bin", "ProfileWindow", "Rows"]

#: How long a bin lasts.
BIN_NS = 10 * 10**9

Rows = NDArray[np.void]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bin:
    """Ten seconds of a run.

    Attributes:
        number: Of the bin, from 0.
        start_ns: When it began, by the monotonic clock.
        end_ns: When it ended: the next bin's start.
        first_step: Global step of the first step of the first worker in it, or of the
            last one before it; -1 if there is none.
        last_step: Global step of that worker's last step in it, or before it.
        mode: Mode of that step; GLOBAL if there is none.
        steps: The step rows that ended in the bin, of all workers and modes, with a
            column ``worker``.
        has_begun: For each of them, whether it is a step of training, 20 steps and 10 s
            after the first.
        is_warm: For each of them, whether the training had warmed up: it has begun, and
            the last compilation and the last new loader are 20 steps ago.
        is_judged: For each of them, whether it counts among the usual steps: a warm
            step of training without a checkpoint or an evaluation in it or just before
            it, and not the first of an epoch.
        n_workers: How many workers the training has.
        start_seconds: Time from the start of the run to that of the bin.
        machine: What is known of the machine: the content of the event ``machine``.
        loaders: The settings of each data loader, by worker and its number there.
        collective_kinds: What collective operations are called, by the numbers of
            their kinds.
        events: Changes that the training reported in the bin, by what they are:
            ``gc``, ``compilation``, ``checkpoint``, ``python_lines``; and ``window``,
            what an ended window of the profiler found, with its ``operators``.
        tables: The other tables, by name, but for ``fingerprint``.  Of counters, the
            row before the bin is there, too, so that their differences cover the bin.
        configuration: That of the run.
        told: The phases that the run has told until the end of the bin.
        samples: What the fingerprints of samples say until the end of the bin, by
            model; empty if no rule reads the table ``fingerprint``.
    """

    number: int
    start_ns: int
    end_ns: int
    first_step: int
    last_step: int
    mode: ModeKeys
    steps: Rows
    has_begun: NDArray[np.bool_]
    is_warm: NDArray[np.bool_]
    is_judged: NDArray[np.bool_]
    n_workers: int
    start_seconds: float
    machine: Mapping[str, Any]
    loaders: Mapping[tuple[int, int], Mapping[str, Any]]
    collective_kinds: tuple[str, ...]
    events: Mapping[str, Sequence[Mapping[str, Any]]]
    tables: Mapping[str, Rows]
    configuration: Mapping[str, Any] = field(default_factory=dict)
    told: ToldPhases = ALL_TOLD
    samples: Mapping[str, SampleFacts] = field(default_factory=dict)
    _derived: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @property
    def seconds(self) -> float:
        """How long the bin lasts."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def usual_steps(self) -> Rows:
        """The steps that statistics of steps are made of."""
        return self.steps[self.is_judged]

    def derived(self, what: Hashable, make: Callable[[], Result]) -> Result:
        """Return what *make* computes from this bin alone; cached for all rules."""
        if what not in self._derived:
            self._derived[what] = make()
        result: Result = self._derived[what]
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileWindow:
    """Consecutive bins: those that a rule may look back at, then the new ones.

    Attributes:
        bins: The bins, oldest first.
        start: Index of the first new one.
    """

    bins: tuple[Bin, ...] = ()
    start: int = 0

    def steps_until(self, i: int, n: int) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the last usual steps of the first worker up to the end of a bin.

        Args:
            i: Index of the bin.
            n: How many steps; the rule declares this number (``lookback_steps``).

        Returns:
            Up to *n* rows, and which of them are in that bin.
        """
        found: list[Rows] = []
        n_found, k = 0, i
        while k >= 0 and n_found < n:
            usual = self.bins[k].usual_steps
            found.insert(0, usual[usual["worker"] == 0])
            n_found += len(found[0])
            k -= 1
        if not found:
            none = self.bins[i].steps[:0]
            return none, np.zeros(0, bool)
        is_new = np.zeros(n_found, bool)
        is_new[n_found - len(found[-1]) :] = True
        return np.concatenate(found)[-n:], is_new[-n:]


#: The window of steps, which has no bins.
NO_PROFILE = ProfileWindow()
