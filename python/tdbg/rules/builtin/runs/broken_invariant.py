"""BrokenInvariant: conditions of the author's that do not hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tdbg.config.needs import Needs
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.training_facts import TrainingFacts
from tdbg.rules.window import Description
from tdbg.run.findings import Severity
from tdbg.run.observations import Fault, Observation

__all__ = ["BrokenInvariant"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenInvariant(ObservedRule):
    """Report conditions given to ``hook.invariant`` that do not hold.

    Example::

        hook.invariant("frozen", tdbg.invariants.unchanged(model.backbone))
    """

    severities = (Severity.INFO, Severity.ERROR)
    faults: ClassVar[frozenset[Fault]] = frozenset({Fault.BROKEN_INVARIANT})

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Losses, which have a row at each step."""
        return (Needs(collections=frozenset({"losses"})),)

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return nothing: any training may have conditions."""
        del training
        return ""

    unobserved = inapplicable

    def severity_of(self, observation: Observation) -> Severity:
        """Return error, or info for a condition that could not be checked."""
        is_unchecked = "error" in observation.words
        return Severity.INFO if is_unchecked else Severity.ERROR

    def describe(self, observation: Observation) -> Description:
        """Say how the condition is broken, or why nobody knows."""
        error = observation.words.get("error")
        if error is not None:
            return Description(
                message=f"This invariant could not be checked: {error}",
                advice="Correct the function that you gave to hook.invariant. tdbg "
                "gave it up after it raised three times in a row.",
            )
        said = observation.words.get("message", "")
        return Description(
            message=f"This invariant of yours does not hold. {said}".rstrip(),
            advice="Look at what your program did in the training step before. tdbg "
            "does not check this invariant any more.",
        )
