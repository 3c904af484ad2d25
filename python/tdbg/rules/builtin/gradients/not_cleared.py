"""GradientsNotCleared: gradients that add up from step to step."""

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
    """Report optimizers whose gradients add up over all steps since the beginning.

    Args:
        num_steps: Steps for which this must have been known.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.ERROR,)
    stage = Stage.SETUP

    def holds(self, model_info: ModelInfo) -> bool:
        """Return whether the program keeps gradients."""
        return model_info.keeps_gradients

    def describe(self, model_info: ModelInfo, since: int) -> Description:
        """Describe the sum, and name the missing call."""
        optimizers = ", ".join(model_info.optimizers)
        step = f"step of the optimizer ({optimizers})" if optimizers else "update"
        return Description(
            message=(
                "The program does not clear gradients between steps: up to step "
                f"{since:,}, every {step} used the sum of all gradients so far."
            ),
            value=1.0,
            threshold=0.0,
            advice=(
                "Call optimizer.zero_grad() once in each step, before loss.backward() "
                "(in the closure, if you use one). With gradient accumulation, call it "
                "after each optimizer.step()."
                if optimizers
                else "Call model.zero_grad(), or set each parameter's .grad to None, "
                "after each update."
            ),
        )
