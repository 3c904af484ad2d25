"""Read the source of a function, for what it does outside of a model.

Thread safety: the training's thread.
"""

from __future__ import annotations

import ast
import collections
import importlib.util
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from tdbg.hooks.pytorch.checks.probes.outside_names import (
    ARRAYS,
    CONSTANT,
    CONTAINERS,
    FUNCTIONS,
    ITS_CLASS,
    PLAIN,
    UNKNOWN,
    OutsideValue,
    closure_of,
    global_of,
    is_changeable,
    is_kept,
    is_stateless,
    may_change,
    only_reads,
    wrapped_by,
)
from tdbg.hooks.pytorch.checks.probes.pure_libraries import (
    ALLOWED,
    is_allowed,
    is_computing,
    is_pure,
)

__all__ = ["Effects", "FunctionReader"]


# Methods that change neither a container nor an array, though they end like this.
_READS = frozenset(
    {"__contains__", "__getitem__", "__len__", "copy", "count", "difference", "get"}
    | {"index", "intersection", "issubset", "issuperset", "items", "keys", "union"}
    | {"values"}
)
_CHANGES = frozenset({"fill", "itemset", "partition", "put", "resize", "setflags"})
_CHANGES |= {"sort", "backward"}
# Methods that write, of whatever object.
_WRITES = frozenset(
    {"add_histogram", "add_image", "add_scalar", "add_scalars", "mkdir"}
)
_WRITES |= {"log_dict", "log_metric", "log_metrics", "savefig", "tofile", "touch"}
_WRITES |= {"unlink", "write_bytes", "write_text", "writelines"}
_MOST_ITEMS = 1000
_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Effects(Protocol):
    """What hears of a function that is read.

    Attributes:
        names: All names of attributes.
        of_classes: What all objects of a class share and can be changed, by name.
    """

    names: set[str]
    of_classes: dict[str, Any]

    def load(self, function: Any, name: str, value: Any) -> OutsideValue | None:
        """Return something outside that a function names; None: it cannot change.

        Raises:
            Unsuitable: If it has effects, or is the model.
        """

    def refuse(self, function: Any, name: str) -> None:
        """Refuse the model.

        Raises:
            Unsuitable: Always.
        """


class FunctionReader(ast.NodeVisitor):
    """Read one function; visits of expressions return what lies outside, or None.

    Args:
        effects: Receives what the function reaches.
        function: The function.
        node: Its source.
    """

    def __init__(
        self, effects: Effects, function: types.FunctionType, node: _FunctionNode
    ) -> None:
        self._effects = effects
        self._function = function
        self._node = node
        self._closure = dict(closure_of(function))
        self._scopes: list[set[str]] = [set()]
        self._values: dict[str, OutsideValue] = {}
        given = node.args.posonlyargs + node.args.args
        self._self = given[0].arg if given else ""

    def read(self) -> None:
        """Read the function.

        Raises:
            Unsuitable: If it has effects.
        """
        of_place, of_name = self._function.__defaults__, self._function.__kwdefaults__
        arguments = self._node.args.posonlyargs + self._node.args.args
        last = arguments[len(arguments) - len(of_place or ()) :]
        given = dict(zip((each.arg for each in last), of_place or (), strict=True))
        for name, value in {**given, **(of_name or {})}.items():
            found = self._effects.load(self._function, name, value)
            if found is not None:
                self._values[name] = found
        self._read_body(self._node)

    def _read_body(self, node: Any) -> None:
        self._scopes.append(_bound(node))
        for each in node.body if isinstance(node.body, list) else [node.body]:
            self.visit(each)
        self._scopes.pop()

    def _refuse(self, found: OutsideValue) -> None:
        self._effects.refuse(self._function, found.name)

    def _load(self, name: str, value: Any) -> OutsideValue | None:
        return self._effects.load(self._function, name, value)

    def generic_visit(self, node: ast.AST) -> OutsideValue | None:
        """Visit all parts; return the first one that can be changed."""
        found = [self.visit(each) for each in ast.iter_child_nodes(node)]
        return next((each for each in found if is_changeable(each)), None)

    # ---- names ---------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> OutsideValue | None:
        """Return what a name means."""
        name = node.id
        if any(name in scope for scope in self._scopes):
            return self._values.get(name)
        if name in self._closure:
            return self._load(name, self._closure[name])
        value = global_of(self._function, name)
        return None if value is UNKNOWN else self._load(name, value)

    def visit_Attribute(self, node: ast.Attribute) -> OutsideValue | None:
        """Return what an attribute is."""
        return self._attribute(self.visit(node.value), node.attr)

    def _attribute(self, base: OutsideValue | None, name: str) -> OutsideValue | None:
        self._effects.names.add(name)
        if name == "__class__":
            return ITS_CLASS
        if base is not None:
            return self._part(base, name)
        shared = self._effects.of_classes.get(name)
        return None if shared is None else self._load(name, shared)

    def _part(self, base: OutsideValue, attribute: str) -> OutsideValue | None:
        """Return an attribute of something outside."""
        name, value = f"{base.name}.{attribute}", base.value
        if attribute in {"__name__", "__qualname__", "__module__", "__doc__"}:
            return None
        if isinstance(value, types.ModuleType):
            known = f"{value.__name__}.{attribute}"
            if attribute in vars(value):
                if not is_allowed(known):
                    self._refuse(OutsideValue(name))
                if known in ALLOWED:
                    return OutsideValue(name, vars(value)[attribute])
                return self._load(name, vars(value)[attribute])
            return None if is_pure(value) else OutsideValue(name)
        if isinstance(value, type):
            found = inspect.getattr_static(value, attribute, None)
            is_shared = may_change(found) and not is_pure(value)
            return self._load(name, found) if is_shared else None
        if isinstance(value, (*ARRAYS, *CONSTANT)):
            return None
        own = getattr(value, "__dict__", {})
        if isinstance(own, Mapping) and attribute in own:
            return self._load(name, own[attribute])
        found = inspect.getattr_static(type(value), attribute, None)
        is_plain = isinstance(found, (*PLAIN, property)) and found is not None
        return None if is_plain else OutsideValue(name)

    def visit_Subscript(self, node: ast.Subscript) -> OutsideValue | None:
        """Return an item."""
        base = self.visit(node.value)
        self.visit(node.slice)
        return self._item(base)

    def _item(self, base: OutsideValue | None) -> OutsideValue | None:
        """Return any item of something outside; None: no item can be changed."""
        if base is None or isinstance(base.value, type):
            return None
        if not isinstance(base.value, CONTAINERS):
            return base
        items: Any = base.value
        items = [*items.values()] if isinstance(items, Mapping) else [*items]
        if not items or isinstance(base.value, collections.defaultdict):
            return OutsideValue(base.name)
        found = [self._load(base.name, each) for each in items[:_MOST_ITEMS]]
        changeable = [each for each in found if is_changeable(each)]
        return next(iter(changeable), None) or next(iter(found), None)

    # ---- changes -------------------------------------------------------------

    def _assign(self, target: ast.AST, found: OutsideValue | None) -> None:
        """Give a target a value, which may lie outside."""
        if isinstance(target, ast.Name):
            if found is not None and not is_changeable(self._values.get(target.id)):
                self._values[target.id] = found
        elif isinstance(target, ast.Starred):
            self._assign(target.value, found)
        elif isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._assign(each, self._item(found))
        elif isinstance(target, ast.Attribute | ast.Subscript):
            base = self.visit(target.value)
            if isinstance(target, ast.Subscript):
                self.visit(target.slice)
            if base is not None:
                part = f".{target.attr}" if isinstance(target, ast.Attribute) else ""
                self._refuse(OutsideValue(base.name + part))
            if found is not None and is_kept(found):
                self._refuse(found)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Read an assignment."""
        found = self.visit(node.value)
        for each in node.targets:
            self._assign(each, found)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Read an assignment, without its annotation."""
        if node.value is not None:
            self._assign(node.target, self.visit(node.value))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> OutsideValue | None:
        """Read an assignment in an expression."""
        found: OutsideValue | None = self.visit(node.value)
        self._assign(node.target, found)
        return found

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Read an assignment that may change its target."""
        self.visit(node.value)
        found = self.visit(node.target)
        if found is not None and is_changeable(found):
            self._refuse(found)
        self._assign(node.target, None)

    def _new(self, node: ast.AST) -> None:
        """Read an expression whose value is a new one."""
        for each in ast.iter_child_nodes(node):
            self.visit(each)

    visit_BinOp = visit_UnaryOp = visit_Compare = visit_JoinedStr = _new  # noqa: N815
    visit_Slice = _new  # noqa: N815

    def visit_Delete(self, node: ast.Delete) -> None:
        """Read a deletion."""
        for each in node.targets:
            self._assign(each, None)

    def visit_Global(self, node: ast.Global) -> None:
        """Refuse: a function that declares a global sets it."""
        self._refuse(OutsideValue(node.names[0]))

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        """Refuse what a closure sets outside of the function."""
        for name in node.names:
            if name in self._closure:
                self._refuse(OutsideValue(name))

    def visit_Import(self, node: ast.Import) -> None:
        """Take imported modules for what they are."""
        for each in node.names:
            top = each.name.partition(".")[0]
            self._import(each.asname or top, each.name if each.asname else top)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Take imported names for what they are."""
        package = self._function.__globals__.get("__package__") or ""
        name = "." * node.level + (node.module or "")
        try:
            source = importlib.util.resolve_name(name, package)
        except ImportError:
            source = name
        for each in node.names:
            self._import(each.asname or each.name, source, each.name)

    def _import(self, name: str, source: str, part: str = "") -> None:
        module = sys.modules.get(f"{source}.{part}" if part else source)
        if part and module is None and source in sys.modules:
            module = vars(sys.modules[source]).get(part, sys)
        if module is None or module is sys:
            self._refuse(OutsideValue(f"import {source}"))
        found = self._load(name, module)
        if found is not None:
            self._values[name] = found

    # ---- calls ---------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> OutsideValue | None:
        """Read a call; return what it may give of something outside."""
        result, called, method = None, None, ""
        if isinstance(node.func, ast.Attribute):
            owner, method = self.visit(node.func.value), node.func.attr
            if owner is not None and is_changeable(owner):
                self._effects.names.add(method)
                result = self._method(owner, method)
            else:
                called = self._attribute(owner, method)
            if method in _WRITES:
                self._refuse(OutsideValue(method))
        else:
            called = self.visit(node.func)
        if called is not None:
            self._check_call(called)
        function = None if called is None else called.value
        given = self._arguments(node)
        if function is type and len(given) == 1:
            return ITS_CLASS
        self._check_given(function, method, given)
        return result

    def _check_given(
        self, function: Any, method: str, given: list[OutsideValue | None]
    ) -> None:
        """Refuse a call that may change what it is given."""
        if function in (setattr, delattr) and given and given[0] is not None:
            self._refuse(given[0])
        is_read = method in _READS or hasattr(torch.Tensor, method or "-")
        if is_read or only_reads(function):
            return
        for each in given:
            if each is not None and is_kept(each):
                self._refuse(each)

    def _arguments(self, node: ast.Call) -> list[OutsideValue | None]:
        """Read the arguments of a call."""
        given = [self.visit(each) for each in node.args]
        for keyword in node.keywords:
            given.append(self.visit(keyword.value))
            if keyword.arg == "out" and given[-1] is not None:
                self._refuse(given[-1])
        # What `getattr` and its like get by name.
        self._effects.names.update(
            each.value
            for each in node.args
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        )
        return given

    def _method(self, owner: OutsideValue, method: str) -> OutsideValue | None:
        """Check a call of a method of something outside."""
        name = f"{owner.name}.{method}"
        if isinstance(owner.value, ARRAYS):
            is_in_place = method.endswith("_") and not method.endswith("__")
            if is_in_place or method in _CHANGES:
                self._refuse(OutsideValue(name))
            return None
        if isinstance(owner.value, CONTAINERS):
            if method not in _READS:
                self._refuse(OutsideValue(name))
            return self._item(owner)
        part = self._part(owner, method)
        if owner.value is not UNKNOWN and part is not None:
            self._check_call(part)
        elif owner is not ITS_CLASS:
            self._refuse(OutsideValue(name))
        return None

    def _check_call(self, called: OutsideValue) -> None:
        """Refuse calls of objects outside that may have a state."""
        value = called.value
        if called is ITS_CLASS or isinstance(value, (*FUNCTIONS, *CONSTANT)):
            return
        if isinstance(value, nn.Module):
            is_harmless = is_stateless(value)
        elif value is UNKNOWN:
            is_harmless = False
        else:
            is_harmless = wrapped_by(value) is not None or is_computing(type(value))
        if not is_harmless:
            self._refuse(called)

    # ---- statements ----------------------------------------------------------

    def visit_If(self, node: ast.If | ast.IfExp) -> OutsideValue | None:
        """Read a branch, unless evaluation never takes it."""
        is_taken = self._constant(node.test)
        self.visit(node.test)
        taken: list[Any] = []
        if is_taken is not False:
            taken += node.body if isinstance(node.body, list) else [node.body]
        if is_taken is not True:
            taken += node.orelse if isinstance(node.orelse, list) else [node.orelse]
        found = [self.visit(each) for each in taken]
        return next((each for each in found if is_changeable(each)), None)

    visit_IfExp = visit_If  # noqa: N815

    def _constant(self, test: ast.expr) -> bool | None:
        """Return the value of a condition, if it is known."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            found = self._constant(test.operand)
            return None if found is None else not found
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            parts = [self._constant(each) for each in test.values]
            return False if False in parts else None
        if isinstance(test, ast.Constant):
            return bool(test.value)
        if isinstance(test, ast.Attribute) and test.attr == "training":
            is_self = isinstance(test.value, ast.Name) and test.value.id == self._self
            return False if is_self else None
        return None

    def visit_For(self, node: ast.For) -> None:
        """Read a loop."""
        self._assign(node.target, self._item(self.visit(node.iter)))
        for each in (*node.body, *node.orelse):
            self.visit(each)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Read a loop in an expression."""
        self._assign(node.target, self._item(self.visit(node.iter)))
        for each in node.ifs:
            self.visit(each)

    def _visit_loops(self, node: Any) -> OutsideValue | None:
        self._scopes.append(_bound(node))
        for each in node.generators:
            self.visit(each)
        parts = [getattr(node, each, None) for each in ("key", "value", "elt")]
        found = [self.visit(each) for each in parts if each is not None]
        self._scopes.pop()
        return next((each for each in found if is_changeable(each)), None)

    visit_ListComp = visit_SetComp = visit_DictComp = _visit_loops  # noqa: N815
    visit_GeneratorExp = _visit_loops  # noqa: N815

    def visit_withitem(self, node: ast.withitem) -> None:
        """Read a context; one that lies outside has a state."""
        found = self.visit(node.context_expr)
        if is_changeable(found):
            self._refuse(found)
        if node.optional_vars is not None:
            self._assign(node.optional_vars, found)

    def visit_FunctionDef(self, node: Any) -> None:
        """Read a function that the function makes."""
        for each in getattr(node, "decorator_list", ()):
            self.visit(each)
        arguments = node.args.posonlyargs + node.args.args
        last = arguments[len(arguments) - len(node.args.defaults) :]
        for argument, default in zip(last, node.args.defaults, strict=True):
            self._assign(ast.Name(argument.arg, ast.Store()), self.visit(default))
        self._read_body(node)

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef  # noqa: N815

    def visit_Return(self, node: ast.Return) -> None:
        """Read what is returned; a container outside could be changed elsewhere."""
        found = None if node.value is None else self.visit(node.value)
        if found is not None and is_kept(found):
            self._refuse(found)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Read nothing: what is raised ends the call."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Read the condition only."""
        self.visit(node.test)


def _bound(node: Any) -> set[str]:
    """Return the names that are local in a function or a comprehension."""
    found = set(_arguments_as_written(node)) if hasattr(node, "args") else set()
    bodies: list[Any] = [node.body] if hasattr(node, "body") else [node.generators]
    waiting = [each for body in bodies for each in _listed(body)]
    while waiting:
        each = waiting.pop()
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
            found.add(each.id)
        elif isinstance(each, ast.alias):
            found.add((each.asname or each.name).partition(".")[0])
        elif isinstance(each, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            found.add(each.name or "")
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(each.name)
            continue
        elif isinstance(each, ast.Lambda):
            continue
        waiting += ast.iter_child_nodes(each)
    return found


def _listed(body: Any) -> list[Any]:
    return body if isinstance(body, list) else [body]


def _arguments_as_written(node: Any) -> Iterator[str]:
    for each in ast.walk(node.args):
        if isinstance(each, ast.arg):
            yield each.arg
