"""NondeterministicEvaluation: models that are random in evaluation mode."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.config.quantities import join_names
from tdbg.rules.builtin.probed_rule import ProbedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["NondeterministicEvaluation"]

_MODULE, _ATTENTION = "a dropout module", "scaled_dot_product_attention"
_DEFAULT = "dropout without the argument training"


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class NondeterministicEvaluation(ProbedRule):
    """Report models that answer the same input differently in evaluation mode."""

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset({Fault.ACTIVE_IN_EVALUATION, Fault.RANDOM_IN_EVALUATION})
    hooks = frozenset({"Keras", "PyTorch"})
    question = "randomness"

    def severity_of(self, observation: Observation) -> Severity:
        """Return a warning for dropout that nobody can mean, else an info."""
        if observation.fault is Fault.ACTIVE_IN_EVALUATION:
            is_sure = observation.numbers.get("augments", 0.0) > 0
        else:
            is_sure = bool({_MODULE, _ATTENTION, _DEFAULT} & _functions(observation))
        return Severity.WARNING if is_sure else Severity.INFO

    def describe(self, observation: Observation) -> Description:
        """Say what is random, as far as it was seen."""
        if observation.fault is Fault.ACTIVE_IN_EVALUATION:
            return _of_layers(observation)
        change = observation.numbers.get("change", 0.0)
        called = observation.words.get("functions", "")
        seen = f" It called {called}." if called else ""
        return Description(
            message=(
                f"In evaluation, {observation.names[0]} answers the same input "
                f"differently: called twice in eval(), its outputs differ by up to "
                f"{change:.2g} standard deviations.{seen}"
            ),
            value=change,
            threshold=0.0,
            advice=_advice(_functions(observation)),
        )


def _of_layers(observation: Observation) -> Description:
    classes = observation.words.get("layers", "")
    n = int(observation.numbers.get("layers", 1))
    is_one = n == 1
    return Description(
        message=(
            f"In evaluation, {join_names(observation.names)} "
            f"{'is' if is_one else 'are'} active ({classes}): "
            f"{'it draws' if is_one else 'they draw'} random numbers there as in "
            "training. The same input gets another answer each time, and a worse one."
        ),
        value=float(n),
        threshold=0.0,
        advice=(
            "Leave the argument training out where you call the layer, or a model that "
            "contains it, or hand on the one that your call() gets: with "
            "training=True, these layers are active in every mode. For Monte Carlo "
            "dropout on purpose, ignore this."
        ),
    )


def _functions(observation: Observation) -> set[str]:
    return {*observation.words.get("functions", "").split(", ")} - {""}


def _advice(functions: set[str]) -> str:
    if _MODULE in functions:
        return (
            "eval() does not reach a Dropout that your forward makes anew, or that "
            "stands in a plain list. Make it once, as an attribute (nn.Dropout) or in "
            "an nn.ModuleList."
        )
    if _DEFAULT in functions:
        return (
            "Pass the mode: F.dropout(x, p, training=self.training). Without it, the "
            "function drops in eval(), too, because training=True is its default. For "
            "Monte Carlo dropout on purpose, pass training=True."
        )
    if _ATTENTION in functions:
        return (
            "scaled_dot_product_attention drops in every mode: pass dropout_p=self.p "
            "if self.training else 0.0."
        )
    return (
        "If your model samples on purpose (a VAE, Monte Carlo dropout, a policy), this "
        "is right. Otherwise make noise, dropout and augmentation depend on the mode: "
        "if self.training: ..., F.dropout(x, p, training=self.training)."
    )
