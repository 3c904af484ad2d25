"""Detection of weights that still have the values a framework drew for them.

An initialization draws from a known distribution with a bound, whose deviation follows
from the sizes of the layer.  Training leaves a bell shape with tails beyond any bound.
So the first row of a weight tells the two apart: by its largest element, its root mean
square, and the ratio of the mean magnitude to that, which shows how round the
distribution is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tdbg.config.kinds import NORMS, Kind
from tdbg.rules.window import Table
from tdbg.run.model_info import ModelInfo, ParameterFacts, owner_of

__all__ = ["NewLayer", "new_last_layer", "new_weights", "untrained"]

# Largest relative distance of the largest number from the bound of its distribution,
# and of the root mean square from the deviation.
TOLERANCE = 0.1
LEAST_WEIGHTS = 64
# This many scales of exactly one are enough evidence, whatever other weights show.
ENOUGH_SCALES = 3
# Rows of weights for each unit of a recurrent layer.
RECURRENT: Mapping[str | None, int] = {Kind.RNN: 1, Kind.GRU: 3, Kind.LSTM: 4}
# The deviation of a normal distribution cut at two deviations, and its ratio of the
# mean magnitude to the root mean square, which is 0.866 for a uniform distribution.
_CUT_AT = 2.0
_CUT_DEVIATION = 0.87962566103423978
_CUT_ROUNDNESS = 0.8216
# The same ratio of a normal distribution, sqrt(2 / pi), and of a uniform one.
_NORMAL_ROUNDNESS, _FLAT_ROUNDNESS = 0.7979, 0.8660
# The scatter of that ratio for a few hundred numbers, and of the largest of them
# about the cut.
_CUT_TOLERANCE = 0.02
_LARGEST_TOLERANCE = 0.25
# Standard errors within which a mean or a deviation is that of a distribution.
_SIGNIFICANT = 3.0


def untrained(table: Table, model_info: ModelInfo, names: Sequence[str]) -> list[str]:
    """Return the weights with their initial values; none if any has learned.

    The result leaves out a weight that is too small, has no first row, or belongs to no
    layer.

    Args:
        table: Has the first row of each weight.
        model_info: What is known of the model.
        names: Of parameters.
    """
    index = {name: i for i, name in enumerate(table.names)}
    drawn: list[str] = []
    scales: list[str] = []
    has_learned = False
    for name in names:
        i, parameter = index.get(name), model_info.parameters[name]
        is_scale = (
            len(parameter.shape) == 1
            and model_info.kind_of_leaf(parameter.module) in NORMS
        )
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
        elif _is_drawn(table, i, j, model_info, parameter):
            drawn.append(name)
        else:
            has_learned = True
    if has_learned:
        return scales if len(scales) >= ENOUGH_SCALES else []
    found = {*drawn, *scales} if drawn else set()
    return [name for name in names if name in found]


def new_weights(table: Table, model_info: ModelInfo, names: Sequence[str]) -> list[str]:
    """Return those of these weights that are surely as they were made, each by itself.

    A matrix fits a distribution with a bound, or a normal one with a deviation of 1, or
    has the shape of a normal or uniform one beside a bias that is exactly zero.  The
    scale of a normalization is exactly 1.

    Args:
        table: Has the first row of each weight and bias.
        model_info: What is known of the model.
        names: Of parameters.
    """
    index = {name: i for i, name in enumerate(table.names)}
    first = {
        name: int(rows[0])
        for name in names
        if (i := index.get(name)) is not None
        and len(rows := np.flatnonzero(table.known[i] & (table.ordinal[i] == 1)))
    }
    zero = {
        owner_of(name)
        for name, j in first.items()
        if table.roles[index[name]] == "bias" and table["l2"][index[name], j] == 0
    }
    result = []
    for name, j in first.items():
        i, parameter = index[name], model_info.parameters[name]
        if table.roles[i] != "weight":
            continue
        if _is_judged(parameter):
            is_new = (
                _is_drawn(table, i, j, model_info, parameter)
                or _is_standard_normal(table, i, j)
                or (owner_of(name) in zero and _has_shape_of_drawn(table, i, j))
            )
        else:
            is_new = model_info.kind_of_leaf(parameter.module) in NORMS
            is_new &= table["min"][i, j] == table["max"][i, j] == 1.0
        if is_new:
            result.append(name)
    return result


class NewLayer(NamedTuple):
    """A layer that is as it was made.

    Attributes:
        weight: Name of its weight.
        has_zero_bias: Whether it has a bias, which is exactly zero.
    """

    weight: str
    has_zero_bias: bool


def new_last_layer(
    table: Table, model_info: ModelInfo, frozen: Collection[str]
) -> NewLayer | None:
    """Return the last layer if it is frozen as it was made; else None.

    However small its weights were drawn, they have the shape of a normal or a uniform
    distribution, and the bias is exactly zero, which training leaves nowhere.  With
    another bias or none, only a distribution with a bound tells them from trained
    weights; the bias is then within that bound, too.

    Args:
        table: Has the first row of each weight and bias.
        model_info: What is known of the model.
        frozen: Names of the parameters that are not trained.
    """
    index = {name: i for i, name in enumerate(table.names)}
    *_, before, last = ["", "", *model_info.parameters]
    has_bias = owner_of(before) == owner_of(last) and before != ""
    weight = before if has_bias else last
    if not {weight, last} <= {*frozen} & index.keys():
        return None
    parameter = model_info.parameters[weight]
    if not _is_judged(parameter):
        return None
    rows = [index[weight], index[last]]
    first = (table.known[rows] & (table.ordinal[rows] == 1)).all(axis=0)
    columns = np.flatnonzero(first)
    if not len(columns):
        return None
    j = int(columns[0])
    if not has_bias:
        is_new = _is_drawn(table, rows[0], j, model_info, parameter)
    else:
        is_zero = table["l2"][rows[1], j] == 0
        is_new = is_zero and _has_shape_of_drawn(table, rows[0], j)
        is_new |= _is_drawn_with_bias(table, rows[0], rows[1], j, model_info, parameter)
    has_zero_bias = has_bias and not table["l2"][rows[1], j]
    return NewLayer(weight, has_zero_bias) if is_new else None


def _is_drawn_with_bias(
    table: Table,
    i: int,
    bias: int,
    j: int,
    model_info: ModelInfo,
    parameter: ParameterFacts,
) -> bool:
    """Return whether PyTorch drew weights and bias, from one uniform distribution."""
    largest = [max(-table["min"][k, j], table["max"][k, j]) for k in (i, bias)]
    return largest[1] <= (1 + TOLERANCE) * largest[0] and _is_drawn(
        table, i, j, model_info, parameter
    )


def _has_shape_of_drawn(table: Table, i: int, j: int) -> bool:
    """Return whether a row has the shape of a normal or a uniform distribution."""
    if not table["l2"][i, j] > 0:
        return False
    count = float(table["count"][i, j])
    root = float(table["l2"][i, j]) / math.sqrt(count)
    roundness = float(table["l1"][i, j]) / count / root
    off = min(abs(roundness - each) for each in (_NORMAL_ROUNDNESS, _FLAT_ROUNDNESS))
    return off <= max(_CUT_TOLERANCE, 1.0 / math.sqrt(count))


def _is_standard_normal(table: Table, i: int, j: int) -> bool:
    """Return whether a row is that of ``torch.randn``, as embeddings are drawn."""
    count = float(table["count"][i, j])
    root = float(table["l2"][i, j]) / math.sqrt(count)
    is_one = abs(root - 1.0) <= _SIGNIFICANT / math.sqrt(2.0 * count)
    is_centered = abs(float(table["mean"][i, j])) <= _SIGNIFICANT / math.sqrt(count)
    roundness = float(table["l1"][i, j]) / count / root if root else 0.0
    off = abs(roundness - _NORMAL_ROUNDNESS)
    return is_one and is_centered and off <= max(_CUT_TOLERANCE, 1 / math.sqrt(count))


def _is_judged(parameter: ParameterFacts) -> bool:
    return len(parameter.shape) >= 2 and math.prod(parameter.shape) >= LEAST_WEIGHTS


def _is_drawn(
    table: Table, i: int, j: int, model_info: ModelInfo, parameter: ParameterFacts
) -> bool:
    """Return whether a row fits a distribution from which frameworks draw weights."""
    largest = float(max(-table["min"][i, j], table["max"][i, j]))
    count = float(table["count"][i, j])
    root = float(table["l2"][i, j]) / math.sqrt(count)
    roundness = float(table["l1"][i, j]) / count / root if root else 0.0
    rows = RECURRENT.get(model_info.kind_of_class(parameter.module))
    return any(
        _is_uniform(largest, root, bound)
        for bound in _uniform_bounds(parameter.shape, rows)
    ) or (
        abs(roundness - _CUT_ROUNDNESS) <= _CUT_TOLERANCE
        and _is_cut_normal(largest, root, _fan_in(parameter.shape))
    )


def _uniform_bounds(shape: tuple[int, ...], rows: int | None) -> Iterator[float]:
    """Yield the bounds of the default initializations of PyTorch and Keras.

    PyTorch: 1 / sqrt(fan_in), or 1 / sqrt(units) for recurrent layers.  Keras: Glorot's
    sqrt(6 / (fan_in + fan_out)), which is common elsewhere too.  The sum does not
    depend on whether a kernel has its units first or last, but on the axes of a
    convolution's window.

    Args:
        shape: The weight's.
        rows: Rows of weights for each unit of a recurrent layer; None: another layer.
    """
    inputs = math.prod(shape[1:]) if rows is None else shape[0] / rows
    yield 1.0 / math.sqrt(inputs)
    for ends, window in (shape[:2], shape[2:]), (shape[-2:], shape[:-2]):
        yield math.sqrt(6.0 / (sum(ends) * math.prod(window)))


def _fan_in(shape: tuple[int, ...]) -> int:
    """Return the inputs of a unit, where units are the last dimension."""
    return math.prod(shape[:-1])


def _is_uniform(largest: float, root: float, bound: float) -> bool:
    return (1 - TOLERANCE) * bound <= largest <= (1 + 1e-6) * bound and abs(
        root * math.sqrt(3.0) / bound - 1
    ) <= TOLERANCE


def _is_cut_normal(largest: float, root: float, fan_in: int) -> bool:
    """Return whether this is Flax's default: LeCun's, cut at two deviations."""
    deviation = 1.0 / math.sqrt(fan_in)
    bound = _CUT_AT * deviation / _CUT_DEVIATION
    return (1 - _LARGEST_TOLERANCE) * bound <= largest <= (1 + 1e-6) * bound and abs(
        root / deviation - 1
    ) <= TOLERANCE
