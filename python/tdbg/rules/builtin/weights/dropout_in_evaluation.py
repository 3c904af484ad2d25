"""DropoutInEvaluation: models that drop units although they are evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tdbg.modes import EVALUATION, ModeKeys
from tdbg.rules.builtin.weights.model_state_rule import ModelStateRule
from tdbg.rules.columns import join_names
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo

__all__ = ["DropoutInEvaluation"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutInEvaluation(ModelStateRule):
    """Report models in eval() that call a dropout function, which drops all the same.

    Args:
        num_steps: Steps for which it must have been so.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING,)
    stage = Stage.SETUP
    modes: ClassVar[frozenset[ModeKeys]] = EVALUATION

    def holds(self, model_info: ModelInfo) -> bool:
        """Whether a module has done so."""
        return bool(model_info.dropping)

    def describe(self, model_info: ModelInfo, since: int) -> Description:
        """Name the modules."""
        found = model_info.dropping
        return Description(
            message=(
                "the model is in eval() and drops units as in training, since step "
                f"{since}: {join_names(found)} calls a dropout function of "
                "torch.nn.functional, which drops unless it is told not to"
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=(
                "say whether the model trains: F.dropout(x, p, training=self.training)"
                "; or use the module torch.nn.Dropout, which knows.  To drop on "
                "purpose (Monte Carlo dropout), say training=True"
            ),
        )
