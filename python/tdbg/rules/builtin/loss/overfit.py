"""Overfit: models that memorize their training data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import number, percent, plural
from tdbg.rules.builtin.loss.passes import Passes, PassesRule, judge_passes
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import OK, Description, Evaluation, Window
from tdbg.run.findings import Evidence, Severity, Stage

__all__ = ["Overfit"]

# Different values of a loss that training and validation must share, to the last
# digit, before they are of the same data.
SHARED = 5


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Overfit(PassesRule):
    """Report models that memorize their training data.

    One of four things must hold.  The validation loss has risen from its best while
    the training loss fell.  Or the training loss has fallen far, and little of that
    fall shows in validation.  Or the training loss is next to nothing, while a good
    part of the loss is left in validation.  Or both losses are the same numbers, so
    that nothing shows whether the model has memorized them.

    The rule says nothing of a distance while validation surely improves, and nothing of
    a rise while the model classifies more samples rightly than at the best loss.  The
    finding is a warning if the model is surely worse than it was: it classifies fewer
    samples rightly, or, where nobody knows, has lost much of what it had learned, or is
    worse than a model that has learned nothing.  Otherwise, and where the best model is
    kept, it is an info.

    Args:
        rise: Share of its best by which the validation loss may rise.
        rise_of_start: Share of the first training loss by which it may also rise.
        lost: Share of what it had learned that the model may lose, if accuracy is not
            known.
        ratio_threshold: Share of the training loss by which the validation loss must
            exceed it.
        learned: The training loss has fallen far once it fell by this share of its
            start.
        carried_over: Share of that fall that validation must show.
        by_heart: The model has memorized its data at a training loss of this share of
            its start.
        times: The validation loss may then be this many times the training loss.
        left: Or this share of the first training loss.
        improvement: Or it may fall by this share of itself from pass to pass.
        passes: Consecutive passes at which this must hold.
        start_step: The rule says nothing before this global step.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.VALIDATION

    rise: float = 0.1
    rise_of_start: float = 0.05
    lost: float = 0.25
    ratio_threshold: float = 0.1
    learned: float = 0.5
    carried_over: float = 0.5
    by_heart: float = 0.05
    times: float = 10.0
    left: float = 0.35
    improvement: float = 0.1
    passes: int = 2
    start_step: int = 0

    def __post_init__(self) -> None:
        check_number(self, "rise", least=0.0)
        check_number(self, "rise_of_start", least=0.0)
        check_number(self, "lost", least=0.0, most=1.0)
        check_number(self, "ratio_threshold", least=0.0)
        check_number(self, "learned", above=0.0)
        check_number(self, "carried_over", least=0.0, most=1.0)
        check_number(self, "by_heart", least=0.0, most=1.0)
        check_number(self, "times", least=1.0)
        check_number(self, "left", above=0.0)
        check_number(self, "improvement", least=0.0, most=1.0)
        check_number(self, "passes", least=1, whole=True)
        check_number(self, "start_step", least=0, whole=True)

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return (
            f"a training loss, and the loss of {self.passes:,} or more passes over "
            "validation data (steps of mode EVAL)"
        )

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each loss at the end of each pass of evaluation."""
        for evaluation in judge_passes(window, self._level, self._describe):
            severities = evaluation.severities[0]
            severities[(evaluation.steps < self.start_step) & (severities > OK)] = OK
            yield evaluation

    def _level(self, passes: Passes) -> int:
        if _is_training_data(passes):
            return int(Severity.WARNING)
        n = len(passes.validation)
        last = range(max(0, n - self.passes), n)
        if n < self.passes:
            return OK
        rises = all(self._rises(passes, k) for k in last)
        # Few mistakes are left of many rounds, and their distance tells nothing.
        is_behind = not passes.counts_mistakes and (
            all(self._is_known_by_heart(passes, k) for k in last)
            or (
                all(self._stays_behind(passes, k) for k in last)
                and not passes.improves_to_the_end(n - 1)
            )
        )
        rises = rises and not passes.recognizes_more(n - 1)
        if not is_behind and not rises:
            return OK
        now = float(passes.validation[last].min())
        is_worse = rises and passes.is_worse(now, self.lost)
        # A distance is no fault by itself: harder data have one, too.
        is_worse |= passes.is_useless(now)
        return int(
            Severity.WARNING if is_worse and not passes.keeps_best else Severity.INFO
        )

    def _rises(self, passes: Passes, k: int) -> bool:
        best = int(np.argmin(passes.validation[: k + 1]))
        low, now = passes.validation[best], passes.validation[k]
        training = passes.training[k]
        return bool(
            now - low > self.rise * abs(low)
            and now - low > self.rise_of_start * abs(passes.start)
            and passes.has_surely_risen(k)
            and training < passes.training[best]
            and now - training > self.ratio_threshold * abs(training)
        )

    def _stays_behind(self, passes: Passes, k: int) -> bool:
        fell = passes.start - passes.training[k]
        held = passes.start - passes.validation[k]
        return bool(
            fell >= self.learned * abs(passes.start) and held < self.carried_over * fell
        )

    def _is_known_by_heart(self, passes: Passes, k: int) -> bool:
        training, now = passes.training[k], passes.validation[k]
        # Ratios mean nothing for a loss that may be negative.
        return bool(
            k > 0
            and passes.start > 0.0
            and 0.0 <= training <= self.by_heart * passes.start
            and now >= self.times * training
            and now >= self.left * passes.start
            and now >= (1.0 - self.improvement) * passes.validation[k - 1]
        )

    def _describe(self, passes: Passes) -> Description:
        if _is_training_data(passes):
            return _of_training_data(len(passes.validation))
        best = int(np.argmin(passes.validation))
        low, now = float(passes.validation[best]), float(passes.validation[-1])
        training = float(passes.training[-1])
        ago = len(passes.validation) - 1 - best
        if self._rises(passes, len(passes.validation) - 1):
            return Description(
                message=(
                    "The model overfits: the validation loss has risen from "
                    f"{number(low, 4)} to {number(now, 4)} in {plural(ago, 'pass')}, "
                    "while the training loss fell from "
                    f"{number(passes.training[best], 4)} to {number(training, 4)}."
                    f"{passes.consequence()}"
                ),
                value=(now - low) / abs(low) if low else now - low,
                threshold=self.rise,
                evidence=Evidence("mean", low + self.rise * abs(low)),
                advice=lambda words: words.overfitting,
            )
        fell, held = passes.start - training, passes.start - now
        if not self._stays_behind(passes, len(passes.validation) - 1):
            return Description(
                message=(
                    "The model has memorized its training data: the training loss is "
                    f"{number(training, 4)}, down from {number(passes.start, 4)}. The "
                    f"validation loss is {number(now, 4)}, "
                    f"{percent(100 * now / passes.start)} of that start, and hardly "
                    "falls any more."
                ),
                value=now / passes.start,
                threshold=self.left,
                evidence=Evidence("mean", self.left * passes.start),
                advice=lambda words: words.overfitting,
            )
        return Description(
            message=(
                f"The model overfits: the training loss fell from "
                f"{number(passes.start, 4)} to {number(training, 4)}, but the "
                f"validation loss is {number(now, 4)}. Validation shows only "
                f"{percent(100 * max(held, 0.0) / fell)} of the fall."
            ),
            value=held / fell,
            threshold=self.carried_over,
            evidence=Evidence("mean", passes.start - self.carried_over * fell),
            advice=lambda words: words.overfitting,
        )


def _is_training_data(passes: Passes) -> bool:
    """Return whether training and validation have the same losses, to the last bit."""
    is_same = bool((passes.validation == passes.latest).all())
    return is_same and len(np.unique(passes.validation)) >= SHARED


def _of_training_data(n_passes: int) -> Description:
    return Description(
        message=(
            "The validation loss equals the training loss to the last digit in all "
            f"{plural(n_passes, 'pass')}. The validation data are the training data, "
            "which cannot show whether the model overfits."
        ),
        value=float(n_passes),
        threshold=float(SHARED),
        advice=(
            "Validate on data that the model is not trained by, for example from "
            "sklearn.model_selection.train_test_split. Early stopping and the best "
            "round mean nothing on training data."
        ),
        stage=Stage.SETUP,
    )
