"""Find operations over the wrong dimension, in the graphs of the first losses.

Three facts need no probe.  A product of matrices adds up over one dimension; weights of
an attention must add up to one over the same.  And a loss has one row for each
sample: followed down to the layers, the dimension of the samples must not be the one
over which a softmax, a norm or a recurrent layer goes.  And a layer makes the scores of
one place together: changes of shape between it and the loss must not mix places.

Thread safety: reads only.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdbg.hooks.pytorch.checks.data.scrambled_layouts import (
    faults_of_ends,
    faults_of_views,
)
from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    Graph,
    name_of,
    operands_of,
    saved_of,
    shape_of,
    walk,
)
from tdbg.hooks.pytorch.checks.graphs.graph_reader import Found
from tdbg.hooks.pytorch.checks.losses.layer_forms import (
    compares_places,
    leads_to_softmax,
    passes_weights,
)
from tdbg.run.observations import Fault

__all__ = ["faults_of_dimensions", "key_of_dimensions"]

# Operations that samples pass, and products of matrices, at most.
_MOST_OF_SAMPLES, _MOST_PRODUCTS = 300, 200
# Tensors that are joined to one, of which some are followed.
_MOST_JOINED = 4
# Operations between the weights of an attention and a product, and between them and the
# product of queries and keys, at most.
_MOST_BETWEEN = 30
# Operations between two results of a recurrent layer, at most.
_MOST_OF_CELL = 40
_LEAST_SAMPLES = 2

_SOFTMAXES = frozenset({"LogSoftmax", "SafeSoftmax", "Softmax"})
# What treats each element by itself, or keeps all dimensions.
_BY_ELEMENT = _SOFTMAXES | frozenset(
    {
        "Add", "Alias", "Clamp", "ClampMax", "ClampMin", "Clone", "Div", "Elu", "Exp",
        "Expand", "FusedDropout", "Gelu", "Hardswish", "Hardtanh", "LeakyRelu",
        "LogSigmoid", "MaskedFill", "Mish", "Mul", "NativeDropout", "Neg", "Pow",
        "Relu", "Rsub",
        "Sigmoid", "Silu", "Softplus", "Sub", "Tanh", "ToCopy", "Where",
    }
)  # fmt: skip
# What keeps the first dimension of its first operand.
_BY_SAMPLE = frozenset(
    {
        "AdaptiveAvgPool2D", "AdaptiveMaxPool2D", "AvgPool2D", "Convolution",
        "CudnnBatchNorm", "MaxPool2DWithIndices", "MkldnnConvolution",
        "NativeBatchNorm", "NativeGroupNorm", "NativeLayerNorm",
    }
)  # fmt: skip
_VIEWS = frozenset({"ReshapeAlias", "Squeeze", "UnsafeView", "Unsqueeze", "View"})
_TURNING = frozenset({"Permute", "T", "Transpose"})
_JOINING = frozenset({"Cat", "Stack"})
# What leaves dimensions out.
_CHOOSING = frozenset({"Amax", "Logsumexp", "Mean", "Select", "Sum"})
_PRODUCTS_OF_TWO = ("Bmm", "Mm")
_PRODUCTS = frozenset({"Addmm", "Baddbmm", "Bmm", "Mm"})
_DISTANCES = frozenset(
    {"BinaryCrossEntropyWithLogits", "HuberLoss", "MseLoss", "SmoothL1Loss"}
)
# Losses of classes; and layers whose second dimension counts the classes.
_LIKELIHOODS = frozenset({"NllLoss", "NllLoss2D"})
_OF_MAPS = frozenset(
    {
        "Convolution", "CudnnConvolution", "MkldnnConvolution", "NativeBatchNorm",
        "UpsampleBilinear2D", "UpsampleNearest2D",
    }
)  # fmt: skip
# Changes of shape below a loss, and predictions and classes that are traced, at most.
_MOST_SHAPED, _MOST_TRACED = 20, 64
_RECURRENT = frozenset({"CudnnRnn", "MkldnnRnnLayer"})

# An operation, and which of its results.
_Result = tuple[Any, int]


class _Seen(NamedTuple):
    """A fault, with the shape of what an operation takes, and its dimension."""

    fault: Fault
    shape: tuple[int, ...]
    axis: int


class _Axis(NamedTuple):
    """Where a dimension of *size* lies in a tensor.

    Attributes:
        at: The dimension of the tensor that has it.
        size: Its own size.
        inner: The number of elements of that dimension for each of its own: more than
            1 if others were merged into it.
        is_chosen: Whether one place of another dimension was chosen above.
    """

    at: int
    size: int
    inner: int = 1
    is_chosen: bool = False

    def is_whole(self, shape: Sequence[int]) -> bool:
        """Return whether it is all there is in that dimension of the tensor."""
        return self.inner == 1 and shape[self.at] == self.size


# A result with the dimension of its samples.
_Start = tuple[_Result, _Axis]


def faults_of_dimensions(graph: Graph) -> Iterator[Found]:
    """Yield the operations of a loss that go over the wrong dimension.

    Example:
        >>> import torch
        >>> a = torch.randn(2, 5, 4, requires_grad=True)
        >>> weights = (a @ a.transpose(1, 2)).softmax(1)  # Of (batch, query, key).
        >>> list(faults_of_dimensions(Graph((weights @ a).sum())))[0][0]
        <Fault.ATTENTION_OVER_QUERIES: 'attention_over_queries'>
    """
    for seen in _seen_in(graph):
        yield seen.fault, {"axis": float(seen.axis)}, {"shape": str(seen.shape)}
    yield from faults_of_views(graph)
    if "Select" in graph.names:
        yield from faults_of_ends(graph)


def key_of_dimensions(graph: Graph) -> Hashable:
    """Return what graphs have in common whose operations go over the same dimensions.

    They have the same operations, and their products and losses are of one shape.
    """
    shaped = graph.named((*_PRODUCTS_OF_TWO, *_LIKELIHOODS, *_DISTANCES))
    below = [node for each in shaped for node in operands_of(each)[:1]]
    return graph.counts(), tuple(shape_of(each) for each in (*shaped, *below))


def _seen_in(graph: Graph) -> Iterator[_Seen]:
    if graph.named(_SOFTMAXES):
        for node in graph.named(_PRODUCTS_OF_TWO)[:_MOST_PRODUCTS]:
            yield from _of_attention(node)
    for node in graph.named(_LIKELIHOODS):
        yield from _of_scores(node)
    classes = [start for each in graph.named(["NllLoss"]) for start in _rows_of(each)]
    yield from _over_samples(classes)
    # Rows of several numbers may be something else than samples.
    compared = graph.named(_DISTANCES)
    numbers = [start for each in compared for start in _rows_of_numbers(each)]
    for seen in _over_samples(numbers):
        if seen.fault == Fault.RECURRENT_OVER_BATCH:
            yield seen


# ---- attention -----------------------------------------------------------------------


def _of_attention(product: Any) -> Iterator[_Seen]:
    """Yield the fault of weights that do not add up to one where a product does."""
    for i, back in ((0, 1), (1, 2)):
        result = product.next_functions[i]
        if not leads_to_softmax(result[0]):
            continue
        shape = _shape(result)
        axis: _Axis | None = _Axis(len(shape) - back, shape[-back])
        for _ in range(_MOST_BETWEEN):
            if axis is None or not passes_weights(result[0]):
                break
            result, axis = next(_below(result, axis), (result, None))
        if axis is None or name_of(result[0]) not in _SOFTMAXES:
            continue
        shape, over = _shape(result), _softmax_axis(result[0])
        # Queries and keys are the same places.
        if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] < _LEAST_SAMPLES:
            continue
        if axis.is_whole(shape) and over != axis.at and compares_places(result[0]):
            yield _Seen(Fault.ATTENTION_OVER_QUERIES, shape, over)


# ---- samples -------------------------------------------------------------------------


def _rows_of(node: Any) -> Iterator[_Start]:
    """Yield the dimension of the samples of a likelihood, one row for each."""
    result = node.next_functions[0]
    shape = () if result[0] is None else _shape(result)
    if len(shape) != 2 or shape[0] < _LEAST_SAMPLES:
        return
    # A softmax over the samples at this place is a fault of the loss.
    if name_of(result[0]) in _SOFTMAXES and _softmax_axis(result[0]) == 1:
        yield result, _Axis(0, shape[0])


def _rows_of_numbers(node: Any) -> Iterator[_Start]:
    """Yield the first dimension of outputs that are compared with numbers."""
    for result in node.next_functions:
        shape = () if result[0] is None else _shape(result)
        if len(shape) in {1, 2} and shape[0] >= _LEAST_SAMPLES:
            yield result, _Axis(0, shape[0])


def _over_samples(starts: list[_Start]) -> Iterator[_Seen]:
    """Yield operations over the samples of a loss, from the loss downwards."""
    seen, waiting = {start[0] for start in starts}, [*starts]
    for result, axis in waiting:
        name, fault = name_of(result[0]), None
        if name in _SOFTMAXES:
            fault = _fault_of_softmax(result, axis)
        elif name in _RECURRENT or name == "Stack":
            fault = _fault_of_recurrence(result, name, axis, len(starts))
        if fault is not None:
            yield fault
            continue
        for below, its in _below(result, axis):
            if below not in seen and len(seen) < _MOST_OF_SAMPLES:
                seen.add(below)
                waiting.append((below, its))
                fault = _fault_of_norm(result, below, its) if name == "Div" else None
                if fault is not None:
                    yield fault


def _fault_of_softmax(result: _Result, axis: _Axis) -> _Seen | None:
    shape = _shape(result)
    if not axis.is_whole(shape) or _softmax_axis(result[0]) != axis.at:
        return None
    # Of pairs of samples, both dimensions are samples.
    others = [*shape[: axis.at], *shape[axis.at + 1 :]]
    is_of_pairs = axis.size in others or math.prod(others) < _LEAST_SAMPLES
    return None if is_of_pairs else _Seen(Fault.SOFTMAX_OF_BATCH, shape, axis.at)


def _fault_of_recurrence(
    result: _Result, name: str, axis: _Axis, n_losses: int
) -> _Seen | None:
    node, shape = result[0], _shape(result)
    is_sequence = len(shape) == 3 and axis.at < 2 and shape[1 - axis.at] > 1
    # With a loss for each place, it may be the places that are samples.
    is_sequence = is_sequence and n_losses < shape[1 - axis.at]
    is_one_of_it = axis.is_chosen and result[1] == 0
    if not (is_sequence and is_one_of_it and axis.is_whole(shape)):
        return None
    goes_over = (
        axis.at == _time_of(node)
        if name in _RECURRENT
        else name == "Stack" and _axis(node, "dim", shape) == axis.at and _recurs(node)
    )
    return _Seen(Fault.RECURRENT_OVER_BATCH, shape, axis.at) if goes_over else None


def _fault_of_norm(above: _Result, below: _Result, axis: _Axis) -> _Seen | None:
    """Return the fault of samples that are divided by a norm over all of them."""
    if below != above[0].next_functions[0]:
        return None
    shape = _shape(below)
    divisor = above[0].next_functions[1][0]
    while divisor is not None and name_of(divisor) in {"ClampMin", "Clone", "Expand"}:
        divisor = divisor.next_functions[0][0]
    if divisor is None or name_of(divisor) != "LinalgVectorNorm":
        return None
    dims = tuple(_signed(each) % len(shape) for each in divisor._saved_dim or ())
    is_same = divisor.next_functions[0] == below and dims == (axis.at,)
    is_of_pairs = axis.size in (*shape[: axis.at], *shape[axis.at + 1 :])
    if is_same and axis.is_whole(shape) and len(shape) > 1 and not is_of_pairs:
        return _Seen(Fault.NORM_OF_BATCH, shape, axis.at)
    return None


def _time_of(node: Any) -> int:
    """Return the dimension over which a recurrent layer goes."""
    # Without cuDNN, its result is transposed afterwards.
    is_second = node._saved_batch_first and name_of(node) == "CudnnRnn"
    return 1 if is_second else 0


def _recurs(stack: Any) -> bool:
    """Return whether the last of the stacked results is made of the one before it."""
    parts = [each for each, _ in stack.next_functions]
    if len(parts) < _LEAST_SAMPLES or None in parts[:2]:
        return False
    return any(_reaches(parts[i], parts[j]) for i, j in ((1, 0), (0, 1)))


def _reaches(node: Any, goal: Any) -> bool:
    return any(each is goal for each in walk(node, _MOST_OF_CELL))


# ---- scores ------------------------------------------------------------------------


class _Scores(NamedTuple):
    """Where the scores of a loss come from.

    Attributes:
        places: Of each prediction and class, the place whose scores a layer made.
        classes: Of the same, which of its scores.
        layout: The dimensions of the places.
    """

    places: NDArray[np.int64]
    classes: NDArray[np.int64]
    layout: tuple[int, ...]


def _of_scores(loss: Any) -> Iterator[_Seen]:
    """Yield that scores are taken for those of other places than they are."""
    result = loss.next_functions[0]
    while result[0] is not None and name_of(result[0]) in _VIEWS:
        result = result[0].next_functions[0]
    if result[0] is None or name_of(result[0]) not in _SOFTMAXES:
        return
    shape, axis = _shape(result), _softmax_axis(result[0])
    found = _scores_of(result[0], shape, axis)
    if found is None:
        return
    n_places = _n_different(found.places)
    # Places that compete have one score each, and are all of a dimension.
    compete = np.all(_n_different(found.classes) == 1) and shape[axis] in found.layout
    if np.mean(n_places > 1) > 0.5 and not compete:
        yield _Seen(Fault.SCORES_MIXED, shape, axis)
    elif np.all(n_places == 1):
        order = _order_of_labels(loss, found.layout)
        if order is not None and np.any(order != found.places[:, 0]):
            yield _Seen(Fault.LABELS_IN_ANOTHER_ORDER, found.layout, 0)


def _scores_of(softmax: Any, shape: tuple[int, ...], axis: int) -> _Scores | None:
    """Trace some scores of a softmax down to the layer that made them.

    None: something else than changes of shape lies between, or the layer has another
    number of classes, which no change of shape must keep together.
    """
    if len(shape) < 2 or shape[axis] < 2 or math.prod(shape) == 0:
        return None
    size = math.prod(shape) // shape[axis]
    chosen = _spread(size)
    others = np.unravel_index(chosen, shape[:axis] + shape[axis + 1 :])
    places = [each[:, None] for each in others]
    places.insert(axis, _spread(shape[axis])[None, :])
    flat = np.ravel_multi_index(np.broadcast_arrays(*places), shape)
    layout: tuple[int, ...] = ()
    node = softmax.next_functions[0][0]
    for _ in range(_MOST_SHAPED):
        if node is None:
            return None
        name, its = name_of(node), shape_of(node)
        if name in _TURNING:
            at = np.unravel_index(flat, its)
            back = np.argsort([_turned(node, name, its, i) for i in range(len(its))])
            flat = np.ravel_multi_index([at[i] for i in back], [its[i] for i in back])
        elif name not in _VIEWS | {"Alias", "Clone", "ToCopy"} and not (
            name == "Add" and _adds_bias(node, its)
        ):
            break
        layout = its[:-1] if name in _VIEWS else layout
        node = node.next_functions[0][0]
    return None if node is None else _places_of(node, flat, layout, shape[axis])


def _adds_bias(node: Any, shape: tuple[int, ...]) -> bool:
    """Return whether a layer adds its bias here, which has the last dimension only."""
    added = [_shape(each) for each in node.next_functions if each[0] is not None]
    return added == [shape, shape[-1:]]


def _places_of(
    node: Any, flat: NDArray[np.int64], layout: tuple[int, ...], n_classes: int
) -> _Scores | None:
    its = shape_of(node)
    if name_of(node) in _PRODUCTS and len(its) == 2 and its[1] == n_classes:
        layout = layout if math.prod(layout) == its[0] else its[:1]
        return _Scores(flat // n_classes, flat % n_classes, layout)
    if name_of(node) in _OF_MAPS and len(its) > 2 and its[1] == n_classes:
        at = np.unravel_index(flat, its)
        sizes = its[:1] + its[2:]
        places = np.ravel_multi_index((at[0], *at[2:]), sizes)
        return _Scores(places, at[1], sizes)
    return None


def _order_of_labels(loss: Any, layout: tuple[int, ...]) -> NDArray[np.int64] | None:
    """Return the places that the traced labels belong to; None: nobody knows.

    Flat labels are known if they are a view of all labels by two dimensions, which the
    places have, too, be it the other way round.
    """
    labels = saved_of(loss, "target")
    every = getattr(labels, "_base", None)
    if every is None or labels.dim() != 1 or every.dim() != 2 or len(layout) != 2:
        return None
    sizes = tuple(every.shape)
    is_whole = every.is_contiguous() and labels.numel() == every.numel()
    if not is_whole or sizes[0] == sizes[1] or 1 in sizes:
        return None
    chosen = _spread(labels.numel())
    if sizes == layout:
        return chosen
    if sizes[::-1] == layout:
        across: NDArray[np.int64] = chosen % sizes[1] * sizes[0] + chosen // sizes[1]
        return across
    return None


def _spread(n: int) -> NDArray[np.int64]:
    """Return some numbers below *n*, evenly spread; all if there are few."""
    return np.linspace(0, n - 1, min(n, _MOST_TRACED)).round().astype(np.int64)


def _n_different(each: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many different numbers each row has."""
    rows = np.sort(each, axis=1)
    counts: NDArray[np.int64] = 1 + np.count_nonzero(
        rows[:, 1:] != rows[:, :-1], axis=1
    )
    return counts


# ---- from a result to its operands ---------------------------------------------------


def _below(result: _Result, axis: _Axis) -> Iterator[_Start]:
    """Yield the operands that have a dimension of a result, and where they have it."""
    node, name, shape = result[0], name_of(result[0]), _shape(result)
    if result[1] != 0 or axis.at >= len(shape):
        return
    ways = node.next_functions
    if name in _PRODUCTS:
        yield from _below_product(ways[len(ways) - 2 :], len(shape), axis)
    elif name in _BY_ELEMENT:
        yield from _below_elements(ways, shape, axis)
    elif name in _JOINING:
        yield from _below_joined(node, name, shape, axis)
    elif ways and ways[0][0] is not None:
        its = _moved(node, name, shape, _shape(ways[0]), axis)
        if its is not None:
            yield ways[0], its


def _below_elements(
    ways: Sequence[_Result], shape: Sequence[int], axis: _Axis
) -> Iterator[_Start]:
    """Yield operands whose elements are treated one by one, if not broadcast."""
    for way in ways:
        its = () if way[0] is None else _shape(way)
        at = axis.at - (len(shape) - len(its))
        if its and at >= 0 and its[at] == shape[axis.at]:
            yield way, axis if at == axis.at else axis._replace(at=at)


def _below_joined(
    node: Any, name: str, shape: Sequence[int], axis: _Axis
) -> Iterator[_Start]:
    """Yield some of the tensors that are joined along another dimension."""
    joined = _axis(node, "dim", shape)
    if joined != axis.at:
        at = axis.at - (name == "Stack" and axis.at > joined)
        for way in node.next_functions[:_MOST_JOINED]:
            if way[0] is not None:
                yield way, axis._replace(at=at)


def _below_product(ways: Sequence[_Result], ndim: int, axis: _Axis) -> Iterator[_Start]:
    """Yield the operand of a product of matrices that gives it a dimension."""
    from_end = ndim - axis.at
    for way, is_of in zip(ways, (from_end != 1, from_end != 2), strict=True):
        if way[0] is not None and is_of:
            yield way, axis


def _moved(
    node: Any, name: str, shape: Sequence[int], its: Sequence[int], axis: _Axis
) -> _Axis | None:
    """Return where the first operand has a dimension of the result."""
    if name in _VIEWS:
        return _viewed(shape, its, axis)
    if name in _TURNING:
        return axis._replace(at=_turned(node, name, shape, axis.at))
    if name in _CHOOSING and hasattr(node, "_saved_dim"):
        return _left(node, name, shape, its, axis)
    is_kept = (name in _BY_SAMPLE and axis.at == 0) or (
        name == "Slice" and its[axis.at] == shape[axis.at]
    )
    return axis if is_kept else None


def _turned(node: Any, name: str, shape: Sequence[int], at: int) -> int:
    """Return where the operand of a transposition has a dimension."""
    if name == "Permute":
        return _signed(node._saved_dims[at]) % len(shape)
    one, other = (
        (0, 1)
        if name == "T"
        else (_axis(node, "dim0", shape), _axis(node, "dim1", shape))
    )
    return one + other - at if at in {one, other} else at


def _left(
    node: Any, name: str, shape: Sequence[int], its: Sequence[int], axis: _Axis
) -> _Axis | None:
    """Return where the operand has a dimension that a choice or reduction left."""
    gone = _gone(node, its)
    left = [i for i in range(len(its)) if i not in gone or len(its) == len(shape)]
    if len(left) != len(shape) or left[axis.at] in gone:
        return None
    chooses = name == "Select" and any(its[i] > 1 for i in gone)
    return axis._replace(at=left[axis.at], is_chosen=axis.is_chosen or chooses)


def _gone(node: Any, its: Sequence[int]) -> set[int]:
    """Return the dimensions that a choice or a reduction leaves out."""
    dims = node._saved_dim
    every = dims if isinstance(dims, tuple | list) else (dims,)
    return {_signed(each) % len(its) for each in every}


def _viewed(shape: Sequence[int], its: Sequence[int], axis: _Axis) -> _Axis | None:
    """Return where a tensor of another shape has the same dimension, if in one."""
    stride = math.prod(shape[axis.at + 1 :]) * axis.inner
    span = stride * axis.size
    step = math.prod(its)
    for at, size in enumerate(its):
        above, step = step, step // max(1, size)
        if step <= stride and span <= above and not (stride % step or above % span):
            return axis._replace(at=at, inner=stride // step)
    return None


def _shape(result: _Result) -> tuple[int, ...]:
    node, i = result
    every = node._input_metadata
    return tuple(map(int, every[i].shape)) if i < len(every) else ()


def _softmax_axis(node: Any) -> int:
    return _axis(node, "dim", _shape((node, 0)))


def _axis(node: Any, key: str, shape: Sequence[int]) -> int:
    return _signed(getattr(node, f"_saved_{key}")) % max(1, len(shape))


def _signed(number: Any) -> int:
    """Return a number that is stored without its sign."""
    whole = int(number)
    return whole - (1 << 64) if whole >= 1 << 63 else whole
