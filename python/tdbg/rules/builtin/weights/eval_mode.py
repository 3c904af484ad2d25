"""TrainedInEvalMode: models that are trained in evaluation mode."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tdbg.rules.builtin.weights.model_state_rule import ModelStateRule
from tdbg.rules.columns import join_names
from tdbg.rules.registry import register
from tdbg.rules.window import LASTING, Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo

__all__ = ["TrainedInEvalMode"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedInEvalMode(ModelStateRule):
    """Report models that are trained in eval(), though layers of theirs mind.

    Args:
        num_steps: Steps for which it must have been so.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING,)
    stage = Stage.SETUP

    num_steps: int = LASTING

    def holds(self, model_info: ModelInfo) -> bool:
        """Whether layers are evaluating that should train."""
        return bool(model_info.evaluating)

    def describe(self, model_info: ModelInfo, since: int) -> Description:
        """Name the layers."""
        found = model_info.evaluating
        classes = Counter(model_info.modules.get(path, "?") for path in found)
        kinds = ", ".join(f"{n} {kind}" for kind, n in classes.most_common(3))
        return Description(
            message=(
                f"the model is trained in eval(): since step {since} the optimizer "
                f"uses gradients of forwards that it made in evaluation mode, in which "
                f"{kinds} work otherwise than in training: {join_names(found)}"
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=(
                "call model.train() before the training loop, and again after each "
                "validation: dropout does nothing in evaluation mode, and "
                "normalization uses running statistics that nobody updates. If that "
                "is meant, say so by hook.set_mode(ModeKeys.TRAIN)"
            ),
        )
