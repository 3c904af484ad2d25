"""The sources of functions and of the programs that hold them.

Thread safety: the training's thread.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import types
from typing import Any

__all__ = ["FunctionSources"]

# Characters of a file that is read, at most.
_LONGEST = 1 << 20
_FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_WHOLE_FILE = 0


class FunctionSources:
    """The sources of functions."""

    def __init__(self) -> None:
        self._files: dict[str, dict[int, list[Any]]] = {}

    def nodes(self, code: types.CodeType) -> list[Any]:
        """Return the nodes that may be those of a code; none: its source is unknown."""
        return [
            each
            for each in self._in(code.co_filename).get(code.co_firstlineno, ())
            if getattr(each, "name", "<lambda>") == code.co_name
            and _arguments(each.args) == _arguments_of(code)
            and _names_in(each) >= _names_of(code)
        ]

    def program(self, code: types.CodeType) -> list[Any]:
        """Return the node of the file, or cell of a notebook, that a code runs."""
        if code.co_flags & inspect.CO_OPTIMIZED:
            return []
        return self._in(code.co_filename).get(_WHOLE_FILE, [])

    def _in(self, path: str) -> dict[int, list[Any]]:
        by_line = self._files.get(path)
        if by_line is None:
            by_line = self._files[path] = _by_line(path)
        return by_line


def _by_line(path: str) -> dict[int, list[Any]]:
    lines = linecache.getlines(path)
    found: dict[int, list[Any]] = {}
    if sum(map(len, lines)) > _LONGEST:
        return found
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return found
    found[_WHOLE_FILE] = [tree]
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTION_NODES):
            decorators = getattr(node, "decorator_list", [])
            line = min([node.lineno, *(each.lineno for each in decorators)])
            found.setdefault(line, []).append(node)
    return found


def _arguments(node: ast.arguments) -> list[str]:
    every = [*node.posonlyargs, *node.args, *node.kwonlyargs]
    every += [each for each in (node.vararg, node.kwarg) if each is not None]
    return [each.arg.lstrip("_") for each in every]


def _arguments_of(code: types.CodeType) -> list[str]:
    n = code.co_argcount + code.co_kwonlyargcount
    n += bool(code.co_flags & inspect.CO_VARARGS)
    n += bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return [each.lstrip("_") for each in code.co_varnames[:n]]


def _names_in(node: ast.AST) -> set[str]:
    """Return all names in a function; a source that lacks some was changed."""
    found = {"__name__", "__module__", "__qualname__", "__class__"}
    for each in ast.walk(node):
        for field in ("id", "attr", "name", "module", "asname"):
            if isinstance(value := getattr(each, field, None), str):
                found.update(value.split("."))
    return found


def _names_of(code: types.CodeType) -> set[str]:
    names = {part for name in code.co_names for part in name.split(".")}
    return {each for each in names if not each.startswith(("@", "_"))}
