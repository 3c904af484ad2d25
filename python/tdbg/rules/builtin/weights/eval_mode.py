"""TrainedInEvalMode: models that train in evaluation mode."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tdbg.config.quantities import join_names
from tdbg.rules.builtin.weights.model_state_rule import ModelStateRule
from tdbg.rules.registry import register
from tdbg.rules.window import LASTING, Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo

__all__ = ["TrainedInEvalMode"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedInEvalMode(ModelStateRule):
    """Report models that train in eval() although some layers depend on the mode.

    Args:
        num_steps: Steps for which this must have held.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING,)
    stage = Stage.SETUP

    num_steps: int = LASTING

    def holds(self, model_info: ModelInfo) -> bool:
        """Return whether layers evaluate that should train."""
        return bool(model_info.evaluating)

    def describe(self, model_info: ModelInfo, since: int) -> Description:
        """Name the layers."""
        found = model_info.evaluating
        classes = Counter(model_info.modules.get(path, "?") for path in found)
        kinds = ", ".join(f"{n} {kind}" for kind, n in classes.most_common(3))
        return Description(
            message=(
                f"The model is trained in eval(): since step {since:,}, the optimizer "
                "uses gradients of forward passes in evaluation mode, in which "
                f"{kinds} behave differently ({join_names(found)})."
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=(
                "Call model.train() before the training loop and again after each "
                "validation. In evaluation mode, dropout does nothing, and "
                "normalization uses running statistics without updating them. If you "
                "want that, call hook.set_mode(ModeKeys.TRAIN)."
            ),
        )
