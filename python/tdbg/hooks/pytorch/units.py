"""What is counted of the units of a module's output: where it is saturated.

Implements docs/statistics.md, "Unit summaries".

Thread safety: pure functions.
"""

from __future__ import annotations

import math

from torch import nn

from tdbg.capture.units import UnitQuestion

__all__ = ["OF_ROWS", "question_of"]

# Where the derivative is less than 0.02 of the largest one of tanh, and 0.04 of that
# of the sigmoid: 1 - y^2 and y (1 - y).
_TANH = UnitQuestion(-0.99, 0.99)
_SIGMOID = UnitQuestion(0.01, 0.99)
_ANY = UnitQuestion()
# Of the gradient of an embedding.
OF_ROWS = UnitQuestion(of_rows=True)


def question_of(module: nn.Module) -> UnitQuestion:
    """Between which values an output of this module is not saturated.

    Example:
        >>> question_of(nn.Tanh())
        UnitQuestion(low=-0.99, high=0.99, of_rows=False)
    """
    if isinstance(module, nn.Tanh):
        return _TANH
    if isinstance(module, nn.Sigmoid):
        return _SIGMOID
    if isinstance(module, nn.Hardsigmoid):
        return _between(0.0, 1.0)
    if isinstance(module, nn.ReLU6):
        # At zero it is inactive, as a ReLU is, not saturated.
        return UnitQuestion(high=math.nextafter(6.0, 0.0))
    if isinstance(module, nn.Hardtanh):
        return _between(float(module.min_val), float(module.max_val))
    return _ANY


def _between(low: float, high: float) -> UnitQuestion:
    """At the clamps themselves it is saturated."""
    return UnitQuestion(math.nextafter(low, math.inf), math.nextafter(high, -math.inf))
