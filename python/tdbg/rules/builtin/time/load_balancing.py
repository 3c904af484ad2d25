"""LoadBalancing: ranks and GPUs that do not get equal work."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import number, percent
from tdbg.rules.builtin.time.device import in_usual_steps, of_training
from tdbg.rules.builtin.time.phase_words import PHASE_WORDS
from tdbg.rules.builtin.time.rank_rule import RankRule
from tdbg.rules.builtin.time.ranks import Ranks, ranks_of
from tdbg.rules.builtin.time.time_rule import (
    TRAINING,
    Sign,
    TimeRule,
    check_optional,
    gain_severity,
    shorter,
)
from tdbg.rules.profile import Bin, ProfileWindow
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.table import Floats
from tdbg.rules.training_facts import TrainingFacts
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.profile_tables import Phase

__all__ = ["LoadBalancing"]

ENOUGH_SAMPLES = 8
# In which share of the steps the same rank must have most work.
SAME = 0.8
# SageMaker Debugger's histograms: bins of 2 %, with one for a GPU that is full.
EDGES = np.arange(0.0, 104.0, 2.0)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancing(RankRule):
    """Report ranks whose own work differs, and GPUs that are not equally busy.

    A rank's own work is its step without waiting for data or for other ranks.

    Args:
        spread: How much longer than the median of ranks the work of one of them takes,
            in percent.
        busy_spread: By how many points of a per cent the means of the time in which
            GPUs are busy differ.
        threshold: SageMaker Debugger's: the distance of two GPUs' histograms (the root
            of the Jensen-Shannon divergence, in nats), in place of *busy_spread*; 0.2
            or 0.5 there.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.USE

    spread: float = 10.0
    busy_spread: float = 20.0
    threshold: float | None = None

    def __post_init__(self) -> None:
        check_number(self, "spread", above=0.0)
        check_number(self, "busy_spread", above=0.0, most=100.0)
        check_optional(self, "threshold", above=0.0, most=1.0)

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that there is one rank and no GPU, if so."""
        base = TimeRule if "gpu" in training.profile else RankRule
        return base.inapplicable(self, training)

    @property
    def first_verdict(self) -> str:
        """Return what must have been measured of two ranks or GPUs."""
        return "10 s of steps of two ranks, or of samples of two GPUs of the training"

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the ranks by their own work, and the GPUs by how busy they are."""
        each = profile.bins[i]
        found = {}
        ranks, busy = ranks_of(each), _busy(each)
        if ranks is not None:
            found[TRAINING] = self._of_ranks(ranks)
        if len(busy) > 1:
            found["GPUs"] = self._of_gpus(busy)
        return found

    def _of_ranks(self, ranks: Ranks) -> Sign:
        work = np.median(ranks.work_ns, axis=1)
        at, usual = int(work.argmax()), float(np.median(work))
        excess = 100 * (float(work[at]) / usual - 1) if usual > 0 else 0.0
        gain = float(work[at] - usual) / ranks.step_ns
        is_same = float((ranks.work_ns.argmax(axis=0) == at).mean()) >= SAME
        is_bad = excess >= self.spread and is_same

        def describe() -> Description:
            others = [k for k in range(len(ranks.workers)) if k != at]
            phase = ranks.differing_phase(at, others, Phase.DATA_WAIT)
            batches = ", ".join(number(each) for each in ranks.samples if each >= 0)
            uneven = f" Their batches hold {batches} samples." if batches else ""
            return Description(
                message=(
                    f"The ranks do not get equal work: that of rank "
                    f"{ranks.workers[at]} takes {percent(excess)} longer than the "
                    f"median, most of it {PHASE_WORDS[phase]}."
                    f"{uneven}"
                ),
                value=excess,
                threshold=self.spread,
                gain=gain,
                advice=(
                    "Give all ranks batches of equal work: as many samples or tokens, "
                    f"samples of similar length. That gives up to {shorter(gain)}."
                ),
            )

        return Sign(severity=gain_severity(gain) if is_bad else None, describe=describe)

    def _of_gpus(self, busy: Mapping[str, Floats]) -> Sign:
        if self.threshold is not None:
            return self._by_histograms(busy)
        means = {name: float(values.mean()) for name, values in busy.items()}
        least, *_, most = sorted(means, key=lambda name: means[name])
        apart = means[most] - means[least]
        text = (
            f"GPU {most} is busy for {percent(means[most])} of the time, GPU {least} "
            f"for {percent(means[least])}."
        )
        return _apart(text, apart, self.busy_spread)

    def _by_histograms(self, busy: Mapping[str, Floats]) -> Sign:
        """Judge by the formula of SageMaker Debugger."""
        counts = {name: np.histogram(values, EDGES)[0] for name, values in busy.items()}
        distance, pair = max(
            (_distance(counts[a], counts[b]), (a, b))
            for a, b in itertools.combinations(counts, 2)
        )
        text = (
            f"GPU {pair[0]} and GPU {pair[1]} are not busy alike: the distance of "
            f"their histograms is {number(distance, 2)}."
        )
        return _apart(text, distance, self.threshold or 0.0)


def _apart(text: str, value: float, threshold: float) -> Sign:
    def describe() -> Description:
        return Description(
            message=text,
            value=value,
            threshold=threshold,
            advice=(
                "Give all GPUs equal work: batches of equal size, or stages of a "
                "pipeline that take equally long."
            ),
        )

    severity = Severity.WARNING if value >= threshold else None
    return Sign(severity=severity, describe=describe)


def _busy(each: Bin) -> dict[str, Floats]:
    """Return how busy the training's GPUs are in usual steps, in percent, by name."""
    rows = of_training(each.tables["gpu"])
    rows = rows[in_usual_steps(each, rows)]
    found: dict[str, Floats] = {}
    for key in np.unique(rows[["worker", "instance"]]):
        is_own = rows["worker"] == key["worker"]
        own = rows[is_own & (rows["instance"] == key["instance"])]
        if len(own) >= ENOUGH_SAMPLES:
            name = f"{int(own['index'][0])} of worker {int(key['worker'])}"
            found[name] = 100 * own["busy"].astype(np.float64)
    return found


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the Jensen-Shannon distance of two histograms, in nats ** 0.5."""
    p, q = a / a.sum(), b / b.sum()
    middle = (p + q) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = [
            np.nansum(np.where(e > 0, e * np.log(e / middle), 0.0)) for e in (p, q)
        ]
    return float(np.sqrt(max(0.0, sum(terms) / 2)))
