"""ModelCopies: averages, targets and best weights that are not what they should be."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.config.quantities import number
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["ModelCopies"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCopies(ObservedRule):
    """Report copies of a model that are stale, never move, or are no copies at all."""

    severities = (Severity.WARNING,)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.WEIGHTS_BY_REFERENCE,
            Fault.STATISTICS_LEFT_BEHIND,
            Fault.AVERAGE_NEVER_MOVES,
            Fault.AVERAGE_NEVER_FED,
            Fault.TARGET_NEVER_MOVES,
        }
    )

    def describe(self, observation: Observation) -> Description:
        """Describe the copy."""
        describe = {
            Fault.WEIGHTS_BY_REFERENCE: _of_reference,
            Fault.STATISTICS_LEFT_BEHIND: _of_statistics,
            Fault.AVERAGE_NEVER_MOVES: _of_average,
            Fault.AVERAGE_NEVER_FED: _of_mean,
        }.get(observation.fault, _of_target)
        return describe(observation)


def _of_reference(observation: Observation) -> Description:
    name = _name(observation)
    return Description(
        message=(
            f"load_state_dict() restored nothing: the weights that {name} was given "
            "are its own. state_dict() returns references, not copies, so that the "
            "weights kept earlier went on changing with the model."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            "Copy what you keep: best = copy.deepcopy(model.state_dict()), or "
            "{k: v.clone() for k, v in model.state_dict().items()}, or save it to a "
            "file with torch.save and load that."
        ),
    )


def _of_statistics(observation: Observation) -> Description:
    distance = observation.numbers.get("distance", 0.0)
    return Description(
        message=(
            f"A copy of {_name(observation)} evaluates with stale running statistics: "
            "its weights follow the model's, its BatchNorm buffers never changed. "
            f"Their means are up to {number(distance)} standard deviations from the "
            "model's."
        ),
        value=distance,
        threshold=0.0,
        advice=(
            "Copy the buffers, too, when you update the average: for ours, theirs in "
            "zip(ema.buffers(), model.buffers()): ours.copy_(theirs), as "
            "torch.optim.swa_utils.AveragedModel does. Or call "
            "update_bn(loader, averaged) before you evaluate it."
        ),
    )


def _of_average(observation: Observation) -> Description:
    steps = round(observation.numbers.get("steps", 0))
    return Description(
        message=(
            f"The average of weights never moves: after {steps:,} steps, the copy of "
            f"{_name(observation)} that is evaluated still has the weights of the "
            "beginning, and nobody has written to them."
        ),
        value=0.0,
        threshold=1.0,
        advice=(
            "Update the average in place after each optimizer step: "
            "ours.mul_(decay).add_(theirs, alpha=1 - decay) under torch.no_grad(), or "
            "averaged.update_parameters(model). ours = decay * ours + ... only binds "
            "a name."
        ),
    )


def _of_mean(observation: Observation) -> Description:
    models = round(observation.numbers.get("models", 0))
    return Description(
        message=(
            f"The average of {models:,} models evaluates with the running statistics "
            f"of the last one: AveragedModel copies the BatchNorm buffers of "
            f"{_name(observation)}, which do not fit averaged weights, and nobody has "
            "computed them for the average."
        ),
        value=float(models),
        threshold=1.0,
        advice=(
            "Call torch.optim.swa_utils.update_bn(loader, averaged) after the last "
            "update_parameters(), before you evaluate or save the average."
        ),
    )


def _of_target(observation: Observation) -> Description:
    steps = round(observation.numbers.get("steps", 0))
    return Description(
        message=(
            f"The target network never moves: up to step {steps:,}, nobody has updated "
            f"the copy of {_name(observation)} that makes the targets."
        ),
        value=0.0,
        threshold=1.0,
        advice=(
            "Copy the weights to the target network now and then "
            "(target.load_state_dict(model.state_dict())), or move it a little after "
            "each step. If you update it less often than this training is long, "
            "update it more often."
        ),
    )


def _name(observation: Observation) -> str:
    return next(iter(observation.names), "the model")
