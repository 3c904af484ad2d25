"""State, steps, rate, cost and missing data of a run.

Thread safety: functions; the trial's lock is held inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import conjoin, plural
from tdbg.modes import EVALUATION, TRAINING, ModeKeys
from tdbg.trial import FileProblem, LostRecords, RunOverhead, Trial, stop_reason
from tdbg.view.coverage import Coverage, coverage_of
from tdbg.view.tensors import tensors_in

__all__ = ["ENDED", "Head", "file_problems", "head_of"]

#: States of a training that writes no more.
ENDED = ("closed", "dead")
# Bytes of a run that are read to find damage: a quarter of a second.
MOST_VERIFIED = 1 << 28
# A torn tail is only how a killed writer ends; where the end of a run is not known,
# nothing says that it is not this one; of a second training the head says more.
HARMLESS = ("torn_tail", "unknown_end", "concurrent")
# The rate is that of so many of the newest recorded steps.
RATE_STEPS = 200
# So many ranks are named in a sentence.
MOST_RANKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A run in numbers.

    Attributes:
        state: State of the training, as ``Trial.status``.
        steps: Training steps that were made, recorded or not, evaluation apart; rounds
            of boosted trees.  Of a training that was killed, up to the last that is
            known.
        evaluated: Steps of evaluation and prediction, counted likewise.
        step_word: "step", or "round" of boosted trees.
        recorded: Recorded steps of all modes.
        first_step: Where the first recorded step stands in the training; None if there
            is none.
        last_step: Where the last one stands.
        first_global_step: Global number of the first recorded step, which counts
            evaluation, too.
        last_global_step: That of the last one.
        wall: Time of the last recorded step, in seconds since 1970 UTC, or None.
        rate: Training steps per second among the newest ones, or None.
        stopped: Why somebody stopped the training, or None.
        created: When the run was created, as ISO 8601 text in UTC.
        bytes: Size of the run's files.
        damaged_files: Number of problems with these files.
        unsound: Number of those that are damage, and not how a killed writer ends.
        incomplete: Steps that some worker did not record and will not.
        damaged: Recorded steps that lost something.
        ranks: Number of ranks that the newest attempt was started with.
        absent: Those of them that wrote nothing.
        coverage: How much of the training was recorded, by role.
        overhead: What capture costs.
        lost_records: The records that were lost, and why.
    """

    state: str
    steps: int
    evaluated: int
    step_word: str
    recorded: int
    first_step: int | None
    last_step: int | None
    first_global_step: int | None
    last_global_step: int | None
    wall: float | None
    rate: float | None
    stopped: str | None
    created: str
    bytes: int
    damaged_files: int
    unsound: int = 0
    incomplete: int
    damaged: int
    ranks: int
    absent: tuple[int, ...]
    coverage: Coverage
    overhead: RunOverhead
    lost_records: LostRecords

    @property
    def has_ended(self) -> bool:
        """Whether the training writes no more."""
        return self.state in ENDED

    @property
    def cost(self) -> float | None:
        """The time that capture adds to a step, as a share of the step.

        None if the training was too short to tell.
        """
        return self.overhead.share if self.overhead.is_telling else None

    @property
    def counted_steps(self) -> str:
        """The training steps in words: ``1,263 steps``, ``1 round``."""
        if not self.steps and self.evaluated:
            return f"{plural(self.evaluated, 'step')} of evaluation"
        return plural(self.steps, self.step_word)

    @property
    def missing(self) -> str:
        """Say which data is missing; empty if none is."""
        parts = []
        lost = self.lost_records
        if lost.hidden_steps:
            parts.append(
                f"{plural(lost.hidden_steps, 'step')} hidden behind another training "
                "that wrote to the run at the same time"
            )
        if self.unsound or not all(each.in_order for each in lost.writers):
            if lost.records:
                parts.append(f"{plural(lost.records, 'record')} lost")
            elif self.damaged:
                parts.append(f"{plural(self.damaged, 'step')} damaged")
            else:
                parts.append("some of its files are damaged")
        if self.incomplete:
            parts.append(f"{plural(self.incomplete, 'step')} not recorded by all ranks")
        if self.absent:
            parts.append(f"{_ranks(self.absent)} of {self.ranks:,} wrote nothing")
        return " and ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        document = {each.name: getattr(self, each.name) for each in fields(self)}
        del document["overhead"]
        return {
            **document,
            "coverage": self.coverage.to_json(),
            "cost": self.overhead.to_json(),
            "lost_records": self.lost_records.to_json(),
            "missing": self.missing,
            "counted_steps": self.counted_steps,
        }


def _ranks(ranks: Sequence[int]) -> str:
    """Name ranks: ``rank 3``, ``ranks 1, 2, 3, 4 and 60 more``."""
    more = len(ranks) - MOST_RANKS
    listed = [str(rank) for rank in ranks[:MOST_RANKS]]
    names = conjoin([*listed, f"{more:,} more"] if more > 0 else listed)
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def head_of(trial: Trial, table: NDArray[np.void] | None = None) -> Head:
    """Return the head of a run as it is now.

    Args:
        trial: The run.
        table: Its steps, as ``Trial.step_table`` returns them; None: they are read.

    Raises:
        TdbgError: If the run cannot be read.
    """
    with trial.no_refresh():
        table = trial.step_table() if table is None else table
        problems = file_problems(trial)
        tensors, overhead = tensors_in(trial), trial.overhead()
        steps, training = table["step"], table["training_step"]
        wall = table["wall_ns"]
        state, made = trial.status, trial.steps_made()
        is_over = state == "closed"
        newest = trial.attempts()[-1:]
        ranks = newest[0].world_size if newest else 0
        return Head(
            state=state,
            steps=_n_made(made, TRAINING),
            evaluated=_n_made(made, EVALUATION),
            step_word="round" if tensors.are_trees else "step",
            recorded=len(table),
            first_step=int(training[0]) if len(steps) else None,
            last_step=int(training.max()) if len(steps) else None,
            first_global_step=int(steps[0]) if len(steps) else None,
            last_global_step=int(steps[-1]) if len(steps) else None,
            wall=float(wall[-1]) / 1e9 if len(wall) else None,
            rate=_rate(table),
            stopped=stop_reason(trial.events("status")),
            created=trial.created,
            bytes=trial.n_bytes,
            damaged_files=len(problems),
            unsound=sum(each.kind not in HARMLESS for each in problems),
            # Nobody comes late to a training that has ended in order.
            incomplete=int(np.sum((table["settled"] | is_over) & ~table["complete"])),
            damaged=int(np.sum(~table["lossless"])),
            ranks=ranks,
            absent=newest[0].absent if newest else (),
            coverage=coverage_of(
                trial,
                tensors,
                _n_made(made, TRAINING) or _n_made(made, EVALUATION),
                overhead,
            ),
            overhead=overhead,
            lost_records=trial.lost_records(),
        )


def _n_made(
    made: Mapping[ModeKeys, tuple[int, int]], modes: frozenset[ModeKeys]
) -> int:
    return sum(end - first for mode, (first, end) in made.items() if mode in modes)


def _steps_between(table: NDArray[np.void]) -> int:
    """Return the training steps from the first recorded one to the last, included."""
    steps = table["training_step"]
    return int(steps[-1] - steps[0]) + 1 if len(steps) else 0


_verified: WeakKeyDictionary[Trial, tuple[int, list[FileProblem]]] = WeakKeyDictionary()


def file_problems(trial: Trial) -> list[FileProblem]:
    """Return what is wrong with the files of a run.

    An index answers for a shard whose records nobody reads, so that opening a run finds
    no damage inside.  Files of a training that has ended are read as a whole, once, up
    to 256 MB; ``tdbg fsck`` reads any.

    Args:
        trial: The run.
    """
    with trial.no_refresh():
        found = trial.problems()
        n_bytes = trial.n_bytes
        if found or trial.status not in ENDED or n_bytes > MOST_VERIFIED:
            return found
        held = _verified.get(trial)
        if held is not None and held[0] == n_bytes:
            return held[1]
        checked = trial.verify()
        # What cannot be read at this moment is not damaged: the next look tells.
        damaged = [each for each in checked if each.kind != "io"]
        if len(damaged) == len(checked):
            _verified[trial] = n_bytes, damaged
        return damaged


def _rate(table: NDArray[np.void]) -> float | None:
    of_training = np.isin(table["mode"], [mode.value for mode in TRAINING])
    latest = table[np.flatnonzero(of_training)[-RATE_STEPS:]]
    if len(latest) < 2:
        return None
    seconds = float(latest["wall_ns"][-1] - latest["wall_ns"][0]) / 1e9
    n = _steps_between(latest) - 1
    return n / seconds if seconds > 0 and n > 0 else None
