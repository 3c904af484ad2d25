"""ClippingMisuse: gradients that are clipped at the wrong place, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tdbg.config.quantities import number
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["ClippingMisuse"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ClippingMisuse(ObservedRule):
    """Report calls that clip gradients without effect, or clip scaled ones.

    The rule finds calls

    - with an iterator that has been read before, so that they get no parameters;
    - before the backward pass, when there are no gradients;
    - after the optimizer has stepped;
    - with parameters that no optimizer has;
    - before the scaler of mixed precision has unscaled the gradients;
    - behind an optimizer in a chain, where steps are clipped instead.
    """

    severities = (Severity.WARNING,)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.CLIPPED_NOTHING,
            Fault.CLIPPED_BEFORE_BACKWARD,
            Fault.CLIPPED_AFTER_STEP,
            Fault.CLIPPED_OTHERS,
            Fault.CLIPPED_SCALED,
            Fault.CLIPPED_UPDATES,
        }
    )
    hooks = frozenset({"JAX", "PyTorch"})

    def describe(self, observation: Observation) -> Description:
        """Say what the call does not do, and where it belongs."""
        function = observation.words.get("function", "clip_grad_norm_")
        return _DESCRIBE[observation.fault](function, observation.numbers)


def _description(
    message: str, advice: str, numbers: Mapping[str, float]
) -> Description:
    limit = numbers.get("limit", 0.0)
    return Description(message=message, value=limit, threshold=limit, advice=advice)


def _nothing(function: str, numbers: Mapping[str, float]) -> Description:
    message = (
        f"Clipping has no effect: {function} gets an iterator that has already been "
        "read to its end, so it sees no parameters and clips no gradient."
    )
    advice = (
        f"Call {function}(model.parameters(), ...) with a new model.parameters() "
        "each time, or keep the parameters in a list: "
        "parameters = list(model.parameters()). A generator can be read only once, "
        "and the optimizer, or the first call, has read it."
    )
    return _description(message, advice, numbers)


def _before_backward(function: str, numbers: Mapping[str, float]) -> Description:
    message = (
        f"Clipping has no effect: when the program calls {function}, no parameter has "
        "a gradient yet, and the optimizer then uses gradients that nobody clipped."
    )
    return _description(message, _between(function), numbers)


def _after_step(function: str, numbers: Mapping[str, float]) -> Description:
    message = (
        f"Clipping has no effect: {function} clips gradients that the optimizer "
        "has already used."
    )
    return _description(message, _between(function), numbers)


def _between(function: str) -> str:
    return f"Call {function} after loss.backward() and before optimizer.step()."


def _others(function: str, numbers: Mapping[str, float]) -> Description:
    message = (
        f"Clipping has no effect: {function} gets parameters that no optimizer has and "
        "that get no gradient, such as those of a target network, and the optimizer "
        "uses gradients that nobody clipped."
    )
    advice = (
        f"Give {function} the parameters that your optimizer trains, such as "
        "model.parameters()."
    )
    return _description(message, advice, numbers)


def _scaled(function: str, numbers: Mapping[str, float]) -> Description:
    limit, scale = numbers.get("limit", 0.0), numbers.get("scale", 1.0)
    message = (
        f"{function} clips gradients that are still multiplied by the scale of "
        f"GradScaler ({number(scale)}): the limit of {number(limit)} is one of "
        f"{number(limit / scale)} for the gradients themselves."
    )
    advice = f"Call scaler.unscale_(optimizer) after backward() and before {function}."
    return _description(message, advice, numbers)


def _updates(function: str, numbers: Mapping[str, float]) -> Description:
    limit, rate = numbers.get("limit", 0.0), numbers.get("rate", 0.0)
    message = (
        f"{function} clips no gradients: it stands behind the optimizer in "
        "optax.chain, so it gets steps that the learning rate "
        f"({number(rate)}) has already made small, and its limit is {number(limit)}."
    )
    advice = (
        f"Put {function} first: optax.chain({function}({number(limit)}), "
        "optax.adam(...)). optax.chain applies its transformations in order."
    )
    return _description(message, advice, numbers)


_DESCRIBE: Mapping[Fault, Callable[[str, Mapping[str, float]], Description]] = {
    Fault.CLIPPED_NOTHING: _nothing,
    Fault.CLIPPED_BEFORE_BACKWARD: _before_backward,
    Fault.CLIPPED_AFTER_STEP: _after_step,
    Fault.CLIPPED_OTHERS: _others,
    Fault.CLIPPED_SCALED: _scaled,
    Fault.CLIPPED_UPDATES: _updates,
}
