"""The order of the forward pass: how pictures of all layers list them.

Thread safety: as the trial's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tdbg.config.collections import Role
from tdbg.config.tensor_names import PREFIXES, parameter_in

if TYPE_CHECKING:
    from tdbg.trial.trial import Trial

__all__ = ["in_forward_order"]


def in_forward_order(trial: Trial, names: Iterable[str]) -> list[str]:
    """Names of tensors in the order of the forward pass.

    Parameters, and gradients and updates of parameters, stand in the order of the
    model, everything else behind them as it first came in a step.
    """
    info = trial.model_info()
    parameters = list(info[-1].parameters) if info else []
    place = {name: i for i, name in enumerate(parameters)}

    def key(name: str) -> tuple[float, int]:
        of_parameter = place.get(_parameter_of(name), math.inf)
        return of_parameter, trial.tensor(name).position

    return sorted(names, key=key)


def _parameter_of(name: str) -> str:
    """The parameter that a gradient, an update or a state of an optimizer is of."""
    if name.startswith(PREFIXES[Role.OPTIMIZER_STATE]):
        return name.split("/", 2)[-1]
    return parameter_in(name)
