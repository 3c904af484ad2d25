"""AccumulationMisuse: micro-batches whose gradients are put together wrongly."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.config.quantities import number
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["AccumulationMisuse"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulationMisuse(ObservedRule):
    """Report gradients of micro-batches that add up, count alike, or are lost.

    Args:
        times: How many times as many labels the largest micro-batch of a step must have
            as the smallest for a warning.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.MEAN_OF_MEANS,
            Fault.MICRO_BATCHES_ADD_UP,
            Fault.MICRO_BATCHES_CLEARED,
            Fault.MICRO_BATCHES_DIVIDED_TWICE,
        }
    )

    times: float = 1.5

    def __post_init__(self) -> None:
        check_number(self, "times", above=1.0)

    def severity_of(self, observation: Observation) -> Severity:
        """Warn of weights that differ much; a sum of losses may be meant."""
        if observation.fault is Fault.MICRO_BATCHES_ADD_UP:
            return Severity.INFO
        if observation.fault is Fault.MICRO_BATCHES_CLEARED:
            return Severity.WARNING
        if observation.fault is Fault.MICRO_BATCHES_DIVIDED_TWICE:
            is_plain = observation.words.get("optimizer") == "SGD"
            return Severity.WARNING if is_plain else Severity.INFO
        is_large = observation.numbers.get("times", 0.0) >= self.times
        return Severity.WARNING if is_large else Severity.INFO

    def describe(self, observation: Observation) -> Description:
        """Say how the micro-batches count, and how they should."""
        if observation.fault is Fault.MEAN_OF_MEANS:
            return self._mean_of_means(observation.numbers.get("times", 0.0))
        passes = observation.numbers.get("passes", 0.0)
        if observation.fault is Fault.MICRO_BATCHES_CLEARED:
            is_undivided = bool(observation.numbers.get("undivided"))
            return _lost(passes) if is_undivided else _last_alone(passes)
        if observation.fault is Fault.MICRO_BATCHES_DIVIDED_TWICE:
            return _divided_twice(passes, observation.words.get("optimizer", ""))
        return _sum_of_means(passes)

    def _mean_of_means(self, times: float) -> Description:
        return Description(
            message=(
                "Gradient accumulation averages the mean losses of micro-batches that "
                "have different numbers of labels: the largest of a step has "
                f"{number(times)} times as many as the smallest, so a label in the "
                f"smallest weighs {number(times)} times as much."
            ),
            value=times,
            threshold=self.times,
            advice=(
                "Sum the losses of each micro-batch, and divide by the number of "
                "labels in all micro-batches of the step. If you mean each "
                "micro-batch to count alike, ignore this."
            ),
        )


def _sum_of_means(passes: float) -> Description:
    return Description(
        message=(
            f"The gradients of {number(passes)} micro-batches add up: each step has "
            f"{number(passes)} backward passes of the same mean loss, which nobody "
            f"divides by {number(passes)}, so updates are {number(passes)} times as "
            "large as with one batch."
        ),
        value=passes,
        threshold=1.0,
        advice=(
            "Divide the loss by the number of micro-batches before each backward "
            "pass. If you mean the sum, or chose the learning rate for it, ignore "
            "this."
        ),
    )


def _last_alone(passes: float) -> Description:
    share = f"1/{number(passes)}"
    return Description(
        message=(
            f"Gradient accumulation uses the last micro-batch only: each step has "
            f"{number(passes)} backward passes, each of which counts {share}, but the "
            "gradients are cleared between them. What is left is a gradient of "
            f"{share} of a small batch."
        ),
        value=1.0,
        threshold=passes,
        advice=(
            "Call zero_grad() once for each step: right after optimizer.step(), or "
            "before the first micro-batch, not before each backward pass."
        ),
    )


def _lost(passes: float) -> Description:
    return Description(
        message=(
            f"The optimizer uses one batch of {number(passes)}: each step has "
            f"{number(passes)} backward passes, and the gradients are cleared between "
            "them, so those of all batches but the last one are lost."
        ),
        value=1.0,
        threshold=passes,
        advice=(
            "Call optimizer.step() inside the loop over the batches, right after "
            "loss.backward(). To accumulate, call zero_grad() once for each step."
        ),
    )


def _divided_twice(passes: float, optimizer: str) -> Description:
    times = number(passes)
    effect = (
        f"so updates are {times} times as small as with one batch"
        if optimizer == "SGD"
        else f"so gradients are {times} times as small as with one batch. {optimizer} "
        "hardly depends on that, but clipping and logged losses do"
    )
    return Description(
        message=(
            f"Gradient accumulation divides twice: each step has {times} backward "
            f"passes, and the loss of each is divided by {times} two times, {effect}."
        ),
        value=1 / passes if passes else 0.0,
        threshold=1.0,
        advice=(
            "Divide the loss in one place. Lightning (accumulate_grad_batches) and "
            "Accelerate (gradient_accumulation_steps) divide it themselves, so give "
            "them the undivided loss."
        ),
    )
