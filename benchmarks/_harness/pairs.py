"""Contenders that alternate in one process, and the ratios of neighbours.

A machine whose speed drifts changes neighbours alike, so each round runs every
contender once, in random order, and what counts is the median over the rounds of
each one's time divided by the baseline's in the same round.  The baseline runs
twice in a round: its second time over its first is the null control, which says how
much of a ratio may be noise.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks._harness.intervals import TOLERANCE, Ratio

__all__ = ["CONTROL", "Measured", "Samples", "interleave"]

#: Rounds before a run may end because it is resolved.
FEWEST = 20

#: The baseline's second run of a round; give one of this name to use another
#: instance of the baseline, such as a second plain training.
CONTROL = "control"


@dataclass(frozen=True)
class Measured:
    """Returned by a contender that says itself which seconds count."""

    seconds: float
    answer: Any = None
    #: Other figures of the same run, such as seconds of processor time.
    also: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Samples:
    """Seconds of every contender in every round."""

    baseline: str
    seed: int
    tolerance: float
    seconds: dict[str, list[float]]
    also: dict[str, dict[str, list[float]]]

    def add(self, measured: Mapping[str, Measured]) -> None:
        """One more round."""
        for name, one in measured.items():
            self.seconds[name].append(one.seconds)
            for key, value in one.also.items():
                self.also[name].setdefault(key, []).append(value)

    def seconds_of(self, name: str) -> float:
        """The median; for orientation, as machines drift."""
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, over: str | None = None, of: str = "seconds") -> Ratio:
        """Time of *name* over that of *over*, else over the baseline's.

        Against the baseline the mean of its two runs of the round is taken, which
        is less noisy than either.  *of* names another figure to compare.
        """
        values = self._values(of)
        if over is None:
            pairs = zip(values[self.baseline], values[CONTROL], strict=True)
            below = [(first + second) / 2 for first, second in pairs]
        else:
            below = values[over]
        return Ratio.of([a / b for a, b in zip(values[name], below, strict=True)])

    def control(self, of: str = "seconds") -> Ratio:
        """The null control: the baseline against itself."""
        return self.ratio(CONTROL, over=self.baseline, of=of)

    @property
    def resolved(self) -> bool:
        """Whether the control's interval is within the tolerance around one."""
        return self.control().within(self.tolerance)

    def text(self, name: str, over: str | None = None) -> str:
        """The ratio, and *not resolved* where the control says so."""
        doubt = "" if self.resolved else ", not resolved"
        return f"{self.ratio(name, over)}{doubt}"

    def to_json(self) -> dict[str, Any]:
        """Everything measured, and what follows."""
        names = [name for name in self.seconds if name != self.baseline]
        return {
            "baseline": self.baseline,
            "seed": self.seed,
            "tolerance": self.tolerance,
            "resolved": self.resolved,
            "ratios": {name: vars(self.ratio(name)) for name in names},
            "control": vars(self.control()),
            "seconds": self.seconds,
            "also": self.also,
        }

    def _values(self, of: str) -> dict[str, list[float]]:
        if of == "seconds":
            return self.seconds
        return {k: columns[of] for k, columns in self.also.items() if of in columns}


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    *,
    baseline: str,
    rounds: int,
    warmup: int = 1,
    seed: int | None = None,
    tolerance: float = TOLERANCE,
    at_most_seconds: float = math.inf,
    until_resolved: bool = False,
    verify: Callable[[Mapping[str, Any]], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Run *contenders* in *rounds*, in random order, and time them.

    Args:
        contenders: What to run, by name.  What one returns is its answer; it may
            return a Measured to say itself which seconds count.
        baseline: The contender that the others are compared with.
        rounds: How many count.
        warmup: How many more go before.
        seed: Of the order; None: a random one.  Printed.
        tolerance: How near to one the control's interval must be.
        at_most_seconds: End sooner, though not before six rounds.
        until_resolved: End as soon as the control is resolved, after 20 rounds.
            It decides on the control alone, so it favours no contender.
        verify: Called after every round with all answers by name, untimed.
        clock: ``time.thread_time`` to count processor time of this thread only.

    Raises:
        WrongAnswer: From *verify*.
        ValueError: If *baseline* is no contender.
    """
    if baseline not in contenders:
        msg = f"baseline {baseline!r} is none of {sorted(contenders)}"
        raise ValueError(msg)
    seed = random.randrange(2**32) if seed is None else seed
    print(f"order of contenders: seed {seed}", flush=True)
    dice = random.Random(seed)
    runs = {CONTROL: contenders[baseline], **contenders}
    samples = Samples(
        baseline, seed, tolerance, {name: [] for name in runs}, {n: {} for n in runs}
    )
    started = time.perf_counter()
    gc.collect()
    gc.freeze()  # Modules and models: else every collection walks through them.
    try:
        for number in range(-warmup, rounds):
            order = list(runs)
            dice.shuffle(order)
            measured = {name: _timed(runs[name], clock) for name in order}
            if verify is not None:
                verify({name: one.answer for name, one in measured.items()})
            if number < 0:
                continue
            samples.add(measured)
            done = number + 1
            if done >= 6 and time.perf_counter() - started > at_most_seconds:
                break
            if until_resolved and done >= FEWEST and samples.resolved:
                break
    finally:
        gc.unfreeze()
    return samples


def _timed(run: Callable[[], object], clock: Callable[[], float]) -> Measured:
    gc.collect()  # What others left behind is not this one's cost; its own is.
    start = clock()
    answer = run()
    seconds = clock() - start
    return answer if isinstance(answer, Measured) else Measured(seconds, answer)
