"""Read the source of the loops that a program evaluates in.

It says what becomes of each batch, and the objects that its names mean (loaders,
losses, functions of libraries) say what that is.  What is below a condition that is not
known to hold accuses nobody.

Thread safety: the training's thread.
Errors: none where sources are missing; those of names that are odd.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader

from tdbg.hooks.pytorch.model.variables import locals_of, namespaces
from tdbg.run.observations import Fault
from tdbg.run.program_lines import is_of_library

__all__ = ["KEPT", "Found", "LoopReader", "is_never_set"]

Found = tuple[Fault, str, dict[str, float], dict[str, str]]
"""A fault, the name that it is about, its numbers and words."""

# Loops that are read, frames that are searched for one, characters of a source.
_MOST_LOOPS, _MOST_FRAMES, _MOST_SOURCE = 8, 6, 400_000
# What a program calls a metric, and what it keeps as the best.
_METRIC = re.compile(r"(?i)loss|acc|score|err|f1|auc|mse|mae|metric|iou|dice")
KEPT = re.compile(r"(?i)(^|_)(best|lowest|highest)(_|$)(?!.*(epoch|step|ind|idx))")
"""Names that programs give to what they keep as the best."""

_SAVES = re.compile(r"save|state_dict|deepcopy|checkpoint", re.IGNORECASE)
# Metrics that are no mean over samples.
_WHOLE = frozenset(
    {
        "average_precision_score", "balanced_accuracy_score", "cohen_kappa_score",
        "explained_variance_score", "f1_score", "fbeta_score", "jaccard_score",
        "matthews_corrcoef", "precision_score", "r2_score", "recall_score",
        "roc_auc_score",
    }
)  # fmt: skip
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
_COLLECTS = frozenset({"append", "extend"})
_BUILTINS = frozenset({"float", "int", "len", "round", "sum"})
_SHOWS = frozenset({"print", "info", "debug", "set_postfix", "set_description", "log"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


class _Loop(NamedTuple):
    """A loop over batches that a program evaluates in.

    Attributes:
        node: Its source.
        scope: That of the function or module that it is in.
        names: The variables there.
        loader: What it goes through.
    """

    node: ast.For
    scope: _Function
    names: Mapping[str, Any]
    loader: DataLoader[Any]


class LoopReader:
    """Reads the loops that a program evaluates in, each once.

    Attributes:
        found: What is wrong with those of the present evaluation.
    """

    def __init__(self) -> None:
        self.found: list[Found] = []
        self._n_calls = 0
        self._read = set[tuple[CodeType, int]]()
        # Places that train.
        self._trains = set[tuple[CodeType, int]]()

    def note_call(self) -> None:
        """Note that the program calls a model to evaluate it."""
        self._n_calls += 1
        # The second call is in a loop.
        if self._n_calls == 2 and len(self._read) < _MOST_LOOPS:
            for loop in _loops_around(sys._getframe(1), self._read):
                self.found += _faults_of_loop(loop)

    def pass_ends(self) -> list[Found]:
        """Return what was found in the evaluation that is over: training goes on."""
        found, self.found, self._n_calls = self.found, [], 0
        return [*found, *_of_loaders(sys._getframe(1), self._trains)]


# ---- sources -------------------------------------------------------------------------

_sources: dict[str, ast.Module | None] = {}


def _source_of(name: str) -> ast.Module | None:
    """Return the syntax tree of a file; None: it cannot be read."""
    if name not in _sources:
        if len(_sources) >= _MOST_LOOPS:
            _sources.clear()
        text = "".join(linecache.getlines(name))
        tree = None
        if 0 < len(text) <= _MOST_SOURCE:
            try:
                tree = ast.parse(text)
            except (SyntaxError, ValueError):
                tree = None
        _sources[name] = tree
    return _sources[name]


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a function, a module or a loop, but in no function inside it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _inside(child)


def _live(node: ast.AST, names: Mapping[str, Any]) -> Iterator[ast.AST]:
    """Yield what surely runs: nothing below a condition, unless it is known to hold."""
    for child in ast.iter_child_nodes(node):
        yield child
        if isinstance(child, ast.If | ast.IfExp):
            yield from _live_of(child.test, names)
            truth = _truth(child.test, names)
            parts: Any = () if truth is None else child.body if truth else child.orelse
            for part in parts if isinstance(parts, list | tuple) else [parts]:
                yield from _live_of(part, names)
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _live(child, names)


def _live_of(node: ast.AST, names: Mapping[str, Any]) -> Iterator[ast.AST]:
    """Yield an expression or a statement, and what surely runs in it."""
    yield from _live(ast.Module([node], []), names)  # type: ignore[list-item]


def _truth(node: ast.expr, names: Mapping[str, Any]) -> bool | None:
    """Return whether a condition holds; None: it is not known."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _truth(node.operand, names)
        return None if inner is None else not inner
    value = _resolve(node, names)
    return value if isinstance(value, bool) else None


def _has(node: Any, line: int) -> bool:
    return bool(node.lineno <= line <= (node.end_lineno or 0))


def _scope_at(tree: ast.Module, line: int) -> _Function:
    """Return the innermost function at a line, or the module."""
    found: _Function = tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _has(
            node, line
        ):
            found = node  # Outer ones come first.
    return found


def _loops_around(
    frame: FrameType | None, read: set[tuple[CodeType, int]]
) -> Iterator[_Loop]:
    """Yield the loop over a loader that the program is in, if nobody has read it."""
    for _ in range(_MOST_FRAMES * _MOST_FRAMES):
        if frame is None:
            return
        code, line = frame.f_code, frame.f_lineno
        if not is_of_library(code.co_filename):
            if (code, line) in read:
                return
            read.add((code, line))
            tree = _source_of(code.co_filename)
            scope = None if tree is None else _scope_at(tree, line)
            nodes = () if scope is None else _inside(scope)
            loops = [x for x in nodes if isinstance(x, ast.For) and _has(x, line)]
            if scope is not None and loops:
                names = {**frame.f_globals, **locals_of(frame)}
                for node in reversed(loops):
                    loader = _loader_of(node.iter, names)
                    if loader is not None:
                        yield _Loop(node, scope, names, loader)
                        break
                return
        frame = frame.f_back


def _loader_of(node: ast.expr, names: Mapping[str, Any]) -> DataLoader[Any] | None:
    """Return the loader with several batches that a loop goes through, or None."""
    while isinstance(node, ast.Call) and node.args:
        node = node.args[0]  # That of enumerate, or of a bar that shows progress.
    if isinstance(node, ast.IfExp) and (truth := _truth(node.test, names)) is not None:
        node = node.body if truth else node.orelse
    found = _resolve(node, names)
    is_plain = isinstance(found, DataLoader) and (found.batch_size or 0) > 1
    return found if is_plain and len(found) > 1 else None


def _resolve(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """Return the object that a name or its attribute is now; None: it is not known."""
    if isinstance(node, ast.Name):
        builtins = names.get("__builtins__")
        return names.get(node.id, getattr(builtins, node.id, None))
    if isinstance(node, ast.Attribute):
        owner = _resolve(node.value, names)
        if isinstance(owner, nn.Module) and node.attr in owner._modules:
            return owner._modules[node.attr]
        if isinstance(owner, DataLoader | ModuleType):
            return getattr(owner, node.attr, None)
        return getattr(owner, "__dict__", {}).get(node.attr)
    return None


# ---- what a loop does ----------------------------------------------------------------


def _faults_of_loop(loop: _Loop) -> Iterator[Found]:
    """Yield what is wrong with what a loop makes of its batches."""
    if any(isinstance(each, ast.Break) for each in _inside(loop.node)):
        return
    nodes = [*_live(loop.node, loop.names)]
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


def _added(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Yield what a loop adds to a number or to a list, and the name of that."""
    for node in nodes:
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            yield _name_of(node.target), node.value
        elif not isinstance(node, ast.Call) or not node.args:
            continue
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _COLLECTS:
            yield _name_of(node.func.value), node.args[0]


def _name_of(node: ast.AST) -> str:
    """Return the last name in an expression such as ``self.best``; "": it has none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        key = node.slice
        is_text = isinstance(key, ast.Constant) and isinstance(key.value, str)
        return str(key.value) if is_text else _name_of(node.value)  # type: ignore[attr-defined]
    return node.id if isinstance(node, ast.Name) else ""


def _score_of_batch(
    node: ast.AST, nodes: list[ast.AST], names: Mapping[str, Any]
) -> str:
    """Return the metric of one batch that is added, if it is no mean over samples."""
    inside = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    makers = [
        each.value
        for each in nodes
        if isinstance(each, ast.Assign) and _name_of(each.targets[0]) in inside
    ]
    for each in (node, *makers):
        for call in _live_of(each, names):
            made = _resolve(call.func, names) if isinstance(call, ast.Call) else None
            name = getattr(made, "__name__", "")
            module = str(getattr(made, "__module__", ""))
            if name in _WHOLE and module.startswith("sklearn.metrics"):
                return name
    return ""


def _bent(name: str, node: ast.AST) -> str:
    """Return the function of the mean of one batch that is added; "": none is."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            what = _name_of(call.func)
            if what in _BENT and _BENT[what].search(name):
                return what
    return ""


def _last_alone(loop: _Loop, nodes: list[ast.AST]) -> Iterator[str]:
    """Yield metrics of which nothing but the last batch's is used after a loop."""
    every = [*_inside(loop.node)]
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
    name = _name_of(node.targets[0]) if is_one else ""  # type: ignore[attr-defined]
    return name if _METRIC.search(name) else ""


def _is_used(used: list[ast.Name], every: list[ast.AST]) -> bool:
    """Return whether a loop does something else with a variable than to show it."""
    shown = {
        id(each)
        for call in every
        if isinstance(call, ast.Call) and _name_of(call.func) in _SHOWS
        for each in ast.walk(call)
    }
    return any(not _stores(each) and id(each) not in shown for each in used)


def _stores(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _is_of_batch(
    node: ast.expr, own: set[str], summed: set[str], names: Mapping[str, Any]
) -> bool:
    """Return whether an expression is a loss, or a mean, of the batch alone."""
    inside = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
    if not inside & own or inside & summed:
        return False
    calls = [x for x in ast.walk(node) if isinstance(x, ast.Call)]
    return bool(calls) and all(_is_plain(each.func, own, names) for each in calls)


def _is_plain(node: ast.expr, own: set[str], names: Mapping[str, Any]) -> bool:
    """Return whether a function remembers nothing of the batches before."""
    made = _resolve(node, names)
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


def _is_used_after(loop: _Loop, name: str, *, may_return: bool) -> bool:
    """Return whether a variable decides something after a loop, unchanged.

    A function may return the last loss beside the sum.
    """
    end = loop.node.end_lineno or 0
    named = [x for x in _inside(loop.scope) if isinstance(x, ast.Name) and x.id == name]
    loaded = {x.lineno for x in named if not _stores(x)}
    stored = [x.lineno for x in named if _stores(x) and x.lineno not in loaded]
    last = min((each for each in stored if each > end), default=sys.maxsize)
    return any(
        end < getattr(node, "lineno", 0) <= last
        and _decides(node, name, loop, may_return)
        for node in _live(loop.scope, loop.names)
    )


def _decides(node: ast.AST, name: str, loop: _Loop, may_return: bool) -> bool:
    names = {*_names(node, loop.names)}
    is_return = isinstance(node, ast.Return) and may_return
    is_best = isinstance(node, ast.Compare) and any(map(KEPT.search, names))
    is_step = isinstance(node, ast.Call) and _name_of(node.func) == "step"
    return name in names and (is_return or is_best or is_step)


def _names(node: ast.AST, names: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names in an expression that surely count."""
    for each in _live_of(node, names):
        if isinstance(each, ast.Name | ast.Attribute):
            yield _name_of(each)


def _of_division(loop: _Loop, summed: set[str]) -> Iterator[Found]:
    """Yield that a sum over a loop is divided by the length of something else."""
    n, end = _samples_of(loop.loader), loop.node.end_lineno or 0
    for node in _live(loop.scope, loop.names):
        if not isinstance(node, ast.BinOp) or node.lineno <= end:
            continue
        count = _length_below(node, loop.names)
        is_sum = not summed.isdisjoint(_names(node.left, loop.names))
        if count and n and count != n and is_sum:
            numbers = {"count": float(count), "samples": float(n)}
            words = {"by": ast.unparse(node.right)}
            yield Fault.DIVIDED_BY_OTHER_COUNT, ast.unparse(node.left), numbers, words
            return


def _samples_of(loader: DataLoader[Any]) -> int:
    """Return how many samples a loader gives; 0: it is not known, or a rank's share."""
    is_plain = type(loader.batch_sampler).__name__ == "BatchSampler"
    if not is_plain or hasattr(loader.sampler, "num_replicas"):
        return 0
    n: int = len(loader.sampler)  # type: ignore[arg-type]
    return n - n % (loader.batch_size or 1) if loader.drop_last else n


def _length_below(node: ast.BinOp, names: Mapping[str, Any]) -> int:
    """Return the length of a loader's dataset that is divided by; 0: none is."""
    below = node.right
    is_length = isinstance(below, ast.Call) and _name_of(below.func) == "len"
    if not isinstance(node.op, ast.Div) or not is_length:
        return 0
    (given, *_) = below.args or [below]  # type: ignore[attr-defined]
    is_dataset = isinstance(given, ast.Attribute) and given.attr == "dataset"
    what = _resolve(given, names) if is_dataset else None
    return 0 if what is None else len(what)


def _of_loaders(
    frame: FrameType | None, read: set[tuple[CodeType, int]]
) -> Iterator[Found]:
    """Yield that a loop trains on the loader of validation, and none on the other."""
    for loop in _loops_around(frame, read) if len(read) < _MOST_LOOPS else ():
        own, others = set[str](), set[str]()
        for scope in namespaces(frame):
            for name, value in scope.items():
                if isinstance(value, DataLoader):
                    (own if value is loop.loader else others).add(name)
        wrong = sorted(filter(_OF_VALIDATION.match, own))
        meant = sorted(filter(_OF_TRAINING.match, others))
        if not wrong or not meant or any(map(_OF_TRAINING.match, own)):
            continue
        if not _is_asked_for(meant[0], frame):
            yield Fault.TRAINED_ON_VALIDATION, wrong[0], {}, {"meant": meant[0]}


def _is_asked_for(name: str, frame: FrameType | None) -> bool:
    """Return whether a program uses a variable for more than its length."""
    while frame is not None:
        file = frame.f_code.co_filename
        tree = None if is_of_library(file) else _source_of(file)
        if tree is not None:
            idle = _dead(tree, {**frame.f_globals, **locals_of(frame)})
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and _name_of(node.func) == "len":
                    idle.update(map(id, ast.walk(node)))
            if any(_loads(x, name) and id(x) not in idle for x in ast.walk(tree)):
                return True
        frame = frame.f_back
    return False


def _loads(node: ast.AST, name: str) -> bool:
    is_name = isinstance(node, ast.Name | ast.Attribute) and _name_of(node) == name
    return is_name and isinstance(node.ctx, ast.Load)  # type: ignore[attr-defined]


# ---- the best ------------------------------------------------------------------------


def is_never_set(name: str, frame: FrameType | None) -> bool:
    """Return whether a program compares with a name in a loop that never sets it."""
    seen = set[str]()
    for _ in range(_MOST_FRAMES * _MOST_FRAMES):
        if frame is None:
            break
        file = frame.f_code.co_filename
        if file not in seen and not is_of_library(file):
            seen.add(file)
            tree = _source_of(file)
            names = {**frame.f_globals, **locals_of(frame)}
            if tree is not None and _keeps_without(tree, name, names):
                return True
        frame = frame.f_back
    return False


def _keeps_without(tree: ast.Module, name: str, names: Mapping[str, Any]) -> bool:
    if any(_may_set(node, name) for node in ast.walk(tree)):
        return False
    scopes: list[_Function] = [tree]
    scopes += [x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef)]
    tests = [
        (scope, node)
        for scope in scopes
        for node in _inside(scope)
        if isinstance(node, ast.If) and _asks(node.test, name) and _keeps(node)
    ]
    stores = [*_stores_of(tree, name, names)]
    if any(isinstance(each, ast.Attribute) for each in stores):
        begun = {
            id(x)
            for scope in scopes[1:]
            if scope.name == "__init__"  # type: ignore[union-attr]
            for x in ast.walk(scope)
        }
        return bool(tests) and all(id(each) in begun for each in stores)
    return bool(tests) and all(_is_unset_near(*each, stores) for each in tests)


def _stores_of(
    tree: ast.Module, name: str, names: Mapping[str, Any]
) -> Iterator[ast.Name | ast.Attribute]:
    dead = _dead(tree, names)
    for node in ast.walk(tree):
        is_name = isinstance(node, ast.Name | ast.Attribute) and _name_of(node) == name
        if is_name and isinstance(node.ctx, ast.Store) and id(node) not in dead:  # type: ignore[attr-defined]
            yield node  # type: ignore[misc]


def _may_set(node: ast.AST, name: str) -> bool:
    """Return whether a statement may give a name a value from elsewhere."""
    is_declared = isinstance(node, ast.Global | ast.Nonlocal) and name in node.names
    is_given = isinstance(node, ast.arg | ast.keyword) and node.arg == name
    is_set = isinstance(node, ast.Name) and node.id in {"setattr", "exec"}
    return is_declared or is_given or is_set


def _asks(test: ast.AST, name: str) -> bool:
    return any(
        isinstance(x, ast.Compare)
        and isinstance(x.ops[0], ast.Lt | ast.Gt | ast.LtE | ast.GtE)
        and name in {_name_of(x.left), _name_of(x.comparators[0])}
        for x in ast.walk(test)
    )


def _keeps(node: ast.If) -> bool:
    calls = [x for part in node.body for x in ast.walk(part) if isinstance(x, ast.Call)]
    return any(_SAVES.search(_name_of(each.func)) for each in calls)


def _dead(tree: ast.Module, names: Mapping[str, Any]) -> set[int]:
    """Return what is in branches that are known not to be taken."""
    found = set[int]()
    for node in ast.walk(tree):
        truth = None
        if isinstance(node, ast.If | ast.IfExp):
            truth = _truth(node.test, names)
        if truth is not None:
            part: Any = node.orelse if truth else node.body  # type: ignore[attr-defined]
            for each in part if isinstance(part, list) else [part]:
                found.update(map(id, ast.walk(each)))
    return found


def _is_unset_near(
    scope: _Function, test: ast.If, stores: list[ast.Name | ast.Attribute]
) -> bool:
    """Return whether nobody sets a name in the loop where it is compared."""
    loops = [
        x
        for x in _inside(scope)
        if isinstance(x, ast.For | ast.While) and _has(x, test.lineno)
    ]
    own = {id(x) for x in _inside(scope)}
    mine = [each for each in stores if id(each) in own]
    return bool(loops and mine) and not any(
        _has(loops[0], each.lineno) for each in mine
    )
