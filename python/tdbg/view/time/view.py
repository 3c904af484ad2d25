"""Where the time of a run went, as every face shows it.

Thread safety: a ``TimeView`` belongs to one thread; the trial's lock is held inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import conjoin, plural
from tdbg.modes import TRAINING, ModeKeys
from tdbg.run.profile_tables import Phase
from tdbg.trial import EnergyUse, Trial, create_trial, energy_of
from tdbg.view.problems import Diagnosis, Problem, diagnosis_of_run
from tdbg.view.time.bins import BinColumns, Integers, binned, covered, even_edges
from tdbg.view.time.breakdown import (
    Bands,
    PhaseBreakdown,
    bands_of,
    breakdown_of,
    remarks_of,
    sentence_of,
)
from tdbg.view.time.completeness import (
    OwnCost,
    missing_ranks,
    missing_rows,
    not_measured,
    own_cost,
    parts_off,
    refused,
    sample_gaps,
    unmeasured_fetches,
    unreported,
)
from tdbg.view.time.course import (
    AFTER,
    STARTUP,
    JobPhase,
    SlowStep,
    Throughput,
    after_warm_up,
    job_phases,
    slow_steps,
    throughput_of,
)
from tdbg.view.time.loading import LoaderUse, loading_of
from tdbg.view.time.machine import Machine
from tdbg.view.time.phases import percent_text, span_text
from tdbg.view.time.programs import Line, Operators, lines_of, operators_of
from tdbg.view.time.ranks import Lateness, lateness_of
from tdbg.view.time.usage import UsageMap

__all__ = [
    "NO_PROFILE",
    "Change",
    "TimeView",
    "lines_at_end",
    "step_breakdown",
    "time_of",
]

#: What is said of a run without a profile.
NO_PROFILE = "This run has no profile: it was recorded without one."
# A process that ends does not read more for a line or two.
MOST_BYTES = 1 << 31
# Data are waited for from this share of a step on.
LEAST_WAIT = 0.1
# Smaller parts of a job are not put into words.
LEAST_PART = 0.005
Rows = NDArray[np.void]
_TRAINING = [mode.value for mode in TRAINING]
_MODES = {
    ModeKeys.TRAIN: "training",
    ModeKeys.EVAL: "evaluation",
    ModeKeys.PREDICT: "prediction",
    ModeKeys.GLOBAL: "steps",
}


@dataclass(frozen=True, slots=True)
class Change:
    """The change that would make a training faster by most.

    Attributes:
        rule: The rule that found it.
        text: What to change, and what that gives.
    """

    rule: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {"rule": self.rule, "text": self.text}


def time_of(trial: Trial, diagnosis: Diagnosis | None = None) -> TimeView:
    """Return where the time of a run went.

    Args:
        trial: The run.
        diagnosis: What rules said about it; None: what the run holds.

    Example:
        print(time_of(tdbg.create_trial("runs/digits")).sentence)
    """
    return TimeView(trial, diagnosis_of_run(trial) if diagnosis is None else diagnosis)


def lines_at_end(path: str, *, is_judged: bool = False) -> list[str]:
    """Return what the end of a training says of its time, a line each.

    Args:
        path: The run.
        is_judged: Whether rules still judge it: then these say what to change.

    Raises:
        TdbgError: If the run cannot be read.
    """
    trial = create_trial(path)
    if trial.n_bytes > MOST_BYTES:
        return []
    with trial.no_refresh():
        lines = time_of(trial).lines
    return lines[:1] if is_judged else lines


def step_breakdown(trial: Trial) -> PhaseBreakdown | None:
    """Return where the time of training steps went; None if nobody measured that."""
    return TimeView(trial, Diagnosis()).breakdown


class TimeView:
    """Where the time of a run went; what is asked for is worked out once.

    Args:
        trial: The run; REQUIRES: it takes in nothing new (``no_refresh``) meanwhile.
        diagnosis: What rules said about it.
    """

    def __init__(self, trial: Trial, diagnosis: Diagnosis) -> None:
        self._trial, self.diagnosis = trial, diagnosis
        self._profile = trial.profile

    # --- Steps --------------------------------------------------------------

    @cached_property
    def all_steps(self) -> Rows:
        """The step rows of all modes and ranks, by time."""
        rows = self._profile.steps()
        return np.asarray(rows[np.argsort(rows["time"], kind="stable")])

    @cached_property
    def steps(self) -> Rows:
        """The step rows of training."""
        return np.asarray(self.all_steps[self._is_training])

    @cached_property
    def _is_training(self) -> NDArray[np.bool_]:
        return np.isin(self.all_steps["mode"], _TRAINING)

    @cached_property
    def places(self) -> Integers:
        """The training step of each row of ``steps``."""
        return self._placed(self.steps["global_step"])

    def _placed(self, global_steps: Integers) -> Integers:
        placed = self._trial.training_steps_at(global_steps.tolist())
        return np.asarray(placed, np.int64)

    @property
    def has_steps(self) -> bool:
        """Whether the run has step rows of training."""
        return len(self.steps) > 0

    @property
    def is_empty(self) -> bool:
        """Whether the run has no profile."""
        return not len(self.all_steps) and self.machine.span is None

    @cached_property
    def _is_steady(self) -> NDArray[np.bool_]:
        return after_warm_up(self.steps)

    @cached_property
    def steady(self) -> Rows:
        """The rows of ``steps`` that come after the beginning of the training."""
        return np.asarray(self.steps[self._is_steady])

    @cached_property
    def breakdown(self) -> PhaseBreakdown | None:
        """Where the time of training steps goes after the beginning; None without."""
        return breakdown_of(self.steady, "training") if self.has_steps else None

    @cached_property
    def whole(self) -> PhaseBreakdown | None:
        """Where the time of all training steps went; None without any."""
        return breakdown_of(self.steps, "training") if self.has_steps else None

    @cached_property
    def breakdowns(self) -> tuple[PhaseBreakdown, ...]:
        """A breakdown of each mode, of the beginning, and of each of several ranks."""
        found = []
        for mode in np.unique(self.all_steps["mode"]).tolist():
            rows = self.steady if mode in _TRAINING else self.all_steps
            rows = rows[rows["mode"] == mode]
            if len(rows):
                found.append(breakdown_of(rows, _MODES[ModeKeys(mode)]))
        if not self._is_steady.all():
            found.append(self._beginning)
        workers = np.unique(self.steps["worker"]).tolist()
        if len(workers) > 1:
            names = self._trial.workers()
            for each in workers:
                rows = self.steady[self.steady["worker"] == each]
                found.append(breakdown_of(rows, names[each]))
        return tuple(found)

    @property
    def _beginning(self) -> PhaseBreakdown:
        """A breakdown of the steps that are left out of ``steady``."""
        rows = self.steps[~self._is_steady]
        n = int(np.unique(rows["worker"], return_counts=True)[1].max())
        return breakdown_of(rows, f"first {plural(n, 'step')}")

    @property
    def sentence(self) -> str:
        """Where the time went, in words; empty without step rows."""
        return "" if self.breakdown is None else sentence_of(self.breakdown)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Odd shares of phases of a step, in words."""
        return () if self.breakdown is None else remarks_of(self.breakdown)

    @cached_property
    def slow(self) -> tuple[int, tuple[SlowStep, ...]]:
        """How many training steps were slow, and the slowest."""
        return slow_steps(self.steps, self.places)

    @cached_property
    def throughput(self) -> Throughput | None:
        """How much the training gets through; None without step rows."""
        return throughput_of(self.steady) if self.has_steps else None

    @property
    def span(self) -> tuple[int, int]:
        """The first training step that has a row, and the last; (0, 0) without any."""
        if not self.has_steps:
            return 0, 0
        return int(self.places.min()), int(self.places.max())

    def bands(self, edges: Integers) -> Bands:
        """Return the phases over columns of training steps."""
        shown = None if self.whole is None else self.whole.phases
        phases = None if shown is None else [each.phase for each in shown]
        return bands_of(self.steps, self.places, edges, phases)

    def edges(self, columns: int) -> Integers:
        """Return at most so many columns over all training steps."""
        first, last = self.span
        return even_edges(first, last + 1, columns)

    # --- Time ---------------------------------------------------------------

    @cached_property
    def _clock(self) -> tuple[Integers, Integers, int]:
        """Training steps of the first rank, when each began, and the end of all."""
        rows = self.steps[self.steps["worker"] == self.steps["worker"].min()]
        places = self._placed(rows["global_step"])
        order = np.argsort(places, kind="stable")
        began = np.maximum.accumulate((rows["time"] - rows["duration_ns"])[order])
        return places[order], began, int(rows["time"].max())

    def times_at(self, edges: Integers) -> Integers:
        """Return when training steps began, in ns of the monotonic clock.

        Args:
            edges: Steps, ascending; the one after the last began when that ended.
        """
        places, began, end = self._clock
        return np.append(began, end)[np.searchsorted(places, edges)]

    @cached_property
    def job(self) -> tuple[JobPhase, ...]:
        """The phases of the job; empty without step rows."""
        if self.whole is None:
            return ()
        began = int((self.steps["time"] - self.steps["duration_ns"]).min())
        ended = int(self.steps["time"].max())
        first, last = self.machine.span or (began, ended)
        clock = self._profile.clock
        first = min(first, clock.of_wall(clock.start_ns))
        before, after = max(0, began - first) / 1e9, max(0, last - ended) / 1e9
        return job_phases(self.whole, before, (ended - began) / 1e9, after)

    @property
    def job_text(self) -> str:
        """How long the job took, in words: before the steps, in them, and after."""
        seconds = dict.fromkeys((STARTUP, "the loop", AFTER), 0.0)
        for each in self.job:
            name = each.name if each.name in seconds else "the loop"
            seconds[name] += each.seconds
        whole = sum(seconds.values())
        parts = [
            f"{name} {span_text(1e9 * part)} ({percent_text(part / whole)})"
            for name, part in seconds.items()
            if part > LEAST_PART * whole
        ]
        return f"{span_text(1e9 * whole)}: {conjoin(parts)}" if parts else ""

    @property
    def goodput(self) -> float:
        """The share of the job in which the model computed; NaN without step rows."""
        if not self.job:
            return math.nan
        return sum(each.share for each in self.job if each.is_productive)

    # --- What else was measured ---------------------------------------------

    @cached_property
    def machine(self) -> Machine:
        """The machines, as far as the profile has samples of them."""
        return Machine(self._profile)

    @cached_property
    def energy(self) -> EnergyUse:
        """The energy of the run."""
        return energy_of(self._profile)

    def usage(self, edges: Integers) -> UsageMap:
        """Return how busy cores and GPUs were over columns of training steps."""
        return self.machine.usage(self.times_at(edges))

    @cached_property
    def loading(self) -> list[LoaderUse]:
        """The data loaders."""
        is_usual = np.zeros(len(self.all_steps), bool)
        is_usual[self._is_training] = self._is_steady
        cores = self.machine.allowed_cores
        return loading_of(self.loader_rows, self.all_steps, cores, is_usual)

    @cached_property
    def loader_rows(self) -> Rows:
        """The batches of the data loaders, by time."""
        rows = self._profile.workers()
        return np.asarray(rows[np.argsort(rows["time"], kind="stable")])

    def depths(self) -> tuple[Integers, Integers]:
        """Return training steps, and how many batches were ready when each began."""
        rows = self.loader_rows
        rows = rows[rows["depth"] >= 0]
        if not self.has_steps:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        places, began, _ = self._clock
        at = np.searchsorted(began, rows["time"], side="right") - 1
        return places[np.maximum(at, 0)], rows["depth"].astype(np.int64)

    def depth_in(self, edges: Integers) -> BinColumns:
        """Return how many batches were ready, over columns of training steps."""
        return binned(*self.depths(), edges)

    def memory_in(self, edges: Integers) -> list[tuple[str, BinColumns]]:
        """Return the bytes in use of each memory over columns of training steps."""
        times = self.times_at(edges)
        return [
            (each.name, covered(each.times, each.used, times))
            for each in self.machine.memories()
        ]

    @cached_property
    def lateness(self) -> Lateness | None:
        """How late each rank comes; None for one rank."""
        rows = self._profile.collectives()
        at = self._placed(rows["global_step"])
        names = self._trial.workers()
        return lateness_of(names, rows, self.steps, self.places, at)

    @cached_property
    def _changes(self) -> list[Mapping[str, Any]]:
        return [each.data for each in self._trial.events("change")]

    @cached_property
    def operators(self) -> list[Operators]:
        """The operators of the newest window, by device."""
        return operators_of(self._changes)

    @cached_property
    def python_lines(self) -> tuple[Line, ...]:
        """Python lines by phase."""
        return lines_of(self._changes)

    # --- What it cost, and what is not there ---------------------------------

    @cached_property
    def own_cost(self) -> OwnCost | None:
        """The cost of capture and profiling; None without step rows."""
        if not len(self.all_steps):
            return None
        return own_cost(self.all_steps, self._profile.windows())

    @cached_property
    def lacks(self) -> tuple[str, ...]:
        """Gaps in the profile, and their reasons, a sentence each."""
        names = self._trial.workers()
        workers = np.unique(self.steps["worker"]).tolist()
        machines = [self._profile.machine(node) for node in range(self.machine.n_nodes)]
        lost = self._trial.lost_records().records
        found = [
            *missing_ranks(self._changes, len(workers)),
            *([f"{plural(lost, 'record')} of the run were lost"] if lost else []),
            *(
                text
                for each in workers
                for text in missing_rows(
                    names[each], self.places[self.steps["worker"] == each]
                )
            ),
            *(
                text
                for node, rows in self.machine.system
                for text in sample_gaps(node, rows)
            ),
            *unreported(self._trial.configuration(), self.all_steps, self.loader_rows),
            *unmeasured_fetches(self.loading),
            *parts_off(self._changes),
            *refused(self._profile.windows()),
            *not_measured([*machines, *self._changes]),
        ]
        return tuple(dict.fromkeys(found))

    # --- What to change -----------------------------------------------------

    @cached_property
    def problems(self) -> list[Problem]:
        """The findings about time: those that go on first, then by what they cost."""
        problems = self.diagnosis.problems
        found = [each for each in problems if each.episodes[0].is_of_time]
        return sorted(found, key=_order)

    @property
    def change(self) -> Change | None:
        """The most valuable change; None if no rule knows one."""
        for each in self.problems:
            if each.worst.advice and not each.is_over and not each.causes:
                return Change(each.rule, each.worst.advice)
        return None

    @property
    def lines(self) -> list[str]:
        """Where the time went and what to change first; empty without steps.

        Example:
            where the time went: 62 % data wait, 21 % forward and 17 % the rest; a step
            takes 33.4 ms
            what may help: with 4 workers instead of 1, a step would take about 12.7 ms
            instead of 33.4 ms: 62 % less
        """
        if not self.sentence:
            return []
        lines = [f"where the time went: {self.sentence}"]
        if self.change is not None:
            lines.append(f"what to change first: {self.change.text}")
        elif not self.diagnosis.statuses and self._unjudged:
            lines.append(f"what may help: {self._unjudged}")
        return lines

    @property
    def _unjudged(self) -> str:
        """A change that the loader alone suggests, before rules have judged the run."""
        curve = self.loading[0].what_if if self.loading else None
        if curve is None or self.breakdown is None:
            return ""
        if self.breakdown.share_of(Phase.DATA_WAIT) < LEAST_WAIT:
            return ""
        now = self.loading[0].workers
        text = curve.text(now)
        return text[:1].lower() + text[1:] if curve.saves(now) else ""


def _order(problem: Problem) -> tuple[bool, bool, int, float]:
    """Causes first; of these the gravest, and then that which saves most if mended."""
    gain = problem.worst.gain or 0.0
    return problem.is_over, bool(problem.causes), -problem.severity, -gain
