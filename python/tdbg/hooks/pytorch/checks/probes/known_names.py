"""Look up what the names in a source stand for, and which of its lines run.

Nothing is called: names are variables, and attributes that are stored.

Thread safety: the training's thread.  Reads only.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["UNKNOWN", "KnownNames", "executed", "parts_of"]

UNKNOWN: Any = object()
"""What a name stands for that nobody knows."""

_PLAIN = (bool, int, float, str, types.NoneType)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class KnownNames:
    """What the names of a function stand for.

    Args:
        names: Variables by name.
        own: What a method calls its object; "": it is no method.
        module: That object.
    """

    def __init__(
        self,
        names: Mapping[str, Any],
        own: str = "",
        module: nn.Module | None = None,
    ) -> None:
        self._names = names
        self._own = own
        self._module = module
        self.is_method = module is not None

    def __call__(self, node: ast.AST) -> Any:
        """Return the object that names stand for; ``UNKNOWN``: nobody knows."""
        if isinstance(node, ast.Name):
            if self.is_method and node.id == self._own:
                return self._module
            return self._names.get(node.id, UNKNOWN)
        if isinstance(node, ast.Attribute):
            return _attribute(self(node.value), node.attr)
        return UNKNOWN


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute without calling code of the program."""
    if isinstance(owner, nn.Module):
        for kept in (owner._modules, owner._buffers, owner._parameters, vars(owner)):
            if name in kept:
                return kept[name]
        return UNKNOWN
    if isinstance(owner, types.ModuleType):
        return vars(owner).get(name, UNKNOWN)
    if type(owner) in {torch.Tensor, nn.Parameter} and name in {"data", "grad"}:
        return owner.data if name == "data" else owner.grad
    found = inspect.getattr_static(owner, name, UNKNOWN)
    if isinstance(found, types.MemberDescriptorType):
        found = found.__get__(owner)
    return found if isinstance(found, _PLAIN) else UNKNOWN


def executed(root: Any, names: KnownNames) -> list[ast.stmt]:
    """Return the statements that run: not attempts, nor branches that nobody knows.

    A cell of a notebook shows its last one, if that is an expression.
    """
    body = list(root.body)
    if isinstance(root, ast.Module) and body and isinstance(body[-1], ast.Expr):
        body.pop()
    found = list[ast.stmt]()
    while body:
        node = body.pop()
        found.append(node)
        if isinstance(node, ast.If):
            ways = _ways(node.test, names)
            body += [*(node.body if True in ways else ())]
            body += [*(node.orelse if False in ways else ())]
        elif isinstance(node, ast.For | ast.While | ast.With):
            body += node.body
    return found


def _ways(test: ast.AST, names: KnownNames) -> set[bool]:
    """Return the values that a condition has; none: nobody knows.

    What an argument is, or whether a module trains, may change from call to call.
    """
    if isinstance(test, ast.Constant):
        return {bool(test.value)}
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return {not each for each in _ways(test.operand, names)}
    if isinstance(test, ast.BoolOp):
        return _of_several(test, names)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _of_comparison(test, names)
    if getattr(test, "attr", "") == "training":
        return {True, False}
    value = names(test)
    return {bool(value)} if isinstance(value, _PLAIN) else set()


def _of_several(test: ast.BoolOp, names: KnownNames) -> set[bool]:
    every = [_ways(each, names) for each in test.values]
    decisive = isinstance(test.op, ast.Or)
    if {decisive} in every:
        return {decisive}
    return set[bool]().union(*every) if all(every) else set()


def _of_comparison(test: ast.Compare, names: KnownNames) -> set[bool]:
    one, other = (
        each.value if isinstance(each, ast.Constant) else names(each)
        for each in (test.left, test.comparators[0])
    )
    operation = test.ops[0]
    if isinstance(operation, ast.Is | ast.IsNot) and other is None:
        if one is UNKNOWN:
            return {True, False}
        return {(one is None) == isinstance(operation, ast.Is)}
    if not (isinstance(one, _PLAIN) and isinstance(other, _PLAIN)):
        return set()
    if isinstance(operation, ast.Eq | ast.NotEq):
        return {(one == other) == isinstance(operation, ast.Eq)}
    return set()


def parts_of(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield all parts of statements that run, without those that other ones hold."""
    for statement in body:
        if isinstance(statement, ast.If | ast.While):
            yield from ast.walk(statement.test)
        elif isinstance(statement, ast.For):
            yield from ast.walk(statement.iter)
        elif isinstance(statement, ast.With):
            for item in statement.items:
                yield from ast.walk(item.context_expr)
        elif not isinstance(statement, (ast.Try, *_SCOPES)):
            yield from ast.walk(statement)
