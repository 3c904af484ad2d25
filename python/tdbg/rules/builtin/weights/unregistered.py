"""UnregisteredParameter: parameters that the model and its optimizers do not have."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.rules.builtin.weights.model_state_rule import ModelStateRule
from tdbg.rules.columns import join_names
from tdbg.rules.registry import register
from tdbg.rules.window import Description, Window
from tdbg.run.findings import Severity, Stage
from tdbg.run.loss_facts import UntrainedParameter
from tdbg.run.model_info import ModelInfo

__all__ = ["UnregisteredParameter"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisteredParameter(ModelStateRule):
    """Report parameters that the loss depends on and that nobody trains.

    They belong to no module that is registered and to no optimizer, as those of layers
    in a plain list do.

    Args:
        num_steps: Steps for which it must have been known.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP

    def holds(self, model_info: ModelInfo) -> bool:
        """Whether there are any."""
        return bool(model_info.untrained)

    def _since(self, window: Window, model_info: ModelInfo) -> int | None:
        """Since the loss that was first seen to depend on one of them."""
        known = ModelStateRule._since(self, window, model_info)
        if known is None:
            return None
        return min(known, *(each.since for each in model_info.untrained))

    def severity_of(self, model_info: ModelInfo) -> Severity:
        """A network in eval() may judge others: that is no mistake, if a waste."""
        is_mistake = any(map(_is_mistake, model_info.untrained))
        return Severity.WARNING if is_mistake else Severity.INFO

    def describe(self, model_info: ModelInfo, since: int) -> Description:  # noqa: ARG002
        """Name them."""
        found = model_info.untrained
        names = [each.name or f"one of shape {each.shape}" for each in found]
        if any(each.name for each in found):
            advice = (
                "put layers into torch.nn.ModuleList or ModuleDict and not into a "
                "plain list, and other tensors into a module, so that parameters(), "
                "to(), state_dict() and train() know them"
            )
        elif self.severity_of(model_info) == Severity.WARNING:
            advice = (
                "see that the optimizer was made with the parameters of the model that "
                "is trained, and not of another one (a teacher, a target network); "
                "those of a loss with weights of its own add to it "
                "(optimizer.add_param_group)"
            )
        else:
            advice = (
                "their module is in eval(): if they are not to be trained, "
                "requires_grad_(False) saves their gradients"
            )
        return Description(
            message=(
                f"the loss depends on {len(found)} parameters that are in no optimizer "
                f"and in no module that is captured, and that do not change: "
                f"{join_names(names)}"
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=advice,
        )


def _is_mistake(parameter: UntrainedParameter) -> bool:
    return parameter.name is not None or parameter.is_training
