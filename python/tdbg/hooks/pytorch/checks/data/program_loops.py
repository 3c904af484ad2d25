"""Read the source of a program: the loop that it is in, and where it sets a name.

What is below a condition that is not known to hold accuses nobody.

Thread safety: the training's thread.
Errors: none where sources are missing; those of names that are odd.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from torch import nn
from torch.utils.data import DataLoader

from tdbg.hooks.pytorch.model.program_sources import (
    Function,
    source_of_file,
    statements,
)
from tdbg.hooks.pytorch.model.variables import locals_of
from tdbg.run.observations import Fault
from tdbg.run.program_lines import is_of_library

__all__ = [
    "KEPT",
    "BatchLoop",
    "dead_branches",
    "inside",
    "is_never_set",
    "kept_as_dropped",
    "live",
    "live_of",
    "loops_around",
    "name_of_node",
    "resolve",
    "scope_at",
    "unread_arguments",
    "unread_settings",
]

# Frames that are searched for a loop.
_MOST_FRAMES = 6
KEPT = re.compile(r"(?i)(^|_)(best|lowest|highest)(_|$)(?!.*(epoch|step|ind|idx))")
"""Names that programs give to what they keep as the best."""

_SAVES = re.compile(r"save|state_dict|deepcopy|checkpoint", re.IGNORECASE)
_Scope = Function | ast.Module
# What programs call settings of a training, and masks that they give a model.
_SETTING = re.compile(
    r"(eps|epsilon|exploration)_(decay|min|end|final)(_?rate|_steps)?"
    r"|(class|label|loss|sample|pos)_weights?|weight_decay|label_smoothing"
    r"|max_(grad_)?norm|(grad(ient)?_)?clip(ping)?_?(grad|norm|val|value)?"
    r"|clip_grad(_norm)?|(num_)?warmup(_steps|_epochs|_ratio)?"
    r"|(grad(ient)?_)?accum(ulation)?(_steps)?|dropout(_?(rate|p|prob))?"
    r"|drop_?(rate|prob)|temperature|entropy_(coef|coeff|beta|weight)|gae_lambda"
    r"|tau|gamma|target_update(_\w+)?|lr_(decay|gamma)|decay_rate|momentum|patience"
    r"|(l1|l2|reg|gp|kl)_(lambda|weight|coef)|lambda_(l1|l2|reg|gp|kl)|ema_decay"
    r"|mixup_alpha|pad(ding)?_(idx|id|token_id)|ignore_index",
    re.IGNORECASE,
)
_MASK = re.compile(r"(\w+_)?(mask|lengths?)")
_REFLECTS = frozenset({"asdict", "eval", "exec", "globals", "locals", "vars"})


class BatchLoop(NamedTuple):
    """A loop over batches that a program evaluates in.

    Attributes:
        node: Its source.
        scope: That of the function or module that it is in.
        names: The variables there.
        loader: What it goes through.
    """

    node: ast.For
    scope: _Scope
    names: Mapping[str, Any]
    loader: DataLoader[Any]


# ---- sources -------------------------------------------------------------------------


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a function, a module or a loop, but in no function inside it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from inside(child)


def live(node: ast.AST, names: Mapping[str, Any]) -> Iterator[ast.AST]:
    """Yield what surely runs: nothing below a condition, unless it is known to hold."""
    for child in ast.iter_child_nodes(node):
        yield child
        if isinstance(child, ast.If | ast.IfExp):
            yield from live_of(child.test, names)
            truth = _truth(child.test, names)
            parts: Any = () if truth is None else child.body if truth else child.orelse
            for part in parts if isinstance(parts, list | tuple) else [parts]:
                yield from live_of(part, names)
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from live(child, names)


def live_of(node: ast.AST, names: Mapping[str, Any]) -> Iterator[ast.AST]:
    """Yield an expression or a statement, and what surely runs in it."""
    yield from live(ast.Module([node], []), names)  # type: ignore[list-item]


def _truth(node: ast.expr, names: Mapping[str, Any]) -> bool | None:
    """Return whether a condition holds; None: it is not known."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _truth(node.operand, names)
        return None if inner is None else not inner
    value = resolve(node, names)
    return value if isinstance(value, bool) else None


def _has(node: Any, line: int) -> bool:
    return bool(node.lineno <= line <= (node.end_lineno or 0))


def scope_at(tree: ast.Module, line: int) -> _Scope:
    """Return the innermost function at a line, or the module."""
    functions = [x for x in statements(tree, line) if isinstance(x, Function)]
    return functions[-1] if functions else tree


def loops_around(
    frame: FrameType | None, read: set[tuple[CodeType, int]]
) -> Iterator[BatchLoop]:
    """Yield the loop over a loader that the program is in, if nobody has read it."""
    for _ in range(_MOST_FRAMES * _MOST_FRAMES):
        if frame is None:
            return
        code, line = frame.f_code, frame.f_lineno
        if not is_of_library(code.co_filename):
            if (code, line) in read:
                return
            read.add((code, line))
            tree = source_of_file(code.co_filename)
            scope = None if tree is None else scope_at(tree, line)
            nodes = () if scope is None else statements(scope, line)
            loops = [x for x in nodes if isinstance(x, ast.For)]
            if scope is not None and loops:
                names = {**frame.f_globals, **locals_of(frame)}
                for node in reversed(loops):
                    loader = _loader_of(node.iter, names)
                    if loader is not None:
                        yield BatchLoop(node, scope, names, loader)
                        break
                return
        frame = frame.f_back


def _loader_of(node: ast.expr, names: Mapping[str, Any]) -> DataLoader[Any] | None:
    """Return the loader with several batches that a loop goes through, or None."""
    while isinstance(node, ast.Call) and node.args:
        node = node.args[0]  # That of enumerate, or of a bar that shows progress.
    if isinstance(node, ast.IfExp) and (truth := _truth(node.test, names)) is not None:
        node = node.body if truth else node.orelse
    found = resolve(node, names)
    is_plain = isinstance(found, DataLoader) and (found.batch_size or 0) > 1
    return found if is_plain and len(found) > 1 else None


def resolve(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """Return the object that a name or its attribute is now; None: it is not known."""
    if isinstance(node, ast.Name):
        builtins = names.get("__builtins__")
        return names.get(node.id, getattr(builtins, node.id, None))
    if isinstance(node, ast.Attribute):
        owner = resolve(node.value, names)
        if isinstance(owner, nn.Module) and node.attr in owner._modules:
            return owner._modules[node.attr]
        if isinstance(owner, DataLoader | ModuleType):
            return getattr(owner, node.attr, None)
        return getattr(owner, "__dict__", {}).get(node.attr)
    return None


def name_of_node(node: ast.AST) -> str:
    """Return the last name in an expression such as ``self.best``; "": it has none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        key = node.slice
        is_text = isinstance(key, ast.Constant) and isinstance(key.value, str)
        return str(key.value) if is_text else name_of_node(node.value)  # type: ignore[attr-defined]
    return node.id if isinstance(node, ast.Name) else ""


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
            tree = source_of_file(file)
            names = {**frame.f_globals, **locals_of(frame)}
            if tree is not None and _keeps_without(tree, name, names):
                return True
        frame = frame.f_back
    return False


def _keeps_without(tree: ast.Module, name: str, names: Mapping[str, Any]) -> bool:
    if any(_may_set(node, name) for node in ast.walk(tree)):
        return False
    scopes: list[_Scope] = [tree]
    scopes += [x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef)]
    tests = [
        (scope, node)
        for scope in scopes
        for node in inside(scope)
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
    dead = dead_branches(tree, names)
    for node in ast.walk(tree):
        is_name = (
            isinstance(node, ast.Name | ast.Attribute) and name_of_node(node) == name
        )
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
        and name in {name_of_node(x.left), name_of_node(x.comparators[0])}
        for x in ast.walk(test)
    )


def _keeps(node: ast.If) -> bool:
    calls = [x for part in node.body for x in ast.walk(part) if isinstance(x, ast.Call)]
    return any(_SAVES.search(name_of_node(each.func)) for each in calls)


def dead_branches(tree: ast.AST, names: Mapping[str, Any]) -> set[int]:
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
    scope: _Scope, test: ast.If, stores: list[ast.Name | ast.Attribute]
) -> bool:
    """Return whether nobody sets a name in the loop where it is compared."""
    loops = [
        x
        for x in inside(scope)
        if isinstance(x, ast.For | ast.While) and _has(x, test.lineno)
    ]
    own = {id(x) for x in inside(scope)}
    mine = [each for each in stores if id(each) in own]
    return bool(loops and mine) and not any(
        _has(loops[0], each.lineno) for each in mine
    )


# ---- settings that nobody reads ------------------------------------------------------


_DROPOUT = re.compile(
    r"(?P<layer>(Alpha|FeatureAlpha)?Dropout[123]?d?)$|dropout[123]?d?$"
)
_KEPT = re.compile(r"(^|_)(keep|kept|retain)(_|$|p)", re.IGNORECASE)


def unread_settings(tree: ast.Module) -> Iterator[tuple[Fault, str, Any]]:
    """Yield settings that a file sets, or takes as arguments, and never reads.

    Args:
        tree: Its source.
    """
    every = [*ast.walk(tree)]
    named = {x.id for x in every if isinstance(x, ast.Name) and _is_load(x)}
    owned = {x.attr for x in every if isinstance(x, ast.Attribute) and _is_load(x)}
    if named & _REFLECTS or "__dict__" in owned:
        return
    owned |= _words_of(every)
    for node in every:
        if isinstance(node, ast.FunctionDef) and node.name != "forward":
            yield from unread_arguments(node)
        elif isinstance(node, ast.Assign) and (name := _setting_of(node)):
            is_variable = isinstance(node.targets[0], ast.Name)
            if name not in owned and not (is_variable and name in named):
                yield Fault.SETTING_UNREAD, name, node


def kept_as_dropped(tree: ast.Module) -> Iterator[tuple[Fault, str, Any]]:
    """Yield dropouts that get the share to keep, by its name, as the one to drop.

    Args:
        tree: The source of a file.

    Example:
        >>> [name for _, name, _ in kept_as_dropped(ast.parse("nn.Dropout(keep_prob)"))]
        ['keep_prob']
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (found := _DROPOUT.match(_last(node.func))):
            by_name = [each.value for each in node.keywords if each.arg == "p"]
            at = 0 if found["layer"] else 1
            for share in (by_name or node.args[at:])[:1]:
                if _KEPT.search(_last(share)):
                    yield Fault.KEPT_AS_DROPPED, _last(share), node


def _last(node: ast.AST) -> str:
    """Return the last name of a variable or an attribute; "": it is none."""
    return str(getattr(node, "id", getattr(node, "attr", "")))


def _words_of(every: list[ast.AST]) -> set[str]:
    """Return the words in texts, which may be names that getattr looks up."""
    texts = [x.value for x in every if isinstance(x, ast.Constant)]
    return {
        word
        for text in texts
        if isinstance(text, str)
        for word in re.findall(r"\w+", text)
    }


def _setting_of(node: ast.Assign) -> str:
    """Return the setting that a statement sets to something; "": it sets none."""
    target, value = node.targets[0], node.value
    is_off = isinstance(value, ast.Constant) and value.value in (None, 0, 1)
    name = str(getattr(target, "attr", getattr(target, "id", "")))
    is_setting = len(node.targets) == 1 and _SETTING.fullmatch(name)
    return name if is_setting and not is_off else ""


def unread_arguments(node: ast.FunctionDef) -> Iterator[tuple[Fault, str, Any]]:
    """Yield settings, and masks of a forward, that a function takes and ignores.

    Args:
        node: Its source.
    """
    if node.decorator_list or len(node.body) < 2:
        return
    used = {
        each.id
        for part in node.body
        for each in ast.walk(part)
        if isinstance(each, ast.Name)
    }
    given = node.args.posonlyargs + node.args.args
    # A mask with a default may be there for the sake of others who call it.
    n_sure = len(given) - len(node.args.defaults)
    for i, each in enumerate(given + node.args.kwonlyargs):
        is_mask = node.name == "forward" and i < n_sure and _MASK.fullmatch(each.arg)
        if each.arg not in used and (is_mask or _SETTING.fullmatch(each.arg)):
            yield Fault.SETTING_UNREAD, each.arg, each


def _is_load(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Load)
