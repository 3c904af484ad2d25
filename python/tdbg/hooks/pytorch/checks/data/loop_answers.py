"""Read what becomes of the answers of a loop: their mean, their order, their state.

What a program adds up of each batch is a mean over samples, or a sum over them, so it
is known what to divide by.  Answers from a shuffled loader meet labels in their own
order only if these come from the same loop.

Thread safety: the training's thread.
Errors: those of names that are odd.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from tdbg.hooks.pytorch.checks.data.program_loops import (
    BatchLoop,
    dead_branches,
    inside,
    live,
    loops_around,
    name_of_node,
    resolve,
)
from tdbg.run.observations import Fault

__all__ = [
    "WHOLE",
    "Found",
    "compared_after",
    "faults_of_means",
    "length_below",
    "samples_of",
    "shuffled_without_labels",
    "state_over_batches",
]

Found = tuple[Fault, str, dict[str, float], dict[str, str]]
"""A fault, the name that it is about, its numbers and words."""

WHOLE = frozenset(
    {
        "average_precision_score", "balanced_accuracy_score", "cohen_kappa_score",
        "explained_variance_score", "f1_score", "fbeta_score", "jaccard_score",
        "matthews_corrcoef", "precision_score", "r2_score", "recall_score",
        "roc_auc_score",
    }
)  # fmt: skip
"""Functions of scikit-learn that are no mean over samples."""

_RANDOM = re.compile(r"(Weighted|Subset)?RandomSampler$")
# What changes no single number, and what a function of a mean over samples is called.
_ITEMS = frozenset({"cpu", "detach", "float", "item", "numpy"})
_OF_MEAN = re.compile(r"(_loss|cross_entropy|_with_logits)$|^kl_div$")
_REDUCES = frozenset({"reduction", "size_average", "reduce"})


def samples_of(loader: DataLoader[Any]) -> int:
    """Return how many samples a loader gives; 0: it is not known, or a rank's share."""
    is_plain = type(loader.batch_sampler).__name__ == "BatchSampler"
    if not is_plain or hasattr(loader.sampler, "num_replicas"):
        return 0
    n: int = len(loader.sampler)  # type: ignore[arg-type]
    return n - n % (loader.batch_size or 1) if loader.drop_last else n


def length_below(node: ast.BinOp, names: Mapping[str, Any]) -> int:
    """Return the length of a loader's dataset that is divided by; 0: none is."""
    below = node.right
    is_length = isinstance(below, ast.Call) and name_of_node(below.func) == "len"
    if not isinstance(node.op, ast.Div) or not is_length:
        return 0
    (given, *_) = below.args or [below]  # type: ignore[attr-defined]
    is_dataset = isinstance(given, ast.Attribute) and given.attr == "dataset"
    what = resolve(given, names) if is_dataset else None
    return 0 if what is None else len(what)


# ---- means of batches ----------------------------------------------------------------


def faults_of_means(
    loop: BatchLoop, added: list[tuple[str, ast.AST]], nodes: list[ast.AST]
) -> Iterator[Found]:
    """Yield that means of batches are divided by samples, or the reverse.

    Args:
        loop: A loop that evaluates.
        added: What it adds up, by names.
        nodes: What surely runs in it.
    """
    means = {name for name, node in added if _is_mean(node, nodes, loop.names)}
    whole = {name for name, node in added if _is_weighed(node, nodes, loop.names)}
    sizes = {name for name, node in added if name and _is_size(node)}
    n = samples_of(loop.loader)
    if not n or n == len(loop.loader):
        return
    numbers = {"batches": float(len(loop.loader)), "samples": float(n)}
    for above, division in _divisions_after(loop):
        below = division.right
        is_count = name_of_node(below) in sizes or (
            length_below(division, loop.names) == n
        )
        words = {"by": ast.unparse(below)}
        if above in means - whole and is_count:
            yield Fault.MEANS_BY_SAMPLES, above, numbers, words
            return
        if above in whole - means and _is_length_of(below, loop):
            yield Fault.MEANS_BY_SAMPLES, above, numbers, words | {"way": "batches"}
            return


def _divisions_after(loop: BatchLoop) -> Iterator[tuple[str, ast.BinOp]]:
    """Yield the names that a program divides after a loop."""
    for node in live(loop.scope, loop.names):
        if getattr(node, "lineno", 0) <= (loop.node.end_lineno or 0):
            continue
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            yield name_of_node(node.target), ast.BinOp(node.target, node.op, node.value)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            yield name_of_node(node.left), node


def _is_length_of(node: ast.AST, loop: BatchLoop) -> bool:
    """Return whether an expression counts the batches of a loop."""
    is_length = isinstance(node, ast.Call) and name_of_node(node.func) == "len"
    return is_length and resolve(node.args[0], loop.names) is loop.loader  # type: ignore[attr-defined]


def _is_mean(node: ast.AST, nodes: list[ast.AST], names: Mapping[str, Any]) -> bool:
    """Return whether an expression is a loss that is a mean over one batch."""
    while isinstance(node, ast.Call):
        is_item = isinstance(node.func, ast.Attribute) and node.func.attr in _ITEMS
        if is_item:
            node = node.func.value  # type: ignore[attr-defined]
        elif isinstance(node.func, ast.Name) and node.func.id == "float" and node.args:
            node = node.args[0]
        else:
            return _takes_mean(node, names)
    makers = [
        each.value
        for each in nodes
        if isinstance(each, ast.Assign) and _is_name(each.targets[0], node)
    ]
    is_one = isinstance(node, ast.Name) and len(makers) == 1
    return (
        is_one
        and not isinstance(makers[0], ast.Name)
        and _is_mean(makers[0], [], names)
    )


def _is_name(target: ast.AST, node: ast.AST) -> bool:
    both = isinstance(target, ast.Name) and isinstance(node, ast.Name)
    return both and target.id == node.id  # type: ignore[attr-defined]


def _takes_mean(node: ast.Call, names: Mapping[str, Any]) -> bool:
    """Return whether a call computes the mean loss of a batch."""
    made = resolve(node.func, names)
    if isinstance(made, nn.Module):
        is_loss = type(made).__module__ == "torch.nn.modules.loss"
        return is_loss and getattr(made, "reduction", "") == "mean"
    given = {each.arg for each in node.keywords}
    is_own = getattr(made, "__module__", "") in {"torch.nn.functional", "torch._C._nn"}
    name = getattr(made, "__name__", "")
    return is_own and bool(_OF_MEAN.search(name)) and given.isdisjoint(_REDUCES)


def _is_weighed(node: ast.AST, nodes: list[ast.AST], names: Mapping[str, Any]) -> bool:
    """Return whether an expression is a mean times the size of its batch."""
    is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
    pairs = [(node.left, node.right), (node.right, node.left)] if is_product else []  # type: ignore[attr-defined]
    return any(_is_size(two) and _is_mean(one, nodes, names) for one, two in pairs)


def _is_size(node: ast.AST) -> bool:
    """Return whether an expression is the number of samples in a batch."""
    if isinstance(node, ast.Subscript):
        is_first = isinstance(node.slice, ast.Constant) and node.slice.value == 0
        return is_first and name_of_node(node.value) == "shape"
    if not isinstance(node, ast.Call) or len(node.args) != 1:
        return False
    what, (given,) = name_of_node(node.func), node.args
    is_first = isinstance(given, ast.Constant) and given.value == 0
    return what == "len" or (what == "size" and is_first)


# ---- the order of answers ------------------------------------------------------------


def shuffled_without_labels(loop: BatchLoop) -> str:
    """Return the shuffled loader of which a loop uses only inputs; "": not so."""
    if not _RANDOM.match(type(loop.loader.sampler).__name__):
        return ""
    loader, target = loop.node.iter, loop.node.target
    while isinstance(loader, ast.Call) and loader.args:
        is_counted = name_of_node(loader.func) == "enumerate"
        if is_counted and isinstance(target, ast.Tuple):
            target = target.elts[-1]
        loader = loader.args[0]
    every = [*inside(loop.node)]
    if isinstance(target, ast.Name):
        target = _unpacked(target, every)
    if isinstance(target, ast.Name):
        n_used = _keys_of(target, every)
    else:
        named = {x.id for x in ast.walk(target) if isinstance(x, ast.Name)}
        n_used = len(named & {x.id for x in every if _loads(x)})  # type: ignore[attr-defined]
    return ast.unparse(loader) if n_used == 1 else ""


def _unpacked(target: ast.Name, every: list[ast.AST]) -> ast.expr:
    """Return what a loop unpacks its batch into, as in ``x, y = batch``."""
    for each in every:
        is_taken = isinstance(each, ast.Assign) and _is_name(each.value, target)
        if is_taken and isinstance(each.targets[0], ast.Tuple):  # type: ignore[attr-defined]
            return each.targets[0]  # type: ignore[attr-defined]
    return target


def _keys_of(target: ast.Name, every: list[ast.AST]) -> int:
    """Return how many parts of its batch a loop takes; 0: perhaps all."""
    n_loads = sum(_loads(each) and _is_name(each, target) for each in every)
    keys = [
        ast.unparse(each.slice)
        for each in every
        if isinstance(each, ast.Subscript) and _is_name(each.value, target)
    ]
    return len({*keys}) if len(keys) == n_loads else 0


def _loads(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def compared_after(loop: BatchLoop, collected: set[str]) -> str:
    """Return the fixed array that meets what a loop has collected; "": none does.

    Args:
        loop: A loop that drops the labels of its batches.
        collected: What it adds to.
    """
    n, end = samples_of(loop.loader), loop.node.end_lineno or 0
    if not n:
        return ""
    made = {*collected}
    nodes = [x for x in live(loop.scope, loop.names) if getattr(x, "lineno", 0) > end]
    for node in nodes:
        if isinstance(node, ast.Assign) and made & _names_within(node.value):
            made.update(*map(_names_within, node.targets))
    for node in nodes:
        parts = _parts_of(node)
        others = [each for each in parts if not made & _names_within(each)]
        if len(others) == len(parts):
            continue
        for each in others:
            if _length_of(resolve(each, loop.names)) == n:
                return ast.unparse(each)
    return ""


def _parts_of(node: ast.AST) -> list[ast.expr]:
    """Return what an operation or a call brings together."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
        return [node.left, *node.comparators]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return [node.left, node.right]
    if isinstance(node, ast.Call):
        return [*node.args, *(each.value for each in node.keywords)]
    return []


def _names_within(node: ast.AST) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}


def _length_of(value: Any) -> int:
    """Return how many rows an array or a list has; 0: it has none."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    return len(value) if isinstance(value, list | tuple) else 0


# ---- recurrent states ----------------------------------------------------------------


def state_over_batches(frame: FrameType | None) -> Found | None:
    """Return that a loop keeps a recurrent state while its loader shuffles.

    A loop that gives the variable something else, such as zeros, begins anew.

    Args:
        frame: That of a function which the loop calls, or its own.
    """
    for loop in loops_around(frame, set()):
        if not _RANDOM.match(type(loop.loader.sampler).__name__):
            return None
        dead = dead_branches(loop.node, loop.names)
        every = [
            each
            for each in inside(loop.node)
            if isinstance(each, ast.Assign) and id(each) not in dead
        ]
        kept = {name for node in every for name in _returned_state(node, loop.names)}
        for name in sorted(kept):
            others = [x for x in every if name in _stored_in(x)]
            if all(name in _names_within(each.value) for each in others):
                words = {"state": name}
                return (
                    Fault.STATE_OF_OTHER_SAMPLES,
                    ast.unparse(loop.node.iter),
                    {},
                    words,
                )
    return None


def _returned_state(node: ast.Assign, names: Mapping[str, Any]) -> set[str]:
    """Return what a statement gives to a recurrent network, and gets from it."""
    call, target = node.value, node.targets[0]
    if not isinstance(call, ast.Call) or not isinstance(target, ast.Tuple):
        return set()
    model = resolve(call.func, names)
    is_recurrent = isinstance(model, nn.Module) and any(
        isinstance(each, nn.RNNBase | nn.RNNCellBase) for each in model.modules()
    )
    given = [*call.args, *(each.value for each in call.keywords)]
    taken = set[str]().union(*map(_names_within, given[1:]))
    return taken & _stored_in(node) if is_recurrent else set()


def _stored_in(node: ast.Assign) -> set[str]:
    return {
        x.id
        for target in node.targets
        for x in ast.walk(target)
        if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
    }
