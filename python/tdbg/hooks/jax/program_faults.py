"""What the program of a training step shows to be wrong.

It is read once, from the loss back to the arguments.  Softmaxes are recognized by what
they compute, so it does not matter which library, or which formula, wrote them.

Thread safety: the training's thread.

Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from tdbg.capture.session import Session
from tdbg.hooks.jax.arguments import ArgumentReader
from tdbg.hooks.jax.names import path_name
from tdbg.hooks.jax.programs import (
    SHAPING,
    Integers,
    Value,
    ancestors,
    counts_to_one,
    is_of_equinox,
    is_whole,
    may_wrap,
    peeled,
    program_of_any,
    values_of,
)
from tdbg.modes import TRAIN
from tdbg.run.loss_facts import LossFact, LossFault
from tdbg.run.observations import Fault, Observation

__all__ = ["StepProgram", "loss_facts_of"]

Array = NDArray[Any]

_BITS = "sigmoid_binary_cross_entropy"
# A target is out of reach from here on; bytes of an argument that are read.
_BEYOND, _MOST_BYTES = 1e-3, 1 << 23
_CASTS = frozenset({"convert_element_type", "copy", "reduce_precision"})
_COMPARING = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})


class _Step(NamedTuple):
    """A call of a step, by its program.

    Attributes:
        loss: The loss.
        nodes: All that it is computed of.
        results: All that the step returns.
        leaves: Its arguments.
        parameters: Places of the parameters among them.
        names: Of the arguments, by their places.
        integers: Computes integers.
    """

    loss: Value
    nodes: Sequence[Value]
    results: Sequence[Value]
    leaves: Sequence[Any]
    parameters: frozenset[int]
    names: Sequence[str]
    integers: Integers


class StepProgram:
    """Reads the program of a step once.

    Args:
        session: Receives what is seen.
        reader: Finds the parameters among the arguments.
        add: Receives the loss, places of the parameters, and the arguments.

    Attributes:
        is_on: Whether the next call is to be looked at.
        leaves_state: Whether nothing is computed of the optimizer's state.
    """

    def __init__(
        self,
        session: Session,
        reader: ArgumentReader,
        add: Callable[[Value, Collection[int], Sequence[Any]], None],
    ) -> None:
        self._session = session
        self._reader = reader
        self._add = add
        self.is_on = True
        self.leaves_state = False

    def look(
        self,
        compiled: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        outputs: Any,
        loss: Any,
    ) -> None:
        """Look at a call that has returned.

        Args:
            compiled: What ``jax.jit`` has made of the step.
            args: Positional arguments.
            kwargs: Named ones.
            outputs: What it returned.
            loss: The loss in there; None: it has none.
        """
        self.is_on = False  # Also if anything below fails.
        program = program_of_any(compiled, args, kwargs)
        paths = jax.tree_util.tree_flatten_with_path((args, kwargs))[0]
        returned = jax.tree_util.tree_leaves(outputs)
        if is_of_equinox(compiled):  # What is no array is part of the program.
            paths = [each for each in paths if _is_array(each[1])]
            returned = list(filter(_is_array, returned))
        leaves = [leaf for _, leaf in paths]
        if program is None or not _fit(program.jaxpr.invars, leaves):
            return
        results = values_of(program)
        # Flax NNX returns what the step has changed, and Equinox a mark, before.
        n_changed = len(results) - len(returned)
        if n_changed < 0:
            return
        place = next(
            (i for i, each in enumerate(returned, n_changed) if each is loss), None
        )
        found = self._reader.of_step(args, kwargs)
        used = {v.place for v in ancestors(_computed(results)) if v.op == "argument"}
        places = {id(leaf): i for i, leaf in enumerate(leaves)}
        state = [places[id(x)] for x in _leaves(found.state) if id(x) in places]
        is_left = bool(state) and not used.intersection(state)
        self.leaves_state = is_left and counts_to_one(results)
        if place is None:
            return
        trained = [places[id(x)] for x in _leaves(found.parameters) if id(x) in places]
        step = _Step(
            results[place],
            list(ancestors([results[place]])),
            results,
            leaves,
            frozenset(trained),
            _names(found.parameters, paths),
            Integers(lambda i: _array_of(leaves[i])),
        )
        self._tell(step, used)

    def _tell(self, step: _Step, used: Collection[int]) -> None:
        """Report what is wrong with a step."""
        self._add(step.loss, step.parameters, step.leaves)
        for fault in (
            *_beyond_tables(step),
            *_beyond_classes(step),
            *_wrapped(step),
            *_unread_masks(step, used),
        ):
            step_now = max(0, self._session.latest_step(TRAIN)[0])
            self._session.observe(replace(fault, step=step_now))


def _fit(variables: Sequence[Any], leaves: Sequence[Any]) -> bool:
    """Whether variables of a program are these arguments, by their number and shape."""
    return len(variables) == len(leaves) and all(
        tuple(variable.aval.shape) == np.shape(leaf)
        for variable, leaf in zip(variables, leaves, strict=True)
    )


def _names(parameters: Any, paths: Sequence[tuple[Any, Any]]) -> Sequence[str]:
    """Return the names of arguments: those of parameters as they are captured."""
    named = jax.tree_util.tree_flatten_with_path(parameters)[0]
    known = {id(leaf): path_name(path) for path, leaf in named}
    return [known.get(id(leaf)) or _argument(path) for path, leaf in paths]


def _argument(path: Sequence[Any]) -> str:
    """Return what to call an argument of a step, such as ``argument 3/mask``."""
    which, key, *rest = path
    name = getattr(key, "key", None)
    number = getattr(key, "idx", 0) + 1
    first = f"argument {number}" if name is None or which.idx == 0 else str(name)
    return "/".join([first, *filter(None, [path_name(tuple(rest))])])


def loss_facts_of(
    loss: Value, parameters: Collection[int], leaves: Sequence[Any]
) -> Iterator[LossFact]:
    """Yield what is wrong with what a loss is computed of.

    Args:
        loss: The loss.
        parameters: Places of the parameters among the arguments.
        leaves: The arguments.

    Example:
        >>> def loss(x):
        ...     return jax.nn.log_softmax(jax.nn.softmax(x))[:, 0].mean()
        >>> program = jax.make_jaxpr(loss)(np.ones((4, 3)))
        >>> [str(each.fault) for each in loss_facts_of(*values_of(program), [0], [])]
        ['softmax_twice']
    """
    nodes = list(ancestors([loss]))
    seen: set[LossFault] = set()
    for fact in (
        *_softmaxes(nodes, parameters, leaves),
        *_sigmoids(nodes),
        *_targets_of_bits(nodes, parameters, leaves),
        *_pairs(nodes, parameters),
    ):
        if fact.fault not in seen:
            seen.add(fact.fault)
            yield fact


# ---- softmaxes and sigmoids ------------------------------------------------------


def _softmaxes(
    nodes: Sequence[Value], parameters: Collection[int], leaves: Sequence[Any]
) -> Iterator[LossFact]:
    found = [each for node in nodes if (each := _logsumexp(node)) is not None]
    of_classes = {id(peeled(x)) for x, axes in found if axes and axes != (0,)}
    for scores, axes in found:
        shape = scores.shape
        source = peeled(scores)
        n_classes = math.prod(shape[i] for i in axes)
        if _is_softmax(source) and n_classes > 1:
            form = math.prod(shape) // n_classes, n_classes
            yield LossFact(LossFault.SOFTMAX_TWICE, "The loss", (form,))
        is_over_samples = (
            axes == (0,)
            and len(shape) == 2
            and shape[0] != shape[1]
            and min(shape) > 1
            and id(source) not in of_classes
        )
        if is_over_samples and _has_labels(nodes, parameters, leaves, shape):
            yield LossFact(LossFault.SOFTMAX_OVER_SAMPLES, "the loss", (shape,))


def _logsumexp(node: Value) -> tuple[Value, tuple[int, ...]] | None:
    """Return scores and the axes over which the logarithm of their sum is taken."""
    if node.op != "log":
        return None
    total = peeled(node.inputs[0], SHAPING | {"abs"})
    if total.op != "reduce_sum":
        return None
    terms = peeled(total.inputs[0], _CASTS)
    if terms.op != "exp":
        return None
    return _above_maximum(terms.inputs[0]), tuple(map(int, total.params["axes"]))


def _above_maximum(value: Value) -> Value:
    """Return scores, from which a program may have taken their maximum."""
    value = peeled(value, _CASTS)
    if value.op == "sub" and _is_maximum(value.inputs[1]):
        return value.inputs[0]
    return value


def _is_maximum(value: Value, depth: int = 4) -> bool:
    value = peeled(value)
    if value.op == "reduce_max":
        return True
    is_joined = value.op in {"max", "select_n"} and depth > 0
    return is_joined and any(_is_maximum(each, depth - 1) for each in value.inputs)


def _is_softmax(value: Value) -> bool:
    if value.op != "div":
        return False
    terms, total = peeled(value.inputs[0], _CASTS), peeled(value.inputs[1])
    if terms.op != "exp" or total.op != "reduce_sum":
        return False
    return peeled(total.inputs[0], _CASTS) is terms


def _has_labels(
    nodes: Sequence[Value],
    parameters: Collection[int],
    leaves: Sequence[Any],
    shape: tuple[int, ...],
) -> bool:
    """Whether an argument has a class for each sample, of so many."""
    n_samples, n_classes = shape
    for each in nodes:
        if each.op != "argument" or not is_whole(each) or each.place in parameters:
            continue
        if each.shape in {(n_samples,), (n_samples, 1)} and each.place < len(leaves):
            labels = _array_of(leaves[each.place])
            if labels is not None and 1 <= labels.max() < n_classes:
                return True
    return False


def _softplus_of(node: Value) -> Value | None:
    """Return x of ``log1p(exp(-abs(x)))``, which is part of a logistic loss."""
    value = node
    for op in ("log1p", "exp", "neg", "abs"):
        if value.op != op:
            return None
        value = peeled(value.inputs[0], _CASTS)
    if value.op == "sub" and value.inputs[1].op in {"literal", "constant"}:
        value = value.inputs[0]
    return value


def _sigmoids(nodes: Sequence[Value]) -> Iterator[LossFact]:
    for node in nodes:
        scores = _softplus_of(node)
        if scores is not None:
            source = peeled(scores, SHAPING | {"neg"})
            if source.op == "logistic":
                yield LossFact(LossFault.SIGMOID_TWICE, "The loss", (source.shape,))


def _targets_of_bits(
    nodes: Sequence[Value], parameters: Collection[int], leaves: Sequence[Any]
) -> Iterator[LossFact]:
    """Yield that targets of a logistic loss are no probabilities."""
    for node in nodes:
        if node.op != "mul":
            continue
        for weight, loss in (node.inputs, node.inputs[::-1]):
            rest = peeled(weight, SHAPING | {"neg"})
            if rest.op != "sub" or not _is_one(rest.inputs[0]):
                continue
            target = peeled(rest.inputs[1])
            if target.op != "argument" or target.place in parameters:
                continue
            if not _is_softplus(loss) or target.place >= len(leaves):
                continue
            given = _array_of(leaves[target.place])
            if given is None or not given.size or not np.isfinite(given).all():
                continue
            n = int(((given < -_BEYOND) | (given > 1 + _BEYOND)).sum())
            if n:
                low, high = math.floor(given.min()), math.ceil(given.max())
                sizes = (n, int(given.size)), (low, high)
                yield LossFact(LossFault.TARGETS_OUT_OF_REACH, _BITS, sizes)


def _is_one(value: Value) -> bool:
    value = peeled(value)
    is_number = value.op == "literal" and np.size(value.held) == 1
    return is_number and float(np.asarray(value.held).ravel()[0]) == 1.0


def _is_softplus(value: Value, depth: int = 6) -> bool:
    value = peeled(value, SHAPING | {"neg"})
    if value.op == "log1p":
        return _softplus_of(value) is not None
    return (
        depth > 0
        and value.op in {"add", "select_n"}
        and any(_is_softplus(each, depth - 1) for each in value.inputs)
    )


# ---- pairs -----------------------------------------------------------------------


def _pairs(nodes: Sequence[Value], parameters: Collection[int]) -> Iterator[LossFact]:
    """Yield that a column of outputs meets a row of targets."""
    squares = {id(each) for node in nodes for each in _squared(node)}
    for node in nodes:
        shape = node.shape
        if node.op != "sub" or len(shape) != 2 or len(set(shape)) != 1:
            continue
        if shape[0] < 2 or id(node) not in squares:
            continue
        for one, other in (node.inputs, node.inputs[::-1]):
            column, row = _without_copies(one), _without_copies(other)
            if column.shape != (shape[0], 1) or row.shape != (shape[0],):
                continue
            trained = [_is_trained(each, parameters) for each in (column, row)]
            if all(trained):
                return  # The program compares all pairs, perhaps on purpose.
            if any(trained):
                outputs = column if trained[0] else row
                shapes = outputs.shape, shape
                yield LossFact(LossFault.BROADCAST, "a difference (-)", shapes)


def _squared(node: Value) -> Iterator[Value]:
    """Yield a difference whose square or absolute value is added up over all."""
    if node.op != "reduce_sum" or node.shape:
        return
    term = peeled(node.inputs[0], _CASTS)
    is_square = term.op == "integer_pow" and term.params.get("y") == 2
    is_product = term.op == "mul" and term.inputs[0] is term.inputs[1]
    if is_square or is_product or term.op in {"abs", "square"}:
        yield peeled(term.inputs[0], _CASTS)


def _without_copies(value: Value) -> Value:
    """Return what broadcasting has repeated, or made a row of."""
    while value.op in {"broadcast_in_dim", *_CASTS}:
        inner = value.inputs[0]
        axes = value.params.get("broadcast_dimensions")
        # An axis behind the others is what a program adds on purpose.
        is_added = axes is not None and len(inner.shape) < len(value.shape)
        if is_added and tuple(map(int, axes or ())) != (len(value.shape) - 1,):
            return value
        value = inner
    return value


def _is_trained(value: Value, parameters: Collection[int]) -> bool:
    return any(
        each.op == "argument" and each.place in parameters
        for each in ancestors([value])
    )


# ---- integers --------------------------------------------------------------------


def _beyond_tables(step: _Step) -> Iterator[Observation]:
    """Yield tables of parameters that are read at rows that they do not have."""
    told: set[int] = set()
    for node in step.nodes:
        if node.op != "gather" or len(node.params["slice_sizes"]) != 2:
            continue
        numbers = node.params["dimension_numbers"]
        table = peeled(node.inputs[0], _CASTS)
        axes = tuple(map(int, numbers.start_index_map))
        if axes != (0,) or table.op != "argument" or table.place in told:
            continue
        if table.place not in step.parameters or numbers.operand_batching_dims:
            continue
        rows = step.integers.of(node.inputs[1])
        n_rows = table.shape[0]
        if rows is None or not rows.size or node.params["slice_sizes"][0] != 1:
            continue
        beyond = (rows >= n_rows)[..., 0]
        if not beyond.any() or _is_masked(step, beyond):
            continue
        told.add(table.place)
        fills = "FILL" in str(node.params["mode"])
        yield Observation(
            Fault.ROWS_BEYOND_TABLE,
            0,
            (step.names[table.place],),
            {
                "beyond": float(beyond.sum()),
                "ids": float(beyond.size),
                "largest": float(rows.max()),
                "rows": float(n_rows),
            },
            {"reads": "nan" if fills else "last"},
        )


def _is_masked(step: _Step, places: Array) -> bool:
    """Whether an argument of zeros and ones marks all these places."""
    for value in step.nodes:
        if value.op != "argument" or value.shape != places.shape:
            continue
        array = _array_of(step.leaves[value.place])
        if array is not None and set(np.unique(array).tolist()) <= {0, 1}:
            marked = array.astype(bool)
            if not marked[places].any() or (marked[places].all() and not marked.all()):
                return True
    return False


def _beyond_classes(step: _Step) -> Iterator[Observation]:
    """Yield labels from 1 to C, of which ``one_hot`` makes C classes from 0 on."""
    for node in step.nodes:
        if node.op != "eq" or "one_hot" not in node.caller:
            continue
        for one, other in (node.inputs, node.inputs[::-1]):
            if peeled(other).op != "iota":
                continue
            labels, n_classes = step.integers.of(one), other.shape[-1]
            if labels is None or labels.size < 2 * n_classes:
                continue
            if labels.min() == 1 and labels.max() == n_classes > 1:
                n = int((labels == n_classes).sum())
                yield Observation(
                    Fault.LABELS_FROM_ONE,
                    0,
                    ("jax.nn.one_hot",),
                    {
                        "classes": float(n_classes),
                        "beyond": float(n),
                        "labels": float(labels.size),
                    },
                )
                return


def _wrapped(step: _Step) -> Iterator[Observation]:
    """Yield integers of the batch that do not fit their type."""
    for node in step.nodes:
        is_given = node.op == "argument" and is_whole(node)
        if may_wrap(node) or is_given:
            step.integers.of(node)
    for each in step.integers.wrapped[:1]:
        yield Observation(
            Fault.INTEGERS_WRAP,
            0,
            ("inputs",),
            {"wrapped": float(each.n_wrapped), "numbers": float(each.n)},
            {"operation": each.op, "type": each.dtype},
        )


def _unread_masks(step: _Step, used: Collection[int]) -> Iterator[Observation]:
    """Yield that a mask is given, and the labels at padding count all the same."""
    arguments = {v.place: v for v in step.nodes if v.op == "argument"}
    for place, leaf in enumerate(step.leaves):
        if place in used or place in step.parameters:
            continue
        mask = _array_of(leaf)
        if mask is None or mask.ndim < 2 or set(np.unique(mask).tolist()) != {0, 1}:
            continue
        alike = [v for v in arguments.values() if v.shape == mask.shape and is_whole(v)]
        if len(alike) != 1:
            continue
        tokens = step.integers.of(alike[0])
        if tokens is None:
            continue
        padding = np.unique(tokens[mask == 0])
        if len(padding) != 1 or not _are_labels(step, alike[0], int(padding[0])):
            continue
        yield Observation(
            Fault.MASK_NOT_READ,
            0,
            ("step",),
            {"share": float((mask == 0).mean()), "label": float(padding[0])},
            {"argument": step.names[place]},
        )
        return


def _are_labels(step: _Step, tokens: Value, padding: int) -> bool:
    """Whether tokens choose what a loss takes, and nobody looks for padding."""
    is_label = False
    for node in step.nodes:
        whole = list(filter(is_whole, node.inputs))
        if not any(each is tokens for each in ancestors(whole)):
            continue
        if _compares_with_number(node):
            return False
        if node.op == "gather" and not is_whole(node):
            table = peeled(node.inputs[0], _CASTS)
            is_table = table.op == "argument" and table.place in step.parameters
            is_label |= not is_table
    return is_label and padding >= 0


def _compares_with_number(node: Value) -> bool:
    """Whether it looks for a number among integers; negative ones are indices."""
    if node.op not in _COMPARING or not is_whole(node):
        return False
    numbers = [x.held for x in node.inputs if x.op == "literal"]
    is_of_index = node.op == "lt" and numbers == [0]
    return bool(numbers) and not is_of_index


# ---- arguments -------------------------------------------------------------------


def _computed(results: Sequence[Value]) -> list[Value]:
    """Return results that are not arguments as they were given."""
    return [each for each in results if each.op != "argument"]


def _leaves(tree: Any) -> list[Any]:
    return [] if tree is None else jax.tree_util.tree_leaves(tree)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def _array_of(leaf: Any) -> Array | None:
    """Return an argument as an array; None: it is gone, too large or a key."""
    if isinstance(leaf, bool | int):
        return np.asarray(leaf)
    if not isinstance(leaf, jax.Array | np.ndarray) or leaf.nbytes > _MOST_BYTES:
        return None
    if isinstance(leaf, jax.Array):
        if leaf.is_deleted() or not leaf.is_fully_addressable:
            return None
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            return None
    return np.asarray(leaf) if leaf.size else None
