"""Which weights are still as PyTorch initializes them, so that nothing was learned.

Linear layers and convolutions are uniform within 1 / sqrt(fan_in) of zero, recurrent
layers within 1 / sqrt(units).  No training leaves that: not up to the bound and never
beyond it, and with the deviation of a uniform distribution.  The scales of
normalizations are exactly one.

Thread safety: pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tdbg.facts import Facts, ParameterFacts
from tdbg.rules.window import Table

__all__ = ["untrained"]

# How far numbers of a uniform distribution, so many at least, may be from its bound and
# its deviation.
UNIFORM = 0.1
LEAST_WEIGHTS = 64
# So many scales of exactly one tell by themselves, however other weights were drawn.
ENOUGH_SCALES = 3
# Units have so many rows of weights each.
RECURRENT = {"RNN": 1, "GRU": 3, "LSTM": 4}


def untrained(table: Table, facts: Facts, names: Sequence[str]) -> list[str]:
    """Those of these weights that are as they are made; none if one of them is not.

    What is too small to tell, was not seen as it began, or is no weight of a layer, is
    left out.

    Args:
        table: Has the first row of each weight.
        facts: What is known of the model.
        names: Of parameters.
    """
    index = {name: i for i, name in enumerate(table.names)}
    drawn: list[str] = []
    scales: list[str] = []
    has_learned = False
    for name in names:
        i, parameter = index.get(name), facts.parameters[name]
        is_scale = len(parameter.shape) == 1 and "Norm" in parameter.module
        if i is None or table.roles[i] != "weight":
            continue
        if not is_scale and not _is_judged(parameter):
            continue
        rows = np.flatnonzero(table.known[i] & (table.ordinal[i] == 1))
        if not len(rows):
            continue
        j = int(rows[0])
        if is_scale:
            if table["min"][i, j] != 1.0 or table["max"][i, j] != 1.0:
                return []
            scales.append(name)
        elif _is_uniform(table, i, j, _bound(parameter)):
            drawn.append(name)
        else:
            has_learned = True
    if has_learned:
        return scales if len(scales) >= ENOUGH_SCALES else []
    found = {*drawn, *scales} if drawn else set()
    return [name for name in names if name in found]


def _is_judged(parameter: ParameterFacts) -> bool:
    return len(parameter.shape) >= 2 and math.prod(parameter.shape) >= LEAST_WEIGHTS


def _bound(parameter: ParameterFacts) -> float:
    rows = RECURRENT.get(parameter.module)
    inputs = math.prod(parameter.shape[1:])
    return 1.0 / math.sqrt(inputs if rows is None else parameter.shape[0] / rows)


def _is_uniform(table: Table, i: int, j: int, bound: float) -> bool:
    largest = max(-table["min"][i, j], table["max"][i, j])
    root = table["l2"][i, j] / math.sqrt(table["count"][i, j])
    return bool(
        (1 - UNIFORM) * bound <= largest <= (1 + 1e-6) * bound
        and abs(root * math.sqrt(3.0) / bound - 1) <= UNIFORM
    )
