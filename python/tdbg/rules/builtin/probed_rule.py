"""ProbedRule: base class of rules about what probes of a model found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.training_facts import TrainingFacts
from tdbg.rules.window import Evaluation, Idle, Window
from tdbg.run.observations import Fault, Observation

__all__ = ["ProbedRule"]

# Why nothing is known where no hook has said anything.
_NEVER = "no model was probed (docs/probes.md)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedRule(ObservedRule):
    """Base class of rules about what a model computes.

    A model that was not probed, or of which the question was not asked, has no verdict.

    Attributes:
        question: The question that finds the faults (``PROBE_QUESTIONS``).
        explained_by: Faults that are why, and that another rule names for certain.
    """

    question: ClassVar[str]
    explained_by: ClassVar[frozenset[Fault]] = frozenset()

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return why the question was not asked."""
        why = ObservedRule.inapplicable(self, training)
        if any(each.fault in self.faults for each in training.observations):
            return why
        probes = [each for each in training.observations if each.fault is Fault.PROBED]
        asked = next(iter(probes), None)
        reason = _NEVER if asked is None else asked.words.get(self.question, "")
        return why or (f"not probed: {reason}" if reason else "")

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Report what was found, or that nothing is wrong if that was asked."""
        known = window.observations({*self.faults, Fault.PROBED})
        if window.observations(self.explained_by):
            return
        if any(self._answers(each) for each in known):
            yield from ObservedRule.evaluate(self, window)

    def on_idle(self, idle: Idle) -> Iterator[Evaluation]:
        """Report what became known when no step followed, unless it is explained."""
        if not any(each.fault in self.explained_by for each in idle.observations):
            yield from ObservedRule.on_idle(self, idle)

    def _answers(self, observation: Observation) -> bool:
        is_probe = observation.fault is Fault.PROBED
        return not (is_probe and self.question in observation.words)
