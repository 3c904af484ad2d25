"""StoppedOptimizer: optimizers that step no more while the training goes on."""

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
    """Report optimizers that step no more, though the model is called in training.

    Args:
        num_steps: Steps for which it must have been so.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING,)
    stage = Stage.RATE

    def holds(self, model_info: ModelInfo) -> bool:
        """Whether they have stopped."""
        return model_info.has_stopped

    def describe(self, model_info: ModelInfo, since: int) -> Description:
        """Say since when."""
        optimizers = ", ".join(model_info.optimizers)
        # The first step is one that has ended.
        when = f"has not stepped since step {since}" if since else "has never stepped"
        return Description(
            message=(
                f"the optimizer ({optimizers}) {when}, though the model is called in "
                "training: nothing is learned"
            ),
            value=0.0,
            threshold=1.0,
            since=since,
            advice=(
                "see what keeps optimizer.step() from being called: a condition on the "
                "iteration or epoch, a `continue`, an exception that is caught; and "
                "call model.eval() and torch.no_grad() for what is evaluation"
            ),
        )
