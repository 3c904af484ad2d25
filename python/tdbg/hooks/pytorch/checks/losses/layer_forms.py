"""Find layers that are put together so that they compute less than they could.

Two linear layers with nothing between compute what one could.  Products of queries and
keys grow with the number of features, and attention divides them by its root.

Thread safety: reads only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    SHAPING,
    Graph,
    leaf_of,
    name_of,
    operands_of,
    past_shapes,
    saved_of,
    shape_of,
)
from tdbg.hooks.pytorch.model.process_objects import met
from tdbg.run.observations import Fault

if TYPE_CHECKING:
    from tdbg.hooks.pytorch.checks.graphs.graph_reader import Found

__all__ = ["compares_places", "faults_of_layers", "leads_to_softmax", "passes_weights"]

# Operations between the weights of an attention and a product, and between them and the
# product of queries and keys, at most.
_MOST_BETWEEN = 30
# Layers and softmaxes that are looked at, at most.
_MOST_LAYERS, _MOST_SOFTMAXES = 400, 64
# Features of a layer or a query that matter; elements of scores, and their deviation.
_LEAST_FEATURES, _MOST_SCORES, _LARGE = 16, 1 << 20, 1.0
_MOST_OF_MASK = 4096
# Between the weights of an attention and the product with its values.
_OF_WEIGHTS = SHAPING | {"Expand", "FusedDropout", "NativeDropout"}
# Between these weights and the product of queries and keys.
_OF_SCORES = SHAPING | {
    "Add", "Clamp", "Div", "Expand", "MaskedFill", "Mul", "Sub", "Tanh", "Where",
}  # fmt: skip
# The same, where nothing scales the scores.
_UNSCALED = SHAPING | {"Expand", "MaskedFill", "Where"}
# Between a layer that makes queries and the product.
_OF_QUERIES = SHAPING | {"Expand", "Split", "UnsafeSplit", "Unbind"}
_LINEAR = frozenset({"Addmm", "Mm"})
_ACTIVATIONS = frozenset({"Gelu", "Relu", "Sigmoid", "Silu", "Tanh"})
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PASSING = frozenset(
    {"Alias", "FusedDropout", "NativeDropout", "ReshapeAlias", "UnsafeView", "View"}
)


def faults_of_layers(graph: Graph) -> Iterator[Found]:
    """Yield layers of a model that compute less than they could."""
    yield from _of_chains(graph)
    if "Softmax" in graph.names:
        yield from _of_scale(graph)


# ---- attention -----------------------------------------------------------------------


def leads_to_softmax(node: Any) -> bool:
    """Return whether there is a softmax where weights of an attention would be made."""
    for _ in range(_MOST_BETWEEN):
        if node is None or not passes_weights(node):
            break
        node = next(iter(operands_of(node)), None)
    return node is not None and name_of(node) in {
        "LogSoftmax",
        "SafeSoftmax",
        "Softmax",
    }


def passes_weights(node: Any) -> bool:
    """Return whether weights of an attention pass an operation as they are.

    Dropout multiplies them by numbers that have no gradient.
    """
    name = name_of(node)
    return name in _OF_WEIGHTS or (name == "Mul" and len(operands_of(node)) == 1)


def compares_places(softmax: Any) -> bool:
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


def _of_scale(graph: Graph) -> Iterator[Found]:
    """Yield that scores are the products of projected queries and keys as they are."""
    for softmax in graph.named({"Softmax"})[:_MOST_SOFTMAXES]:
        product = _unscaled_product(softmax)
        if product is None:
            continue
        sides = [each for each, _ in product.next_functions]
        weights = [_projection(each) for each in sides]
        n = shape_of(sides[0])[-1]
        if not all(weights) or n < _LEAST_FEATURES:
            continue
        deviation = _deviation(product)
        if deviation > _LARGE:
            peak = saved_of(softmax, "result").detach().amax(-1).float().mean()
            numbers = {"features": n, "deviation": deviation, "peak": float(peak)}
            found = {key: float(each) for key, each in numbers.items()}
            yield Fault.SCORES_UNSCALED, found, {}
            return


def _unscaled_product(softmax: Any) -> Any:
    """Return the product of matrices that a softmax takes as it is, or None.

    Masks may be added, which have no gradient.
    """
    node = operands_of(softmax)[0]
    for _ in range(_MOST_BETWEEN):
        name, below = name_of(node), operands_of(node)
        if name in {"Bmm", "Mm"}:
            return node if len(below) == 2 else None
        is_mask = name in {"Add", "Sub"} and len(below) == 1
        if len(below) != 1 or not (is_mask or name in _UNSCALED):
            return None
        node = below[0]
    return None


def _projection(node: Any) -> int:
    """Return the id of the weight of a linear layer that makes queries; 0: none."""
    for _ in range(_MOST_BETWEEN):
        name, below = name_of(node), operands_of(node)
        if name in _LINEAR:
            return leaf_of(below[-1])
        is_bias = name == "Add" and len(below) == 2 and leaf_of(below[1]) != 0
        if not below or not (is_bias or (name in _OF_QUERIES and len(below) == 1)):
            return 0
        node = below[0]
    return 0


def _deviation(product: Any) -> float:
    """Return the standard deviation of some products of queries and keys; 0: none."""
    one, other = saved_of(product, "self"), saved_of(product, "mat2")
    if one is None or other is None:
        return 0.0
    one, other = one.detach(), other.detach()
    if one.dim() == 3:
        one, other = one[:8], other[:8]
    if one.shape[-2] * other.shape[-1] * (len(one) if one.dim() == 3 else 1) > (
        _MOST_SCORES
    ):
        return 0.0
    return float((one.float() @ other.float()).std())


# ---- layers in a row -----------------------------------------------------------------


class _Layer(NamedTuple):
    """A layer that an operation is one of, with its name."""

    module: Any
    name: str

    @property
    def sizes(self) -> tuple[int, int]:
        """How many features come in, and how many go out."""
        out, given = self.module.weight.shape[:2]
        return int(given), int(out)


def _of_chains(graph: Graph) -> Iterator[Found]:
    """Yield two layers of a kind with nothing between, of which one would do."""
    nodes = graph.named(_LINEAR | {"Convolution"})[:_MOST_LAYERS]
    # Most layers stand on an activation: one look at each costs no call.
    activated = {type(each) for each in graph.named(_ACTIVATIONS)}
    pairs = [
        (node, lower)
        for node in nodes
        if activated.isdisjoint(map(type, next(zip(*node.next_functions, strict=True))))
        for lower in _layer_below(node)
    ]
    if not pairs:
        return
    layers = _layers()
    for node, lower in pairs:
        second, first = (layers.get(_weight_of(each)) for each in (node, lower))
        if first is None or second is None or first.module is second.module:
            continue
        given, middle = first.sizes
        least = max(_LEAST_FEATURES, min(given, second.sizes[1]))
        if middle < least or not _may_be_one(first, second):
            continue
        if _is_of_attention(lower) or not _is_read_once(graph, node, lower):
            continue
        numbers = {"given": given, "middle": middle, "out": second.sizes[1]}
        found = {key: float(each) for key, each in numbers.items()}
        kind = "linear" if isinstance(first.module, nn.Linear) else "convolution"
        words = {"first": first.name, "second": second.name, "kind": kind}
        yield Fault.LAYERS_IN_A_ROW, found, words
        return


def _input_of(node: Any) -> Any:
    """Return what makes the input of a layer; None: it does not learn."""
    ways = node.next_functions
    at = 0 if name_of(node) == "Convolution" else len(ways) - 2
    return ways[at][0]


def _weight_of(node: Any) -> int:
    ways = node.next_functions
    at = 1 if name_of(node) == "Convolution" else len(ways) - 1
    return 0 if ways[at][0] is None else leaf_of(ways[at][0])


def _between(node: Any) -> Iterator[Any]:
    """Yield operations from the input of a layer down to what is no change of shape."""
    below = _input_of(node)
    for _ in range(_MOST_BETWEEN):
        if below is None:
            return
        yield below
        ways = operands_of(below)
        name = name_of(below)
        is_bias = name == "Add" and len(ways) == 2 and leaf_of(ways[1]) != 0
        if not (name in _PASSING or is_bias or (name == "Mul" and _drops(below))):
            return
        below = ways[0]


def _drops(node: Any) -> bool:
    """Return whether an operation multiplies by zeros and one other number."""
    mask = saved_of(node, "other")
    if not isinstance(mask, torch.Tensor) or tuple(mask.shape) != shape_of(node):
        return False
    some = mask.detach().flatten()[:_MOST_OF_MASK]
    is_kept = some == some.max()
    return bool((is_kept | (some == 0)).all()) and not bool(is_kept.all())


def _layer_below(node: Any) -> Iterator[Any]:
    last = next(iter([*_between(node)][::-1]), None)
    is_same = last is not None and (
        name_of(last) == "Convolution"
        if name_of(node) == "Convolution"
        else name_of(last) in _LINEAR
    )
    if is_same:
        yield last


def _is_read_once(graph: Graph, node: Any, lower: Any) -> bool:
    """Return whether nobody else reads what the lower layer gives."""
    between = list(_between(node))
    return lower in between and all(len(graph.users_of(e)) == 1 for e in between)


def _is_of_attention(node: Any) -> bool:
    """Return whether a layer merges the heads of an attention."""
    given = _input_of(node)
    return given is not None and (
        name_of(past_shapes(given)) in {"Bmm", "Mm"}
        or "Attention" in name_of(past_shapes(given))
    )


def _layers() -> dict[int, _Layer]:
    """Return the linear layers and convolutions of the process, by their weights."""
    found: dict[int, _Layer] = {}
    for owner in met(nn.Module):
        for key, module in owner._modules.items():
            if type(module) in {nn.Linear, *_CONVOLUTIONS}:
                name = f"{type(owner).__name__}.{key}"
                weight: Any = getattr(module, "weight", None)
                found[id(weight)] = _Layer(module, name)
    return found


def _may_be_one(first: _Layer, second: _Layer) -> bool:
    """Return whether two layers are of one kind, and no factors of one on purpose."""
    for module in (first.module, second.module):
        if isinstance(module, nn.Linear):
            continue
        is_square = all(size > 1 for size in module.kernel_size)
        if module.groups > 1 or not is_square:
            return False
    return type(first.module) is type(second.module)
