"""DropoutInEvaluation: models that drop units in evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tdbg.config.quantities import join_names
from tdbg.modes import EVALUATION, ModeKeys
from tdbg.rules.builtin.weights.model_state_rule import ModelStateRule
from tdbg.rules.registry import register
from tdbg.rules.training_facts import NOT_EVALUATED, TrainingFacts
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo

__all__ = ["DropoutInEvaluation"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutInEvaluation(ModelStateRule):
    """Report models in eval() that call a dropout function, which still drops units.

    Args:
        num_steps: Steps for which this must have held.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING,)
    stage = Stage.SETUP
    modes: ClassVar[frozenset[ModeKeys]] = EVALUATION

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that the model is never evaluated, if so."""
        if not training.is_evaluated:
            return NOT_EVALUATED
        return ModelStateRule.inapplicable(self, training)

    def holds(self, model_info: ModelInfo) -> bool:
        """Return whether a module drops units in evaluation."""
        return bool(model_info.dropping)

    def describe(self, model_info: ModelInfo, since: int) -> Description:
        """Name the modules."""
        found = model_info.dropping
        return Description(
            message=(
                f"The model drops units in evaluation, since step {since:,}: "
                f"{join_names(found)} {'calls' if len(found) == 1 else 'call'} a "
                "dropout function of torch.nn.functional, which ignores eval()."
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=(
                "Pass the mode: F.dropout(x, p, training=self.training). Or use the "
                "module torch.nn.Dropout, which follows eval(). To drop units on "
                "purpose (Monte Carlo dropout), pass training=True."
            ),
        )
