"""LossTermMisuse: terms of a loss that do not do what their form says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["LossTermMisuse"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LossTermMisuse(ObservedRule):
    """Report terms of a loss with a wrong sign or form.

    The rule finds

    - an entropy bonus of a policy that is added to the loss;
    - a ratio of probabilities that is one although the policy has changed;
    - the weight of a focal loss that is computed from the mean over the batch;
    - noise that is multiplied by a variance, or by its logarithm.
    """

    severities = (Severity.WARNING,)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.ENTROPY_PENALIZED,
            Fault.RATIO_ALWAYS_ONE,
            Fault.FOCAL_OF_MEAN,
            Fault.VARIANCE_AS_DEVIATION,
        }
    )

    def describe(self, observation: Observation) -> Description:
        """Say what the term does instead, and how it should be."""
        message, advice = _TEXTS[observation.fault]
        return Description(message=message, value=1.0, threshold=0.0, advice=advice)


# What is wrong, and how it should be.
_TEXTS: Mapping[Fault, tuple[str, str]] = {
    Fault.ENTROPY_PENALIZED: (
        (
            "The entropy bonus has the wrong sign: the loss adds the entropy of the "
            "policy, so the training makes the policy certain instead of letting it "
            "explore."
        ),
        (
            "Subtract the entropy: loss = policy_loss - coefficient * entropy.mean(), "
            "with a coefficient above 0."
        ),
    ),
    Fault.RATIO_ALWAYS_ONE: (
        (
            "The ratio of the new to the old policy is always exactly 1: the program "
            "uses the same samples again after an update, but computes the old "
            "log-probabilities anew, with the new policy. Nothing is ever clipped."
        ),
        (
            "Compute the old log-probabilities once, without a gradient, when you "
            "sample the actions, and keep them for all updates: ratio = exp(new - old)."
        ),
    ),
    Fault.FOCAL_OF_MEAN: (
        (
            "The focal loss has one weight for the whole batch: the program computes "
            "(1 - p) ** gamma from the mean of the losses, not from the loss of each "
            "sample, so easy samples weigh as much as hard ones."
        ),
        (
            'Compute the loss of each sample (reduction="none"), multiply each by its '
            "own weight, and then take the mean."
        ),
    ),
    Fault.VARIANCE_AS_DEVIATION: (
        (
            "The sampling multiplies noise by a variance or its logarithm, where a "
            "standard deviation belongs: the divergence in the loss takes the "
            "exponential of the same numbers as the variance."
        ),
        "Take the standard deviation: z = mean + exp(0.5 * log_variance) * noise.",
    ),
}
