"""StoppedOptimizer: optimizers that no longer step while the training goes on."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.rules.builtin.weights.model_state_rule import ModelStateRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo

__all__ = ["StoppedOptimizer"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedOptimizer(ModelStateRule):
    """Report optimizers that no longer step although the model runs in training mode.

    Args:
        num_steps: Steps for which this must have held.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING,)
    stage = Stage.RATE

    def holds(self, model_info: ModelInfo) -> bool:
        """Return whether the optimizers have stopped."""
        return model_info.has_stopped

    def describe(self, model_info: ModelInfo, since: int) -> Description:
        """Name the optimizers, and their last step."""
        optimizers = ", ".join(model_info.optimizers)
        # The first step is one that has ended.
        when = f"has not stepped since step {since:,}" if since else "has never stepped"
        return Description(
            message=(
                f"The optimizer ({optimizers}) {when} although the program calls the "
                "model in training mode, so the model does not learn."
            ),
            value=0.0,
            threshold=1.0,
            since=since,
            advice=lambda words: (
                f"Check why the program does not reach {words.stepping}: a condition "
                "on the iteration or epoch, a `continue`, or a caught exception. If "
                f"you only evaluate here, {words.evaluating}."
            ),
        )
