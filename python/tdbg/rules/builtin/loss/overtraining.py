"""Overtraining: trainings that go on for too long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import number, plural
from tdbg.rules.builtin.loss.passes import Passes, PassesRule, judge_passes
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import OK, Description, Evaluation, Window
from tdbg.run.findings import Severity, Stage

__all__ = ["Overtraining"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Overtraining(PassesRule):
    """Report trainings that go on long after validation has stopped improving.

    The finding is an info once ``passes_validation`` passes had no new best.  It is a
    warning if validation is then surely worse than its best, by ``worse`` and by
    ``worse_of_start``, while the training loss fell and nothing keeps the best model.
    The model must be worse, too: it classifies fewer samples rightly, or, where nobody
    knows, has lost the share ``lost`` of what it had learned.  If it classifies more
    samples rightly than at the best loss, the rule says nothing.  A loss that the
    program adds to others, and that rises in training too, gives way to them.

    Args:
        passes_validation: Passes without a new best of the validation loss.
        passes_train: Passes without a new best of the training loss; 0: do not require
            any.
        improvement: Least share by which a new best must be below the last one.
        worse: Share of the best by which the validation loss may be above it.
        worse_of_start: Share of the first training loss by which it may also be above
            its best.
        lost: Share of what it had learned that the model may lose, if accuracy is not
            known.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.VALIDATION

    passes_validation: int = 10
    passes_train: int = 0
    improvement: float = 0.01
    worse: float = 0.05
    worse_of_start: float = 0.05
    lost: float = 0.25

    def __post_init__(self) -> None:
        check_number(self, "passes_validation", least=1, whole=True)
        check_number(self, "passes_train", least=0, whole=True)
        check_number(self, "improvement", least=0.0)
        check_number(self, "worse", least=0.0)
        check_number(self, "worse_of_start", least=0.0)
        check_number(self, "lost", least=0.0, most=1.0)

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return (
            f"a loss of more than {plural(self.passes_validation, 'pass')} over "
            "validation data (steps of mode EVAL)"
        )

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each loss at the end of each pass of evaluation."""
        return judge_passes(window, self._level, self._describe)

    def _level(self, passes: Passes) -> int:
        if self._since_best(passes.validation) < self.passes_validation:
            return OK
        if self._since_best(passes.training) < self.passes_train:
            return OK
        best = int(np.argmin(passes.validation))
        if passes.is_term and passes.training[-1] > passes.training[best]:
            return OK
        low = float(passes.validation[best])
        recent = float(np.median(passes.validation[-self.passes_validation :]))
        rise = recent - low
        is_worse = (
            rise > self.worse * abs(low)
            and rise > self.worse_of_start * abs(passes.start)
            and passes.training[-1] < passes.training[best]
            and passes.has_surely_risen(len(passes.validation) - 1)
        )
        if is_worse and passes.recognizes_more(len(passes.validation) - 1):
            return OK
        is_worse &= passes.is_worse(recent, self.lost)
        is_sick = is_worse and not passes.keeps_best
        return int(Severity.WARNING if is_sick else Severity.INFO)

    def _since_best(self, loss: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
        """Return how many passes ago the last new minimum was."""
        best, at = float(loss[0]), 0
        for k, value in enumerate(loss.tolist()):
            if value < best - self.improvement * abs(best):
                best, at = value, k
        return len(loss) - 1 - at

    def _describe(self, passes: Passes) -> Description:
        best = int(np.argmin(passes.validation))
        low, now = float(passes.validation[best]), float(passes.validation[-1])
        ago = self._since_best(passes.validation)
        first, last = float(passes.training[best]), float(passes.training[-1])
        digits, of_training = _digits(low, now), _digits(first, last)
        return Description(
            message=(
                f"The validation loss has not improved for {plural(ago, 'pass')}: its "
                f"best was {number(low, digits)} and it is {number(now, digits)} now. "
                "Meanwhile, the training loss went from "
                f"{number(first, of_training)} to {number(last, of_training)}."
                f"{passes.consequence()}"
            ),
            value=float(ago),
            threshold=float(self.passes_validation),
            advice=lambda words: words.stopping_early,
        )


def _digits(before: float, now: float) -> int:
    """Return how many digits tell two numbers apart: 4 to 7."""
    return next((n for n in (4, 5, 6) if number(before, n) != number(now, n)), 7)
