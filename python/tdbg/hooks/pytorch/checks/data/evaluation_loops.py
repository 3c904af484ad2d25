"""Read the source of the loops that a program evaluates in.

It says what becomes of each batch, and the objects that its names mean (loaders,
losses, functions of libraries) say what that is.  What is below a condition that is not
known to hold accuses nobody.

Thread safety: the training's thread.
Errors: none where sources are missing; those of names that are odd.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
import weakref
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from tdbg.hooks.pytorch.checks.data.loop_answers import (
    WHOLE,
    Found,
    compared_after,
    faults_of_means,
    length_below,
    samples_of,
    shuffled_without_labels,
)
from tdbg.hooks.pytorch.checks.data.program_loops import (
    KEPT,
    BatchLoop,
    dead_branches,
    inside,
    live,
    live_of,
    loops_around,
    name_of_node,
    resolve,
    scope_at,
)
from tdbg.hooks.pytorch.model.program_sources import source_of_file
from tdbg.hooks.pytorch.model.variables import locals_of, namespaces
from tdbg.run.observations import Fault
from tdbg.run.program_lines import is_of_library

__all__ = ["LoopReader"]

# Loops that are read.
_MOST_LOOPS = 8
# What a program calls a metric.
_METRIC = re.compile(r"(?i)loss|acc|score|err|f1|auc|mse|mae|metric|iou|dice")
# Functions of a mean whose own mean is another number, and what it is called.
_BENT = {"exp": re.compile(r"(?i)ppl|perplex"), "sqrt": re.compile(r"(?i)rmse")}
_METHODS = frozenset(
    {
        "cpu", "detach", "double", "eq", "float", "int", "item", "long", "mean", "size",
        "sum", "view", "squeeze", "argmax",
    }
)  # fmt: skip
# Names of loaders.
_OF_VALIDATION = re.compile(
    r"(test|val|valid|validation|eval|dev)_?(data_?)?(loader|dl)$|(loader|dl)_(test|val)$",
    re.IGNORECASE,
)
_OF_TRAINING = re.compile(
    r"(tr|trn|train|training)_?(data_?)?(loader|dl)$|(loader|dl)_train$", re.IGNORECASE
)
# Names of transforms.
_TRANSFORM = re.compile(r"(?i)transform|(^|_)(tf|tfm|tfms|aug)s?(_|$)")
_EVALUATES = re.compile(r"(?i)(^|_|\[')(val|valid|validation|test|eval|dev)(_|$|'\])")
_TRAINS = re.compile(r"(?i)(^|_|\[')(train|training)(_|$|'\])")
_COLLECTS = frozenset({"append", "extend"})
_BUILTINS = frozenset({"float", "int", "len", "round", "sum"})
_SHOWS = frozenset({"print", "info", "debug", "set_postfix", "set_description", "log"})


class LoopReader:
    """Reads the loops that a program evaluates in, each once.

    Attributes:
        found: What is wrong with those of the present evaluation.
    """

    def __init__(self) -> None:
        self.found: list[Found] = []
        self._n_calls = 0
        self._read = set[tuple[CodeType, int]]()
        self._evaluated: weakref.ref[Any] | None = None
        # The shuffled loader whose labels the present evaluation drops.
        self._unlabelled = ""
        # Places that train.
        self._trains = set[tuple[CodeType, int]]()

    def note_call(self) -> None:
        """Note that the program calls a model to evaluate it."""
        self._n_calls += 1
        # The second call is in a loop.
        if self._n_calls == 2 and len(self._read) < _MOST_LOOPS:
            for loop in loops_around(sys._getframe(1), self._read):
                self.found += _faults_of_loop(loop)
                self._unlabelled = shuffled_without_labels(loop) or self._unlabelled
                self._evaluated = weakref.ref(_data_of(loop.loader))

    def pass_ends(self, n_steps: int, ordered: str) -> list[Found]:
        """Return what was found in the evaluation that is over: training goes on.

        Args:
            n_steps: Steps of training so far.
            ordered: A metric that got all answers as they came; "": none did.
        """
        found, self.found, self._n_calls = self.found, [], 0
        if ordered and self._unlabelled:
            words = {"with": ordered}
            found.append((Fault.ORDER_OF_ANSWERS_LOST, self._unlabelled, {}, words))
        frame, evaluated = sys._getframe(1), self._evaluated
        found += _of_cycles(frame, n_steps)
        if len(self._trains) >= _MOST_LOOPS:
            return found
        for loop in loops_around(frame, self._trains):
            scopes, data = [*namespaces(frame)], _data_of(loop.loader)
            found += _of_loaders(loop, scopes, frame)
            if evaluated is not None and evaluated() is data:
                found += _of_transforms(data, scopes)
        return found


# ---- what a loop does ----------------------------------------------------------------


def _faults_of_loop(loop: BatchLoop) -> Iterator[Found]:
    """Yield what is wrong with what a loop makes of its batches."""
    if any(isinstance(each, ast.Break) for each in inside(loop.node)):
        return
    nodes = [*live(loop.node, loop.names)]
    numbers = {"batches": float(len(loop.loader))}
    added = [*_added(nodes)]
    for name, node in added:
        if what := _score_of_batch(node, nodes, loop.names) or _bent(name, node):
            yield Fault.SCORE_OF_BATCHES, name, numbers, {"what": what}
            break
    summed = {name for name, _ in added}
    for name in _last_alone(loop, nodes):
        yield Fault.LAST_BATCH_COUNTS, name, numbers, {}
        break
    yield from _of_division(loop, summed)
    yield from faults_of_means(loop, added, nodes)
    loader = shuffled_without_labels(loop)
    if loader and (met := compared_after(loop, summed)):
        yield Fault.ORDER_OF_ANSWERS_LOST, loader, {}, {"with": met}


def _added(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Yield what a loop adds to a number or to a list, and the name of that."""
    for node in nodes:
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            yield name_of_node(node.target), node.value
        elif not isinstance(node, ast.Call) or not node.args:
            continue
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _COLLECTS:
            yield name_of_node(node.func.value), node.args[0]


def _score_of_batch(
    node: ast.AST, nodes: list[ast.AST], names: Mapping[str, Any]
) -> str:
    """Return the metric of one batch that is added, if it is no mean over samples."""
    within = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    makers = [
        each.value
        for each in nodes
        if isinstance(each, ast.Assign) and name_of_node(each.targets[0]) in within
    ]
    for each in (node, *makers):
        for call in live_of(each, names):
            made = resolve(call.func, names) if isinstance(call, ast.Call) else None
            name = getattr(made, "__name__", "")
            module = str(getattr(made, "__module__", ""))
            if name in WHOLE and module.startswith("sklearn.metrics"):
                return name
    return ""


def _bent(name: str, node: ast.AST) -> str:
    """Return the function of the mean of one batch that is added; "": none is."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            what = name_of_node(call.func)
            if what in _BENT and _BENT[what].search(name):
                return what
    return ""


def _last_alone(loop: BatchLoop, nodes: list[ast.AST]) -> Iterator[str]:
    """Yield metrics of which nothing but the last batch's is used after a loop."""
    every = [*inside(loop.node)]
    summed = {name for name, _ in _added(every)}
    own = {x.id for x in every if isinstance(x, ast.Name) and _stores(x)}
    for node in nodes:
        name = _metric_set_by(node)
        used = [x for x in every if isinstance(x, ast.Name) and x.id == name]
        if not name or name in summed or sum(map(_stores, used)) > 1:
            continue
        value: ast.expr = node.value  # type: ignore[attr-defined]
        is_alone = _is_of_batch(value, own, summed, loop.names)
        if is_alone and _is_used_after(
            loop, name, may_return=not _is_used(used, every)
        ):
            yield name


def _metric_set_by(node: ast.AST) -> str:
    """Return the metric that a statement gives a value to; "": it is none."""
    is_one = isinstance(node, ast.Assign) and len(node.targets) == 1
    name = name_of_node(node.targets[0]) if is_one else ""  # type: ignore[attr-defined]
    return name if _METRIC.search(name) else ""


def _is_used(used: list[ast.Name], every: list[ast.AST]) -> bool:
    """Return whether a loop does something else with a variable than to show it."""
    shown = {
        id(each)
        for call in every
        if isinstance(call, ast.Call) and name_of_node(call.func) in _SHOWS
        for each in ast.walk(call)
    }
    return any(not _stores(each) and id(each) not in shown for each in used)


def _stores(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _is_of_batch(
    node: ast.expr, own: set[str], summed: set[str], names: Mapping[str, Any]
) -> bool:
    """Return whether an expression is a loss, or a mean, of the batch alone."""
    within = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
    if not within & own or within & summed:
        return False
    calls = [x for x in ast.walk(node) if isinstance(x, ast.Call)]
    return bool(calls) and all(_is_plain(each.func, own, names) for each in calls)


def _is_plain(node: ast.expr, own: set[str], names: Mapping[str, Any]) -> bool:
    """Return whether a function remembers nothing of the batches before."""
    made = resolve(node, names)
    if made is None or (isinstance(node, ast.Attribute) and _root_of(node) in own):
        return isinstance(node, ast.Attribute) and node.attr in _METHODS
    if isinstance(made, nn.Module):
        # A model, or a loss: metrics that remember have no parameters.
        is_loss = type(made).__module__ == "torch.nn.modules.loss"
        return is_loss or any(True for _ in made.parameters())
    module = str(getattr(made, "__module__", ""))
    name = getattr(made, "__name__", "")
    is_of_library = module.startswith(("torch", "sklearn.metrics")) or (
        isinstance(node, ast.Attribute) and node.attr in vars(torch)
    )
    return name in _BUILTINS or is_of_library


def _root_of(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_used_after(loop: BatchLoop, name: str, *, may_return: bool) -> bool:
    """Return whether a variable decides something after a loop, unchanged.

    A function may return the last loss beside the sum.
    """
    end = loop.node.end_lineno or 0
    named = [x for x in inside(loop.scope) if isinstance(x, ast.Name) and x.id == name]
    loaded = {x.lineno for x in named if not _stores(x)}
    stored = [x.lineno for x in named if _stores(x) and x.lineno not in loaded]
    last = min((each for each in stored if each > end), default=sys.maxsize)
    return any(
        end < getattr(node, "lineno", 0) <= last
        and _decides(node, name, loop, may_return)
        for node in live(loop.scope, loop.names)
    )


def _decides(node: ast.AST, name: str, loop: BatchLoop, may_return: bool) -> bool:
    names = {*_names(node, loop.names)}
    is_return = isinstance(node, ast.Return) and may_return
    is_best = isinstance(node, ast.Compare) and any(map(KEPT.search, names))
    is_step = isinstance(node, ast.Call) and name_of_node(node.func) == "step"
    return name in names and (is_return or is_best or is_step)


def _names(node: ast.AST, names: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names in an expression that surely count."""
    for each in live_of(node, names):
        if isinstance(each, ast.Name | ast.Attribute):
            yield name_of_node(each)


def _of_division(loop: BatchLoop, summed: set[str]) -> Iterator[Found]:
    """Yield that a sum over a loop is divided by the length of something else."""
    n, end = samples_of(loop.loader), loop.node.end_lineno or 0
    for node in live(loop.scope, loop.names):
        if not isinstance(node, ast.BinOp) or node.lineno <= end:
            continue
        count = length_below(node, loop.names)
        is_sum = not summed.isdisjoint(_names(node.left, loop.names))
        if count and n and count != n and is_sum:
            numbers = {"count": float(count), "samples": float(n)}
            words = {"by": ast.unparse(node.right)}
            yield Fault.DIVIDED_BY_OTHER_COUNT, ast.unparse(node.left), numbers, words
            return


# ---- loaders -------------------------------------------------------------------------


def _of_loaders(
    loop: BatchLoop, scopes: list[Mapping[str, Any]], frame: FrameType
) -> Iterator[Found]:
    """Yield that a loop trains on the loader of validation, and none on the other."""
    own, others = set[str](), set[str]()
    for scope in scopes:
        for name, value in scope.items():
            if isinstance(value, DataLoader):
                (own if value is loop.loader else others).add(name)
    wrong = sorted(filter(_OF_VALIDATION.match, own))
    meant = sorted(filter(_OF_TRAINING.match, others))
    if not wrong or not meant or any(map(_OF_TRAINING.match, own)):
        return
    if not _is_asked_for(meant[0], frame):
        yield Fault.TRAINED_ON_VALIDATION, wrong[0], {}, {"meant": meant[0]}


def _of_cycles(frame: FrameType | None, n_steps: int) -> Iterator[Found]:
    """Yield that the batches of a loader's first epoch come again and again."""
    while frame is not None:
        code = frame.f_code
        names = {**frame.f_globals, **locals_of(frame)}
        used = code.co_names + code.co_varnames
        # The source of a function that does not name it is not read.
        may = "cycle" in used or any(names.get(e) is itertools.cycle for e in used)
        is_own = may and not is_of_library(code.co_filename)
        tree = source_of_file(code.co_filename) if is_own else None
        scope = None if tree is None else scope_at(tree, frame.f_lineno)
        for node in () if scope is None else live(scope, names):
            if not isinstance(node, ast.Call) or len(node.args) != 1:
                continue
            loader = resolve(node.args[0], names)
            is_cycle = resolve(node.func, names) is itertools.cycle
            if not is_cycle or not isinstance(loader, DataLoader):
                continue
            is_shuffled = type(loader.sampler).__name__ == "RandomSampler"
            if is_shuffled and n_steps > len(loader) > 1:
                numbers = {"batches": float(len(loader)), "steps": float(n_steps)}
                yield Fault.BATCHES_CYCLED, ast.unparse(node.args[0]), numbers, {}
                return
        frame = frame.f_back


def _of_transforms(data: Any, scopes: list[Mapping[str, Any]]) -> Iterator[Found]:
    """Yield that the dataset of both parts has the transform of evaluation."""
    used = {
        key: value
        for key, value in vars(data).items()
        if "transform" in key and callable(value)
    }
    if len(used) != 1:
        return
    ((key, own),) = used.items()
    named = [*_transforms_in(scopes)]
    names = sorted({name for name, value in named if value is own})
    meant = sorted({name for name, value in named if value is not own})
    wrong = [*filter(_EVALUATES.search, names)]
    meant = [*filter(_TRAINS.search, meant)]
    if wrong and meant and not any(map(_TRAINS.search, names)):
        words = {"attribute": key, "own": wrong[0], "meant": meant[0]}
        yield Fault.TRANSFORM_OF_EVALUATION, type(data).__name__, {}, words


def _transforms_in(scopes: list[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield what programs name a transform, also in a dictionary."""
    for scope in scopes:
        for name, value in scope.items():
            if not _TRANSFORM.search(name):
                continue
            if isinstance(value, dict):
                yield from ((f"{name}[{key!r}]", each) for key, each in value.items())
            elif callable(value) and not isinstance(value, type):
                yield name, value


def _data_of(loader: DataLoader[Any]) -> Any:
    """Return the dataset that a loader draws from, whatever part of it."""
    data: Any = loader.dataset
    while hasattr(data, "indices") and hasattr(data, "dataset"):
        data = data.dataset
    return data


def _is_asked_for(name: str, frame: FrameType | None) -> bool:
    """Return whether a program uses a variable for more than its length."""
    while frame is not None:
        file = frame.f_code.co_filename
        tree = None if is_of_library(file) else source_of_file(file)
        if tree is not None:
            idle = dead_branches(tree, {**frame.f_globals, **locals_of(frame)})
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and name_of_node(node.func) == "len":
                    idle.update(map(id, ast.walk(node)))
            if any(_loads(x, name) and id(x) not in idle for x in ast.walk(tree)):
                return True
        frame = frame.f_back
    return False


def _loads(node: ast.AST, name: str) -> bool:
    is_name = isinstance(node, ast.Name | ast.Attribute) and name_of_node(node) == name
    return is_name and isinstance(node.ctx, ast.Load)  # type: ignore[attr-defined]
