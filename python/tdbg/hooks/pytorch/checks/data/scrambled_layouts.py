"""Find images, and dimensions, that a reshape has scrambled.

``reshape(3, height, width)`` of an image (height, width, 3) changes no number, and no
shape is wrong.  But neighbours in an image are alike, and then the elements that are
alike are not those that the shape says are neighbours.  In memory, an interleaved image
(height, width, channels) repeats its channels: an element is like the one *channels*
places on, less like all others around that one, and like the one a line below.  A
planar image (channels, height, width) has none of that.

A view splits dimensions or merges neighbours.  One that gives a dimension another place
takes elements of several places for those of one, where a transposition was meant.

A recurrent layer of two directions has, at its last place, read one element backwards.

Thread safety: pure functions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    Graph,
    name_of,
    operands_of,
    saved_of,
    shape_of,
    walk,
)
from tdbg.run.observations import Fault

if TYPE_CHECKING:
    from tdbg.hooks.pytorch.checks.graphs.graph_reader import Found

__all__ = [
    "ImageLayout",
    "faults_of_ends",
    "faults_of_views",
    "image_layout_of",
    "mixed_layout",
]

# Channels of images, and pixels in a line or a column, at least.
_CHANNELS, _LEAST_SIDE = {3, 4}, 6
# Samples that tell something; samples that are read at most, and elements of each.
_LEAST_IMAGES, _MOST_IMAGES, _MOST_OF_IMAGE = 4, 16, 1 << 14
# Flags and symbols have few values, and images many; the elements that are compared.
_LEAST_VALUES, _MOST_VALUES = 32, 2048
# Ratios of squared differences between neighbours and others: in a line, and of lines.
_LIKE, _LIKE_LINES = 0.85, 0.5
# By how much differences of channels differ that are no channels.
_UNIFORM = 1.25


class ImageLayout(NamedTuple):
    """How the images of a batch lie in memory, by their numbers.

    Attributes:
        shape: Of the batch.
        kind: "interleaved" where the shape says planar; "planar" where a planar array
            was taken for an interleaved one, and then permuted; "": as it should be.
    """

    shape: tuple[int, ...]
    kind: str


def image_layout_of(given: torch.Tensor) -> ImageLayout | None:
    """Return how a batch of images (samples, channels, height, width) was made.

    None: it has no images, or not enough.

    Example:
        >>> luck = torch.Generator().manual_seed(0)
        >>> steps = torch.randn(8, 9, 9, 1, generator=luck).cumsum(1).cumsum(2)
        >>> images = steps + torch.tensor([0.0, 5.0, 15.0])  # The channels are last.
        >>> image_layout_of(images.reshape(8, 3, 9, 9)).kind
        'interleaved'
        >>> image_layout_of(images.permute(0, 3, 1, 2)).kind
        ''
    """
    if given.dim() != 4 or given.shape[1] not in _CHANNELS or given.is_complex():
        return None
    n, n_channels, height, width = given.shape
    has_lines = 4 * n_channels * width <= _MOST_OF_IMAGE
    if min(height, width) < _LEAST_SIDE or not has_lines or n < _LEAST_IMAGES:
        return None
    with torch.no_grad():
        some = given.detach()[:_MOST_IMAGES]
        lines = some.permute(0, 2, 3, 1)[:, : _MOST_OF_IMAGE // (n_channels * width)]
        planes = some[:, : 1 + _MOST_OF_IMAGE // (height * width)]
        flat, turned = (
            each.flatten(1)[:, :_MOST_OF_IMAGE].cpu().float()
            for each in (planes, lines)
        )
        n_values = len({*flat[:2, :_MOST_VALUES].flatten().tolist()})
        if n_values < _LEAST_VALUES or not bool(flat.isfinite().all()):
            return None
        kind = ""
        if _is_interleaved(flat, n_channels, width):
            kind = "interleaved"
        elif _is_planar(turned, n_channels, width):
            kind = "planar"
    return ImageLayout(tuple(given.shape), kind)


def mixed_layout(seen: list[ImageLayout]) -> str:
    """Return the kind of images that a reshape has mixed in all batches, or "".

    Args:
        seen: The layouts of several batches.
    """
    kinds = {each.kind for each in seen}
    return kinds.pop() if len(seen) > 1 and len(kinds) == 1 else ""


def _is_interleaved(flat: torch.Tensor, n_channels: int, width: int) -> bool:
    """Return whether each pixel has its channels together."""
    around = [k for k in range(1, 2 * n_channels) if k != n_channels]
    least = min(_difference(flat, k) for k in around)
    of_lines = [_difference(flat, k) for k in (width * n_channels, width)]
    return (
        0 < _difference(flat, n_channels) < _LIKE * least
        and of_lines[0] < _LIKE_LINES * of_lines[1]
    )


def _is_planar(flat: torch.Tensor, n_channels: int, width: int) -> bool:
    """Return whether each channel has its pixels together."""
    steps = (flat[:, 1:] - flat[:, :-1]) ** 2
    phases = [float(steps[:, i::n_channels].mean()) for i in range(n_channels)]
    by_distance = [_difference(flat, k) for k in range(1, n_channels + 1)]
    of_lines = [_difference(flat, k) for k in (width, width * n_channels)]
    return (
        0 < max(phases) < _UNIFORM * min(phases)
        and by_distance[0] < _LIKE * by_distance[1]
        and by_distance == sorted(by_distance)
        and of_lines[0] < _LIKE * of_lines[1]
    )


def _difference(flat: torch.Tensor, distance: int) -> float:
    """Return the mean squared difference of elements at a distance in a sample."""
    return float(((flat[:, distance:] - flat[:, :-distance]) ** 2).mean())


# ---- views -------------------------------------------------------------------------

_VIEWS = frozenset({"ReshapeAlias", "UnsafeView", "View"})
# A padded tensor that is viewed with its dimensions swapped is shifted row by row, as
# relative positions are.
_PADDED = frozenset({"Cat", "ConstantPadNd", "SliceScatter"})
_PRODUCTS = frozenset(
    {
        "Baddbmm", "Bmm", "ScaledDotProductCudnnAttention",
        "ScaledDotProductEfficientAttention", "ScaledDotProductFlashAttention",
        "ScaledDotProductFlashAttentionForCpu",
    }
)  # fmt: skip
_CONVOLUTIONS = frozenset({"Convolution", "MkldnnConvolution", "CudnnConvolution"})
# Between a view and the attention before or behind it.
_OF_HEADS = frozenset(
    {
        "Clone", "Expand", "Mul", "NativeDropout", "Permute", "ReshapeAlias", "Slice",
        "Transpose", "UnsafeView", "View",
    }
)  # fmt: skip
_MOST_OF_HEADS = 6
# Dimensions of a tensor with and without heads.
_OF_BOTH = 7
_MOST_AXES = 6
# Directions and layers of a recurrent network, at most.
_MOST_STATES = 16


def faults_of_views(graph: Graph) -> Iterator[Found]:
    """Yield that a view gives a dimension another place.

    Example:
        >>> x = torch.randn(2, 5, 3, requires_grad=True) * 1.0
        >>> [words for _, _, words in faults_of_views(Graph(x.view(2, 3, 5).sum()))]
        [{'shape': '(2, 5, 3)', 'to': '(2, 3, 5)'}]
        >>> list(faults_of_views(Graph(x.transpose(1, 2).sum())))
        []
    """
    moved = next(_moved_views(graph), None)
    if moved is not None:
        words = {"shape": str(tuple(moved[0])), "to": str(tuple(moved[1]))}
        yield Fault.AXES_MIXED, {}, words


_Shapes = tuple[Sequence[int], Sequence[int]]


def _moved_views(graph: Graph) -> Iterator[_Shapes]:
    """Yield the shapes before and after a view that gives a dimension another place."""
    if not _CONVOLUTIONS.isdisjoint(graph.names):
        for node in graph.named(_CONVOLUTIONS):
            base = _viewed_input(node)
            if base is not None and _moves(*base):
                yield base
    for node in () if _VIEWS.isdisjoint(graph.names) else graph.named(_VIEWS):
        below = operands_of(node)[:1]
        shape, its = shape_of(node), shape_of(below[0]) if below else ()
        if below and name_of(below[0]) not in _PADDED and _moves(its, shape):
            users = graph.users_of(node)
            is_certain = _is_certain(node, (its, shape), users, graph)
            if is_certain and not _is_flattened(its, shape, users):
                yield its, shape


def _is_certain(node: Any, shapes: _Shapes, users: list[Any], graph: Graph) -> bool:
    """Return whether a view cannot be a split and a merge that are meant."""
    its, shape = shapes
    if not _is_chain(its, shape) or _is_of_states(operands_of(node)[0], its):
        return True
    if any(name_of(each) in _CONVOLUTIONS for each in users):
        return True
    return len(its) + len(shape) == _OF_BOTH and _is_of_attention(node, graph)


def _viewed_input(node: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the shape of a batch and that of its view which a convolution gets."""
    if node.next_functions[0][0] is not None:
        return None
    given = saved_of(node, "input")
    base = getattr(given, "_base", None)
    if base is None or not (given.is_contiguous() and base.is_contiguous()):
        return None
    # The numbers of an image tell more.
    is_image = given.dim() == 4 and given.shape[1] in _CHANNELS
    is_all = base.numel() == given.numel() and not is_image
    return (tuple(base.shape), tuple(given.shape)) if is_all else None


def _moves(its: Sequence[int], shape: Sequence[int]) -> bool:
    """Return whether a view has the same dimensions in another order.

    Some of them may be merged, or be the parts of one.
    """
    one, other = _parted([n for n in its if n > 1], [n for n in shape if n > 1])
    if not one or max(len(one), len(other)) > _MOST_AXES:
        return False
    if len(one) == len(other):
        is_whole = max(len(its), len(shape)) > 2
        return is_whole and one != other and sorted(one) == sorted(other)
    if len(one) < len(other):
        one, other = other, one
    n = math.prod(one)
    if len(other) != 2 or n != math.prod(other):
        return False
    # One of the dimensions stands before or behind all others, which are merged.
    moved = [[each, n // each] for each in one[1:]]
    moved += [[n // each, each] for each in one[:-1]]
    kept = [math.prod(one[:i]) for i in range(1, len(one))]
    return other in moved and other[0] not in kept


def _parted(one: list[int], other: list[int]) -> tuple[list[int], list[int]]:
    """Leave out the dimensions that both have at the beginning and at the end."""
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return one, other


def _is_chain(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether a view may be meant: dimensions that are split, then merged."""
    ends = {*itertools.accumulate(one, lambda a, b: a * b)}
    ends |= {*itertools.accumulate(other, lambda a, b: a * b)}
    ordered = sorted(ends)
    return all(b % a == 0 for a, b in itertools.pairwise(ordered) if a)


def _is_of_states(node: Any, its: Sequence[int]) -> bool:
    """Return whether these are states (layer, sample, feature) of a recurrent layer."""
    is_stacked = name_of(node) == "Stack" and int(node._saved_dim) == 0
    name = name_of(node)
    return (
        len(its) == 3
        and its[0] <= _MOST_STATES
        and (is_stacked or name in {"CudnnRnn", "MiopenRnn"})
    )


def _is_of_attention(node: Any, graph: Graph) -> bool:
    """Return whether a view splits or merges the heads of an attention."""
    return _leads_to_product(operands_of(node)[0]) or any(
        each is node
        for product in graph.named(_PRODUCTS)
        for way in operands_of(product)[:3]
        for each in walk(way, _MOST_OF_HEADS, _OF_HEADS)
    )


def _leads_to_product(node: Any) -> bool:
    for _ in range(_MOST_OF_HEADS):
        if name_of(node) in _PRODUCTS:
            return True
        below = operands_of(node)
        if name_of(node) not in _OF_HEADS or not below:
            return False
        node = below[0]
    return False


def _is_flattened(its: Sequence[int], shape: Sequence[int], users: list[Any]) -> bool:
    """Return whether only the whole sample is used, where no order matters."""
    flat = (shape[0], math.prod(shape[1:]))
    return (
        its[0] == shape[0]
        and bool(users)
        and all(name_of(each) in _VIEWS and shape_of(each) == flat for each in users)
    )


# ---- ends of recurrent layers --------------------------------------------------------

_TWO, _OF_SEQUENCES = 2, 3
# Operations between two results of a recurrent layer, at most.
_MOST_OF_CELL = 40


def faults_of_ends(graph: Graph) -> Iterator[Found]:
    """Yield that of two directions, one has read a single element where it is used.

    All that follows takes the layer's output at one end, and nothing its last state.
    """
    for node in graph.named({"Select"}):
        output = operands_of(node)[0]
        shape = shape_of(output)
        end = _end_of(int(node._saved_index), shape, int(node._saved_dim))
        if not end or not _is_all(node, output, graph):
            continue
        joined = output
        steps = int(node._saved_dim) % len(shape)
        if name_of(output) == "Transpose":
            joined, steps = operands_of(output)[0], 1 - steps
        if steps == _first_axis(joined) and _goes_both_ways(joined, graph):
            words = {"shape": str(shape), "end": end}
            axis = int(node._saved_dim) % len(shape)
            yield Fault.DIRECTION_HAS_JUST_BEGUN, {"axis": float(axis)}, words
            return


def _end_of(index: int, shape: Sequence[int], dim: int) -> str:
    """Return which end of the steps an index is; "": none, or there is one step."""
    size = shape[dim % len(shape)] if len(shape) == _OF_SEQUENCES else 1
    if size < _TWO:
        return ""
    # Negative ones are stored without a sign.
    return {0: "first", size - 1: "last", (1 << 64) - 1: "last"}.get(index, "")


def _is_all(node: Any, output: Any, graph: Graph) -> bool:
    """Return whether one choice is all that uses an output, with both directions."""
    if graph.users_of(output) != [node]:
        return False
    if any(name_of(each) == "Slice" for each in graph.users_of(node)):
        return False
    joined = operands_of(output)
    return name_of(output) != "Transpose" or graph.users_of(joined[0]) == [output]


def _first_axis(joined: Any) -> int:
    """Return the dimension of the steps in the result of a recurrent layer."""
    return int(name_of(joined) == "CudnnRnn" and bool(joined._saved_batch_first))


def _goes_both_ways(joined: Any, graph: Graph) -> bool:
    """Return whether an operation joins the two directions of a recurrent layer."""
    if name_of(joined) == "CudnnRnn":
        return bool(joined._saved_bidirectional)
    ways = operands_of(joined)
    if name_of(joined) != "Cat" or len(ways) != _TWO:
        return False
    names = {name_of(each) for each in ways}
    # Who takes the last state has what both directions have read.
    lasts = [each for way in ways for each in (way, *_last_state(way))]
    if any(len(graph.users_of(each)) != 1 for each in lasts):
        return False
    if names == {"MkldnnRnnLayer"}:
        return {bool(each._saved_reverse) for each in ways} == {False, True}
    return names == {"Stack"} and {_is_backward(each) for each in ways} == {False, True}


def _last_state(way: Any) -> list[Any]:
    """Return the operation of the last state of results that are stacked."""
    parts = operands_of(way) if name_of(way) == "Stack" else []
    return sorted(parts, key=lambda each: int(each._sequence_nr()))[-1:]


def _is_backward(stack: Any) -> bool | None:
    """Return whether the last of the stacked results was computed first."""
    parts = operands_of(stack)
    order = [each._sequence_nr() for each in parts]
    if len(order) < _TWO or sorted(order) not in (order, order[::-1]):
        return None
    # Each is made of the one beside it.
    goal = parts[0] if order[0] < order[1] else parts[1]
    above = parts[1] if goal is parts[0] else parts[0]
    is_made = any(each is goal for each in walk(above, _MOST_OF_CELL))
    return order[0] > order[1] if is_made else None
