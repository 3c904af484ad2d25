"""RedrawnEvaluation: evaluation samples that are other ones in each pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tdbg.rules.builtin.data.sample_rule import SampleRule, SampleVerdict
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.samples import Redrawn, SampleFacts
from tdbg.rules.training_facts import NOT_EVALUATED, TrainingFacts
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage

__all__ = ["RedrawnEvaluation"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class RedrawnEvaluation(SampleRule):
    """Report evaluation samples that random augmentation changes in each pass.

    Args:
        num_passes: How many passes with the same labels make a finding.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    num_passes: int = 3

    def __post_init__(self) -> None:
        check_number(self, "num_passes", least=2, whole=True)

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return f"{self.num_passes} evaluations that compute a loss of classes"

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that nothing is evaluated, if so."""
        lacking = SampleRule.inapplicable(self, training)
        return lacking or ("" if training.is_evaluated else NOT_EVALUATED)

    def verdicts(self, facts: SampleFacts) -> Iterator[SampleVerdict]:
        """Judge the passes whose labels are those of the first one."""
        redrawn = facts.redrawn
        if redrawn is None or redrawn.passes < self.num_passes:
            return
        severity = None
        if redrawn.equal == 0:
            severity = Severity.WARNING if redrawn.is_trained_so else Severity.INFO
        yield SampleVerdict(
            severity=severity,
            describe=lambda: self._describe(redrawn),
            what="evaluation",
        )

    def _describe(self, redrawn: Redrawn) -> Description:
        return Description(
            message=(
                f"Evaluation samples are drawn anew in each pass: {redrawn.passes} "
                f"passes have the same {redrawn.samples:,} labels in the same order, "
                "but not one input came twice. Random augmentation is active in "
                "evaluation, so its results rise and fall by chance."
            ),
            value=float(redrawn.passes),
            threshold=float(self.num_passes),
            since=redrawn.step,
            stage=Stage.SETUP,
            advice=(
                "Give the evaluation a dataset of its own, with a transform that is "
                "not random (resize and crop at the centre). Both parts of a "
                "random_split share the dataset's transform. If noise belongs to the "
                "task, seed it before each evaluation."
            ),
        )
