"""Datasets of TensorFlow that ``fit`` is given: the operations that made them.

A dataset knows the one that it was made of.  So it shows whether a cache keeps what was
drawn before it, and which rows two parts of one dataset have in common.  Nothing
is drawn from it.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tdbg.capture.session import Session
from tdbg.hooks.keras.callbacks import callers
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = [
    "SharedPart",
    "is_dataset",
    "is_shuffled_again",
    "look_at_pipeline",
    "shared_part",
]

_OF_DATA = "tensorflow.python.data"
_MOST_NODES, _MOST_SOURCE = 64, 1 << 20
_DRAWING = ("Random", "StatelessRandom", "StatelessTruncated", "TruncatedNormal")
# Operations that keep which rows there are, and their places.
_KEEPING = frozenset({"MapDataset", "ParallelMapDataset", "PrefetchDataset"})
_METHODS = frozenset(
    {
        *("batch", "cache", "filter", "map", "prefetch", "repeat"),
        *("shard", "shuffle", "skip", "take", "unbatch"),
    }
)


class SharedPart(NamedTuple):
    """Rows that training and validation have in common.

    Attributes:
        n_shared: How many.
        n_evaluated: How many validation has.
        n_trained: How many training has.
    """

    n_shared: int
    n_evaluated: int
    n_trained: int


def look_at_pipeline(session: Session, given: Mapping[str, Any]) -> None:
    """Report what the operations of a dataset do, and calls that do nothing.

    Args:
        session: Receives what is seen.
        given: The arguments of ``fit``.
    """
    dataset, epochs = given.get("x"), given.get("epochs", 1)
    if not is_dataset(dataset) or not isinstance(epochs, int):
        return
    step = max(0, session.latest_step(TRAIN)[0])
    for how, name in _pipeline_faults(dataset) if epochs > 1 else ():
        is_meant = not any(each in name.lower() for each in _AUGMENTING)
        words = {"how": how, "function": name, "meant": "perhaps" if is_meant else ""}
        fault, numbers = Fault.KEPT_BY_CACHE, {"epochs": float(epochs)}
        session.observe(Observation(fault, step, ("fit",), numbers, words))
    own = [each for each in callers() if each[1].partition(".")[0] not in _OTHERS]
    for names, name, function in own[:_MOST_CALLERS]:
        module = sys.modules.get(name)
        known = {**vars(module or object), **names}
        for call, line in _dropped_calls(known, module, function):
            words, numbers = {"call": call}, {"line": float(line)}
            fault = Fault.CALL_DOES_NOTHING
            session.observe(Observation(fault, step, (call,), numbers, words))


_OTHERS = frozenset({"keras", "tdbg"})
_MOST_CALLERS = 3
_AUGMENTING = (
    *("aug", "crop", "cutout", "distort", "flip", "jitter", "mixup", "noise"),
    *("perturb", "random", "rotate"),
)


def is_dataset(given: Any) -> bool:
    """Return whether it is a dataset of TensorFlow."""
    return type(given).__module__.startswith(_OF_DATA)


def _pipeline_faults(dataset: Any) -> Iterator[tuple[str, str]]:
    """Yield what a dataset of training does each epoch that nobody means.

    Returns:
        ``augmented`` or ``ordered``, and the name of a mapped function.
    """
    kinds = [_kind(each) for each in _chain(dataset)]
    if "CacheDataset" in kinds:
        below = list(_chain(dataset))[kinds.index("CacheDataset") + 1 :]
        for node in below:
            if _draws(node):
                yield "augmented", _name_of(node)
                break
        above = kinds[: kinds.index("CacheDataset")]
        if "ShuffleDataset" not in above and "ShuffleDataset" in map(_kind, below):
            yield "ordered", ""


def shared_part(trained: Any, evaluated: Any) -> SharedPart | None:
    """Return which rows two parts of one dataset share; None: none, or nobody knows."""
    one, other = list(_chain(trained)), list(_chain(evaluated))
    ids = {id(each): i for i, each in enumerate(one)}
    common = next((i for i, each in enumerate(other) if id(each) in ids), None)
    if common is None:
        return None
    base = other[common]
    n = int(base.cardinality())
    kinds = {_kind(each) for each in (*_chain(base),)}
    if n <= 0 or "ShuffleDataset" in kinds:
        return None
    first = _rows(one[: ids[id(base)]], n)
    second = _rows(other[:common], n)
    if first is None or second is None:
        return None
    n_shared = min(first[1], second[1]) - max(first[0], second[0])
    if n_shared <= 0:
        return None
    return SharedPart(n_shared, second[1] - second[0], first[1] - first[0])


def _rows(nodes: list[Any], n: int) -> tuple[int, int] | None:
    """Return the first row, and that behind the last, which operations leave."""
    low, high = 0, n
    for node in reversed(nodes):
        kind = _kind(node)
        if kind in {"SkipDataset", "TakeDataset"}:
            count = int(node._count)
            if count < 0:
                return None
            if kind == "SkipDataset":
                low = min(high, low + count)
            else:
                high = min(high, low + count)
        elif kind in _ENDING:
            break  # No part of what follows is known by its place.
        elif kind not in _KEEPING:
            return None
    later = [_kind(each) for each in nodes]
    stop = max((i for i, kind in enumerate(later) if kind in _ENDING), default=0)
    # Whatever leaves out rows after they were mixed leaves out nobody knows which.
    return None if _LEAVING & set(later[:stop]) else (low, high)


_ENDING = frozenset(
    {
        *("BatchDataset", "CacheDataset", "ParallelBatchDataset", "RepeatDataset"),
        "ShuffleDataset",
    }
)
_LEAVING = frozenset({"FilterDataset", "SkipDataset", "TakeDataset"})


_PARTS = {"_TakeDataset": "_SkipDataset", "_SkipDataset": "_TakeDataset"}


def is_shuffled_again(one: Any, other: Any) -> bool:
    """Return whether both are parts of a dataset of TensorFlow that shuffles each time.

    Then each pass draws the parts anew.
    """
    found = _shuffles_below(one)
    return any(
        _PARTS.get(found.get(shuffle, "")) == part
        for shuffle, part in _shuffles_below(other).items()
    )


def _shuffles_below(dataset: Any) -> dict[int, str]:
    """Return shuffles that begin anew each time, and how the dataset takes its part."""
    found: dict[int, str] = {}
    part = ""
    for _ in range(_MOST_NODES):
        name = type(dataset).__name__
        if name == "CacheDataset" or dataset is None:
            break
        part = name if name in _PARTS else part
        again = getattr(dataset, "_reshuffle_each_iteration", None)
        if name == "_ShuffleDataset" and again is not False and part:
            found[id(dataset)] = part
        dataset = getattr(dataset, "_input_dataset", None)
    return found


def _dropped_calls(
    names: Mapping[str, Any], module: Any, function: str
) -> Iterator[tuple[str, int]]:
    """Yield calls of datasets whose results the program drops, and their lines.

    Args:
        names: Variables of the function that calls ``fit``.
        module: Its module.
        function: Its name.
    """
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return
    source = Path(file).read_text("utf-8")
    if len(source) > _MOST_SOURCE:
        return
    tree: Any = ast.parse(source)
    if function != "<module>":
        named = (
            each for each in ast.walk(tree) if getattr(each, "name", 0) == function
        )
        found = list(named)
        tree = found[0] if len(found) == 1 else ast.Module([], [])
    for node in _statements(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
            continue
        target: Any = node.value.func
        method = getattr(target, "attr", "")
        while isinstance(target, ast.Attribute | ast.Call):
            target = target.value if isinstance(target, ast.Attribute) else target.func
        is_known = isinstance(target, ast.Name) and is_dataset(names.get(target.id))
        if method in _METHODS and is_known:
            yield f"{target.id}.{method}", node.lineno


def _statements(tree: Any) -> Iterator[ast.AST]:
    """Yield what is in a module or function, and not in functions within it."""
    waiting = list(ast.iter_child_nodes(tree))
    while waiting:
        node = waiting.pop(0)
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            waiting += ast.iter_child_nodes(node)


def _chain(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those that it was made of, the latest first."""
    for _ in range(_MOST_NODES):
        if not is_dataset(dataset):
            return
        yield dataset
        dataset = getattr(dataset, "_input_dataset", None)


def _kind(node: Any) -> str:
    return type(node).__name__.lstrip("_")


def _draws(node: Any) -> bool:
    """Return whether a mapped function draws random numbers."""
    mapped = getattr(node, "_map_func", None)
    graph = getattr(getattr(mapped, "function", None), "graph", None)
    if graph is None or "MapDataset" not in _kind(node):
        return False
    return any(each.type.startswith(_DRAWING) for each in graph.get_operations())


def _name_of(node: Any) -> str:
    function = getattr(getattr(node, "_map_func", None), "_func", None)
    return str(getattr(function, "__name__", "")).replace("<lambda>", "")
