"""RepeatedRandomness: steps of training that draw the same random numbers each time."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.config.quantities import plural
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["RepeatedRandomness"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedRandomness(ObservedRule):
    """Report random numbers, such as dropout masks, that are the same in each step."""

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset({Fault.RANDOM_NUMBERS_REPEAT})
    hooks = frozenset({"JAX"})

    def severity_of(self, observation: Observation) -> Severity:
        """Return a warning where each sample of a batch has its own random numbers.

        Others, such as noise for weights, may be common to all steps on purpose.
        """
        is_sure = observation.numbers.get("samples", 0.0) > 0
        return Severity.WARNING if is_sure else Severity.INFO

    def describe(self, observation: Observation) -> Description:
        """Say what is drawn, and why it repeats."""
        words = observation.words
        calls = int(observation.numbers.get("calls", 0))
        function = words.get("function", "a random function")
        is_mask = function.endswith("bernoulli")
        drawn = "the same units are dropped" if is_mask else "the noise is the same"
        is_argument = words.get("source") == "argument"
        cause = (
            f"each of {plural(calls, 'call')} got the same random key"
            if is_argument
            else "the step makes its random key of a constant"
        )
        return Description(
            message=(
                f"Each training step draws the same random numbers: {cause}, so "
                f"{function} (shape {words.get('shape', '?')}) returns the same in "
                f"every step, and {drawn} for each batch."
            ),
            value=float(calls),
            threshold=0.0,
            advice=(
                "Split the key before each step, and keep the new one: key, subkey = "
                "jax.random.split(key); step(..., subkey). Or make the key inside of "
                "the step: jax.random.fold_in(key, step_number). If all steps are to "
                "share these numbers, ignore this."
            ),
        )
