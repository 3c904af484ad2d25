"""SamplePairing: two views that are one, and labels that do not belong to samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tdbg.config.quantities import percent
from tdbg.rules.builtin.data.sample_rule import SampleRule, SampleVerdict
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.samples import Pairing, SampleFacts
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage

__all__ = ["SamplePairing"]

# Samples that came again, at the least.
MIN_RECURRING = 100
# With a smaller share by chance, one class has nearly all samples.
LEAST_BY_CHANCE = 0.2
VIEWS = {
    "inputs": "The two inputs of the model are the same tensor",
    "halves": "The two halves of each batch are the same samples",
    "calls": "The model is called with the same samples twice for each loss",
}


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePairing(SampleRule):
    """Report pairs of views that are equal, and labels that change at random.

    Args:
        threshold: Samples that come again with another label than before, in percent
            of what labels at random would bring.
        num_steps: How many steps in a row must have equal views.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    threshold: float = 80.0
    num_steps: int = 10

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)
        check_number(self, "num_steps", least=2, whole=True)

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return f"four epochs with labels, or {self.num_steps} steps"

    def verdicts(self, facts: SampleFacts) -> Iterator[SampleVerdict]:
        """Judge the labels, and views of pairs."""
        pairing = facts.pairing
        if pairing.recurring >= MIN_RECURRING and pairing.by_chance:
            share = min(pairing.relabelled / pairing.by_chance, pairing.later)
            is_bad = 100.0 * share >= self.threshold
            is_bad &= pairing.by_chance >= LEAST_BY_CHANCE
            yield SampleVerdict(
                severity=Severity.WARNING if is_bad else None,
                describe=lambda: self._of_labels(pairing),
                what="labels",
            )
        if facts.trained:
            is_equal = bool(pairing.views) and pairing.steps >= self.num_steps
            yield SampleVerdict(
                severity=Severity.INFO if is_equal else None,
                describe=lambda: self._of_views(pairing),
            )

    def _of_labels(self, pairing: Pairing) -> Description:
        return Description(
            message=(
                "Labels do not belong to their inputs: "
                f"{percent(100 * pairing.relabelled)} of samples that came again had "
                "another label, as labels drawn at random would "
                f"({percent(100 * pairing.by_chance)}), and later still others "
                f"({pairing.recurring:,} samples)."
            ),
            value=100.0 * pairing.relabelled,
            threshold=self.threshold * pairing.by_chance,
            since=pairing.label_step,
            stage=Stage.SETUP,
            advice=(
                "Shuffle inputs and labels by one permutation, or shuffle pairs: with "
                "two shuffles, each input gets the label of another."
            ),
        )

    def _of_views(self, pairing: Pairing) -> Description:
        return Description(
            message=(
                f"{VIEWS[pairing.views]}, at {pairing.steps:,} steps in a row. That is "
                "fine if dropout or noise in the model tells them apart."
            ),
            value=float(pairing.steps),
            threshold=float(self.num_steps),
            since=pairing.view_step,
            advice=(
                "If they are to be two views, augment twice: call the transform once "
                "for each view, instead of using its result for both."
            ),
        )
