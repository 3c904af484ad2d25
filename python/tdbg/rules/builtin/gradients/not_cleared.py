"""GradientsNotCleared: gradients that grow as a sum from step to step."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.rules.builtin.weights.model_state_rule import ModelStateRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo

__all__ = ["GradientsNotCleared"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsNotCleared(ModelStateRule):
    """Report optimizers whose gradients are the sum of all since the beginning.

    Args:
        num_steps: Steps for which it must have been known.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.ERROR,)
    stage = Stage.SETUP

    def holds(self, model_info: ModelInfo) -> bool:
        """Whether gradients are kept."""
        return model_info.keeps_gradients

    def describe(self, model_info: ModelInfo, since: int) -> Description:
        """Say what happens, and which call is missing."""
        optimizers = ", ".join(model_info.optimizers)
        step = f"step of the optimizer ({optimizers})" if optimizers else "update"
        return Description(
            message=(
                f"gradients are not cleared between steps: until step {since} every "
                f"{step} used the sum of the gradients of all steps so far"
            ),
            value=1.0,
            threshold=0.0,
            advice=(
                "call optimizer.zero_grad() once in each step, before loss.backward() "
                "(in the closure, if there is one); with gradient accumulation, after "
                "each optimizer.step()"
                if optimizers
                else "call model.zero_grad(), or set the .grad of each parameter to "
                "None, after each update"
            ),
        )
