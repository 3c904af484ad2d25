"""UnregisteredParameter: parameters that neither model nor optimizer knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tdbg.config.quantities import join_names, plural
from tdbg.rules.builtin.weights.model_state_rule import ModelStateRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description, Window
from tdbg.run.findings import Severity, Stage
from tdbg.run.loss_facts import UntrainedParameter
from tdbg.run.model_info import ModelInfo

__all__ = ["UnregisteredParameter"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisteredParameter(ModelStateRule):
    """Report parameters that the loss depends on and that no optimizer trains.

    They belong to no registered module and to no optimizer, like those of layers in a
    plain list.

    Args:
        num_steps: Steps for which this must have been known.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP

    def holds(self, model_info: ModelInfo) -> bool:
        """Return whether the loss depends on untrained parameters."""
        return bool(model_info.untrained)

    def _since(self, window: Window, model_info: ModelInfo) -> int | None:
        """Return the step of the first loss that depends on one of them."""
        known = ModelStateRule._since(self, window, model_info)
        if known is None:
            return None
        return min(known, *(each.since for each in model_info.untrained))

    def severity_of(self, model_info: ModelInfo) -> Severity:
        """Return INFO for a network in eval(), which may judge others, else WARNING."""
        is_mistake = any(map(_is_mistake, model_info.untrained))
        return Severity.WARNING if is_mistake else Severity.INFO

    def describe(self, model_info: ModelInfo, since: int) -> Description:  # noqa: ARG002
        """Name the parameters."""
        found = model_info.untrained
        if made := [each for each in found if each.n_made]:
            return _made_anew(made)
        names = [each.name or f"one of shape {each.shape}" for each in found]
        if any(each.name for each in found):
            advice = (
                "Put layers into torch.nn.ModuleList or ModuleDict instead of a plain "
                "list, and make tensors an nn.Parameter, so that parameters(), to(), "
                "state_dict() and train() include them."
            )
        elif self.severity_of(model_info) == Severity.WARNING:
            advice = (
                "Check that you created the optimizer with the parameters of the model "
                "you train, not of another one (a teacher, a target network). If the "
                "loss has weights of its own, add them (optimizer.add_param_group)."
            )
        else:
            advice = (
                "Their module is in eval(). If you do not want to train them, call "
                "requires_grad_(False) to save the cost of their gradients."
            )
        return Description(
            message=(
                f"The loss depends on {plural(len(found), 'parameter')} that never "
                f"{'changes' if len(found) == 1 else 'change'}, in no optimizer and in "
                f"no captured module: {join_names(names)}."
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=advice,
        )


def _made_anew(found: Sequence[UntrainedParameter]) -> Description:
    shapes = join_names([str(each.shape) for each in found])
    n_made = max(each.n_made for each in found)
    return Description(
        message=(
            f"A layer is made anew in each forward pass: {n_made} losses each depend "
            f"on new parameters of shapes {shapes}, which are gone afterwards. No "
            "module has registered them, and no optimizer trains them."
        ),
        value=float(n_made),
        threshold=0.0,
        advice=(
            "Make the layer once, in the constructor of your module (a lazy layer if "
            "you do not know the size of its input), and call it in the forward pass."
        ),
    )


def _is_mistake(parameter: UntrainedParameter) -> bool:
    return parameter.name is not None or parameter.is_training
