"""Find operations over the wrong dimension, in the graphs of the first losses.

Two facts need no probe.  A product of matrices adds up over one dimension, and weights
of an attention must add up to one over the same.  And a loss has one row for each
sample: followed down to the layers, the dimension of the samples must not be the one
over which a softmax, a norm or a recurrent layer goes.

Thread safety: reads only.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from tdbg.hooks.pytorch.checks.graph_nodes import (
    SHAPING,
    Graph,
    name_of,
    operands_of,
    shape_of,
)
from tdbg.hooks.pytorch.checks.graph_reader import Found
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
# Between the weights of an attention and the product with its values.
_OF_WEIGHTS = SHAPING | {"Expand", "FusedDropout", "NativeDropout"}
# Between these weights and the product of queries and keys.
_OF_SCORES = SHAPING | {
    "Add", "Clamp", "Div", "Expand", "MaskedFill", "Mul", "Sub", "Tanh", "Where",
}  # fmt: skip
_DISTANCES = frozenset(
    {"BinaryCrossEntropyWithLogits", "HuberLoss", "MseLoss", "SmoothL1Loss"}
)
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


def key_of_dimensions(graph: Graph) -> Hashable:
    """Return what graphs have in common whose operations go over the same dimensions.

    They have the same operations, and their products and losses are of one shape.
    """
    shaped = graph.named((*_PRODUCTS_OF_TWO, "NllLoss", *_DISTANCES))
    below = [node for each in shaped for node in operands_of(each)[:1]]
    return graph.counts(), tuple(shape_of(each) for each in (*shaped, *below))


def _seen_in(graph: Graph) -> Iterator[_Seen]:
    if graph.named(_SOFTMAXES):
        for node in graph.named(_PRODUCTS_OF_TWO)[:_MOST_PRODUCTS]:
            yield from _of_attention(node)
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
        if not _leads_to_softmax(result[0]):
            continue
        shape = _shape(result)
        axis: _Axis | None = _Axis(len(shape) - back, shape[-back])
        for _ in range(_MOST_BETWEEN):
            if axis is None or not _passes_weights(result[0]):
                break
            result, axis = next(_below(result, axis), (result, None))
        if axis is None or name_of(result[0]) not in _SOFTMAXES:
            continue
        shape, over = _shape(result), _softmax_axis(result[0])
        # Queries and keys are the same places.
        if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] < _LEAST_SAMPLES:
            continue
        if axis.is_whole(shape) and over != axis.at and _compares(result[0]):
            yield _Seen(Fault.ATTENTION_OVER_QUERIES, shape, over)


def _leads_to_softmax(node: Any) -> bool:
    """Return whether there is a softmax where weights of an attention would be made."""
    for _ in range(_MOST_BETWEEN):
        if node is None or not _passes_weights(node):
            break
        node = next(iter(operands_of(node)), None)
    return node is not None and name_of(node) in _SOFTMAXES


def _passes_weights(node: Any) -> bool:
    """Return whether weights of an attention pass an operation as they are.

    Dropout multiplies them by numbers that have no gradient.
    """
    is_by_constant = name_of(node) == "Mul" and len(operands_of(node)) == 1
    return name_of(node) in _OF_WEIGHTS or is_by_constant


def _compares(softmax: Any) -> bool:
    """Return whether a softmax is one of products of queries and keys."""
    waiting = [softmax.next_functions[0][0]]
    for _ in range(_MOST_BETWEEN):
        node = waiting.pop() if waiting else None
        if node is None:
            continue
        if name_of(node) in {"Baddbmm", "Bmm", "Mm"}:
            return sum(each is not None for each, _ in node.next_functions) >= 2
        if name_of(node) in _OF_SCORES:
            waiting += [each for each, _ in node.next_functions]
    return False


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
    seen, waiting = {start[0] for start in starts}, starts
    for result, axis in waiting:
        if (fault := _fault_of(result, axis)) is not None:
            yield fault
            continue
        for below, its in _below(result, axis):
            if below not in seen and len(seen) < _MOST_OF_SAMPLES:
                seen.add(below)
                waiting.append((below, its))
                if (fault := _fault_of_norm(result, below, its)) is not None:
                    yield fault


def _fault_of(result: _Result, axis: _Axis) -> _Seen | None:
    name = name_of(result[0])
    if name in _SOFTMAXES:
        return _fault_of_softmax(result, axis)
    if name in _RECURRENT or name == "Stack":
        return _fault_of_recurrence(result, name, axis)
    return None


def _fault_of_softmax(result: _Result, axis: _Axis) -> _Seen | None:
    shape = _shape(result)
    if not axis.is_whole(shape) or _softmax_axis(result[0]) != axis.at:
        return None
    # Of pairs of samples, both dimensions are samples.
    others = [*shape[: axis.at], *shape[axis.at + 1 :]]
    is_of_pairs = axis.size in others or math.prod(others) < _LEAST_SAMPLES
    return None if is_of_pairs else _Seen(Fault.SOFTMAX_OF_BATCH, shape, axis.at)


def _fault_of_recurrence(result: _Result, name: str, axis: _Axis) -> _Seen | None:
    node, shape = result[0], _shape(result)
    is_sequence = len(shape) == 3 and axis.at < 2 and shape[1 - axis.at] > 1
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
    if name_of(above[0]) != "Div" or below != above[0].next_functions[0]:
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
    seen, waiting = {node}, [node]
    for each in waiting:
        for below, _ in each.next_functions:
            if below is goal:
                return True
            if below is not None and below not in seen and len(seen) < _MOST_OF_CELL:
                seen.add(below)
                waiting.append(below)
    return False


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
