"""SampleCoverage: trainings that see few of their samples, or each on every rank."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import percent
from tdbg.rules.builtin.data.sample_rule import SampleRule, SampleVerdict
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.samples import Draws, SampleFacts, Shares
from tdbg.rules.training_facts import TrainingFacts
from tdbg.rules.window import Description, Evaluation, Window
from tdbg.run.findings import Severity
from tdbg.run.observations import Fault, Observation

__all__ = ["SampleCoverage"]

# Draws, and different samples to expect, that tell something.
MIN_DRAWN, MIN_EXPECTED = 256, 50
# Steps at which all ranks have the same batch.
MIN_STEPS = 10
# Samples of all ranks, and the share of them that another rank has, too.  A sampler
# that pads shares some.
MIN_SHARED, SHARED = 256, 0.2
RANKS = "ranks"
_OF_WORKERS = (
    "Seed each worker by its own number: in worker_init_fn, make a new random "
    "generator with the seed of the worker. A generator that you make before the "
    "workers start is copied into each."
)
_OF_STREAM = (
    "Let each worker read its own part: in __iter__ of your IterableDataset, ask "
    "get_worker_info(), and yield only every num_workers-th sample, from the number of "
    "the worker on. Each worker has a copy of the whole dataset."
)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCoverage(SampleRule):
    """Report trainings that see few different samples, or the same on each rank.

    Args:
        threshold: Different samples, in percent of those that so many draws from the
            dataset are expected to bring.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    threshold: float = 10.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return f"{MIN_DRAWN} samples from a data loader, or {MIN_STEPS} steps of ranks"

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that neither a loader nor other ranks give samples, if so."""
        lacking = SampleRule.inapplicable(self, training)
        is_known = "loader" in training.profile or training.n_ranks > 1
        return lacking or ("" if is_known else "no data loader gives the samples")

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge fingerprints, and what only one rank wrote of all."""
        yield from SampleRule.evaluate(self, window)
        for seen in window.observations({Fault.RANKS_SAME_INPUTS}):
            for each in window.profile.bins[window.profile.start :]:
                is_known = any(facts.shares for facts in each.samples.values())
                if each.last_step >= seen.step and not is_known:
                    yield Evaluation.of_one(
                        RANKS,
                        np.array([each.last_step], np.int64),
                        each.mode,
                        np.array([int(Severity.WARNING)]),
                        functools.partial(_of_observation, seen),
                    )

    def verdicts(self, facts: SampleFacts) -> Iterator[SampleVerdict]:
        """Judge the samples of a loader, and the shares of ranks."""
        coverage, shares = facts.coverage, facts.shares
        if coverage is not None and coverage.drawn >= MIN_DRAWN:
            yield SampleVerdict(
                severity=self._severity(coverage),
                describe=lambda: self._describe(coverage),
            )
        if shares is not None and shares.steps >= MIN_STEPS:
            severity = None
            if shares.equal == shares.steps:
                severity = Severity.WARNING
            elif shares.samples >= MIN_SHARED and shares.shared >= SHARED:
                severity = Severity.INFO
            yield SampleVerdict(
                severity=severity,
                describe=lambda: _of_ranks(shares),
                what=RANKS,
            )

    def _severity(self, coverage: Draws) -> Severity | None:
        if coverage.copies:
            return Severity.WARNING
        least = self.threshold / 100.0 * coverage.expected
        is_few = coverage.expected >= MIN_EXPECTED and coverage.distinct <= least
        return Severity.INFO if is_few else None

    def _describe(self, coverage: Draws) -> Description:
        if coverage.copies:
            n = coverage.copies
            return Description(
                message=(
                    f"The workers of the data loader deliver the same batches: {n} "
                    f"equal ones in a row, as many as there are workers. Only "
                    f"{coverage.distinct:,} of {coverage.drawn:,} samples are distinct."
                ),
                value=float(coverage.distinct),
                threshold=float(coverage.drawn),
                since=coverage.step,
                advice=_OF_STREAM if coverage.is_stream else _OF_WORKERS,
            )
        return Description(
            message=(
                f"The training sees few different samples: {coverage.distinct:,} in "
                f"{coverage.drawn:,} draws from a dataset with {coverage.dataset:,}, "
                f"where about {coverage.expected:,.0f} are to be expected. That is "
                "fine if your dataset repeats its samples on purpose."
            ),
            value=float(coverage.distinct),
            threshold=self.threshold / 100.0 * coverage.expected,
            since=coverage.step,
            advice=(
                "Otherwise check that __getitem__ uses its index, and that your loop "
                "goes on to the end of the loader: one that stops early, without a "
                "shuffle, begins with the same samples each time."
            ),
        )


def _of_observation(seen: Observation, _: int) -> Description:
    steps = int(seen.numbers.get("steps", 0.0))
    shares = Shares(
        ranks=len(seen.words.get("ranks", "").split(", ")),
        steps=steps,
        equal=steps,
        shared=1.0,
        samples=0,
        step=max(0, int(seen.numbers.get("first", seen.step)) - steps),
    )
    return _of_ranks(shares)


def _of_ranks(shares: Shares) -> Description:
    advice = (
        "Give each rank its own part of the data: DataLoader(..., "
        "sampler=DistributedSampler(dataset)), and call its set_epoch in each epoch."
    )
    if shares.equal == shares.steps:
        return Description(
            message=(
                f"All ranks train on the same batches: equal on {shares.ranks} ranks "
                f"at each of {shares.steps:,} steps. Averaged gradients of equal "
                "batches are those of one rank, so the other ranks add nothing."
            ),
            value=float(shares.equal),
            threshold=float(shares.steps),
            since=shares.step,
            advice=advice,
        )
    return Description(
        message=(
            f"The ranks share samples: {percent(100 * shares.shared)} of the first "
            f"{shares.samples:,}, before any comes again on its rank, are those of "
            "another rank, too. That is fine if each rank draws at random on purpose."
        ),
        value=100.0 * shares.shared,
        threshold=100.0 * SHARED,
        since=shares.step,
        advice=f"Otherwise, an epoch has each sample several times. {advice}",
    )
