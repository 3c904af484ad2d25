"""RunningStatistics: normalizations that evaluate with statistics of something else."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.config.quantities import number, plural
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["RunningStatistics"]

# Deviations by which a mean moves, from which on it matters for the layers above.
_JUMP, _DRIFT = 0.1, 0.5


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStatistics(ObservedRule):
    """Report batch normalizations whose running statistics are not the training's."""

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.NEVER_FED,
            Fault.MOMENTUM_OF_ANOTHER_FRAMEWORK,
            Fault.FROZEN_STATISTICS_MOVE,
        }
    )

    def severity_of(self, observation: Observation) -> Severity:
        """Return a warning, unless the statistics have moved little."""
        least = {
            Fault.MOMENTUM_OF_ANOTHER_FRAMEWORK: _JUMP,
            Fault.FROZEN_STATISTICS_MOVE: _DRIFT,
        }.get(observation.fault, 0.0)
        is_far = observation.numbers.get("distance", 0.0) >= least
        return Severity.WARNING if is_far else Severity.INFO

    def describe(self, observation: Observation) -> Description:
        """Describe the statistics."""
        describe = {
            Fault.NEVER_FED: _of_unfed,
            Fault.MOMENTUM_OF_ANOTHER_FRAMEWORK: _of_momentum,
        }.get(observation.fault, _of_frozen)
        return describe(observation)


def _of_unfed(observation: Observation) -> Description:
    momentum = observation.numbers.get("momentum")
    is_off = momentum == 0
    return Description(
        message=(
            "The model is evaluated with running statistics that training never fed: "
            f"mean 0 and variance 1, as when {_layers(observation)} made. In training, "
            "the statistics of each batch hide this."
        ),
        value=0.0,
        threshold=1.0,
        advice=(
            "Set the layer's momentum to 0.1: with 0, it never updates its running "
            "statistics."
            if is_off
            else "Find out why no forward pass in training mode updates these buffers "
            "(a copy of the model is trained, or the buffers are reset or loaded from "
            "a checkpoint without them). torch.optim.swa_utils.update_bn feeds them "
            "afterwards."
        ),
    )


def _of_momentum(observation: Observation) -> Description:
    momentum = observation.numbers.get("momentum", 0.9)
    jump = observation.numbers.get("distance", 0.0)
    right = number(round(1 - momentum, 6))
    return Description(
        message=(
            f"Running statistics are nearly those of the last batch: in "
            f"{_named(observation)}, momentum is {number(momentum)}, the weight of the "
            f"latest batch. The running means jump by {number(jump)} standard "
            "deviations, and so does what evaluation sees."
        ),
        value=momentum,
        threshold=0.8,
        advice=(
            f"Use momentum={right}. PyTorch's momentum is the weight of the new batch; "
            "in Keras and TensorFlow, it is the weight of the past, so that their "
            f"{number(momentum)} is PyTorch's {right}."
        ),
    )


def _of_frozen(observation: Observation) -> Description:
    distance = observation.numbers.get("distance", 0.0)
    return Description(
        message=(
            f"Frozen layers change: the running statistics of {_named(observation)} "
            f"have moved, the means by up to {number(distance)} standard deviations, "
            "although their weights and those before them are frozen. "
            "requires_grad=False does not stop running statistics."
        ),
        value=distance,
        threshold=_DRIFT,
        advice=(
            "Call eval() on the frozen part after each model.train(): it then uses the "
            "statistics that it was trained with, and keeps them. If you adapt them to "
            "new data on purpose, ignore this."
        ),
    )


def _named(observation: Observation) -> str:
    n = round(observation.numbers.get("layers", 1))
    first = next(iter(observation.names), "a normalization")
    return first if n < 2 else f"{first} and {plural(n - 1, 'other layer')}"


def _layers(observation: Observation) -> str:
    is_one = observation.numbers.get("layers", 1) < 2
    return f"{_named(observation)} {'was' if is_one else 'were'}"
