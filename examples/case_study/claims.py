"""What the case study claims, from what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import tdbg
from examples.case_study import captured
from examples.case_study.captured import Lookalike, Pair
from examples.case_study.study import Variant, Watched
from examples.case_study.train import RARE, RULES, Options

__all__ = ["CONFUSED", "Claim", "Confused", "claims", "confused"]

TRAIN, EVAL = tdbg.ModeKeys.TRAIN, tdbg.ModeKeys.EVAL
# Share of a digit that is taken for another, from which on a pair is listed.
CONFUSED = 0.1


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that is said, whether it is so, and what it was measured by."""

    text: str
    holds: bool
    measured: str


@dataclass(frozen=True, slots=True)
class Confused:
    """A confused pair, and where the confusion comes from.

    Attributes:
        lookalikes: Mistaken images, each with the nearest that was trained with.
        usual: Share of mirrored ones among all that were trained with.
    """

    pair: Pair
    lookalikes: tuple[Lookalike, ...]
    usual: float

    @property
    def mirrored(self) -> float:
        """Share of mirrored ones among the nearest."""
        return sum(one.is_mirrored for one in self.lookalikes) / len(self.lookalikes)

    @property
    def is_by_mirroring(self) -> bool:
        """Whether mistaken images look like mirrored ones more often than by chance."""
        return self.mirrored > self.usual


def confused(variant: Variant) -> list[Confused]:
    """The confused pairs of the first seed, at its last evaluation, worst first."""
    run = variant.trainings[0].run
    last, trained = captured.read(run, EVAL)[-1], captured.read(run, TRAIN)
    return [
        Confused(
            pair,
            tuple(captured.lookalikes(pair, last, trained)),
            captured.mirrored_share(trained, pair.taken_for),
        )
        for pair in captured.pairs(captured.confusion(last), CONFUSED)
    ]


def claims(
    options: Options,
    watched: Watched,
    variants: Sequence[Variant],
    found: Sequence[Confused],
) -> Iterator[Claim]:
    """Everything that the study says, in the order of the story."""
    yield from _of_the_stop(options, watched)
    first, mended = variants[0], variants[-1]
    n = len(first.trainings)
    loss = [v.found("LossNotDecreasing", TRAIN) for v in variants]
    yield Claim("with a sane learning rate the loss falls", not any(loss), _of(loss, n))
    mixed = [v.found("Confusion", EVAL, at_end=True) for v in variants]
    yield Claim(
        "without mirroring classes are no longer mixed up",
        mixed == [n, 0, 0],
        _of(mixed, n),
    )
    rare = [v.found("ClassImbalance", TRAIN) for v in variants]
    yield Claim("balanced batches end the imbalance", rare == [n, n, 0], _of(rare, n))
    left = {f.rule for training in mended.trainings for f in training.findings}
    yield Claim(
        "with all fixes nothing is found",
        not left,
        ", ".join(sorted(left)) or "nothing",
    )
    yield from _of_mirrors(variants, found)
    accuracy = [variant.accuracy for variant in variants]
    yield Claim(
        "the model with all fixes is the best one",
        accuracy[2] == max(accuracy) and accuracy[2] > accuracy[0],
        "balanced accuracy " + _shares(accuracy),
    )
    for digit in RARE:
        recall = [variant.recall(digit) for variant in variants]
        yield Claim(
            f"more of the {digit} are recognized",
            recall[2] == max(recall) and recall[2] > recall[0],
            _shares(recall),
        )


def _of_the_stop(options: Options, watched: Watched) -> Iterator[Claim]:
    for rule in RULES[:2]:
        findings = watched.findings(rule)
        at = f"at step {findings[0].first_step}" if findings else "not found"
        yield Claim(f"{rule} finds what is wrong", bool(findings), at)
    reason = watched.outcome.stopped or "it was not stopped"
    yield Claim(
        "LossNotDecreasing stops the training",
        reason.startswith("LossNotDecreasing"),
        reason,
    )
    made, planned = watched.outcome.n_steps, options.n_steps
    yield Claim(
        "more than half of the steps are saved",
        made < planned / 2,
        f"{planned - made} of {planned}",
    )


def _of_mirrors(
    variants: Sequence[Variant], found: Sequence[Confused]
) -> Iterator[Claim]:
    mirrors = [one for one in found if one.is_by_mirroring]
    told = [
        f"{one.pair.label} for {one.pair.taken_for}: {one.mirrored:.0%} of the nearest "
        f"are mirrored, {one.usual:.0%} of all"
        for one in mirrors
    ]
    yield Claim(
        "confused images look like mirrored ones",
        bool(mirrors),
        "; ".join(told) or "none do",
    )
    for one in mirrors:
        label, taken_for = one.pair.label, one.pair.taken_for
        shares = [variant.mixed_up(label, taken_for) for variant in variants]
        yield Claim(
            f"{label} is less often taken for {taken_for}",
            shares[1] < shares[0] and shares[2] < shares[0] / 2,
            _shares(shares),
        )


def _of(counts: Sequence[int], n: int) -> str:
    return f"found in {', '.join(map(str, counts))} of {n} trainings, fix by fix"


def _shares(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.1%}" for share in shares) + ", fix by fix"


def by_pair(found: Sequence[Confused]) -> Mapping[Pair, Sequence[Lookalike]]:
    """Mistaken images and their lookalikes, to draw."""
    return {one.pair: one.lookalikes for one in found}
