"""The sources of programs: their syntax trees, and the functions in them.

A file is parsed once for all who ask, and again only if Python has read it anew.

Thread safety: the training's thread.
Errors: none; a source that is missing, or too long, has no nodes.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["Function", "functions_of", "program_of", "source_of_file", "statements"]

Function = ast.FunctionDef | ast.AsyncFunctionDef

# Files that are kept, and characters of one that is read, at most.
_MOST_FILES, _LONGEST = 8, 400_000
_PARTS = ("body", "handlers", "orelse", "finalbody", "cases")


class _Source:
    """What one file says.

    Args:
        lines: Its lines, which Python keeps.
    """

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.tree: ast.Module | None = None
        self._by_line: dict[bool, dict[int, list[Any]]] = {}
        text = "".join(lines)
        if 0 < len(text) <= _LONGEST:
            try:
                self.tree = ast.parse(text)
            except (SyntaxError, ValueError):
                self.tree = None

    def functions_at(self, line: int, *, is_lambda: bool) -> list[Any]:
        """Return the functions whose code begins in a line."""
        found = self._by_line.get(is_lambda)
        if found is None:
            found = self._by_line[is_lambda] = {}
            if self.tree is not None:
                nodes = ast.walk(self.tree) if is_lambda else statements(self.tree)
                kinds = ast.Lambda if is_lambda else Function
                for node in nodes:
                    if isinstance(node, kinds):
                        found.setdefault(_first_line(node), []).append(node)
        return found.get(line, [])


_sources: dict[str, _Source] = {}


def _source(name: str) -> _Source:
    lines = linecache.getlines(name)
    found = _sources.get(name)
    if found is None or found.lines is not lines:
        if len(_sources) >= _MOST_FILES:
            _sources.clear()
        found = _sources[name] = _Source(lines)
    return found


def source_of_file(name: str) -> ast.Module | None:
    """Return the syntax tree of a file; None: it cannot be read."""
    return _source(name).tree


def program_of(code: types.CodeType) -> list[Any]:
    """Return the node of the file, or cell of a notebook, that a code runs."""
    if code.co_flags & inspect.CO_OPTIMIZED:
        return []
    tree = source_of_file(code.co_filename)
    return [] if tree is None else [tree]


def functions_of(code: types.CodeType) -> list[Any]:
    """Return the nodes that may be those of a code; none: its source is unknown."""
    source, is_lambda = _source(code.co_filename), code.co_name == "<lambda>"
    return [
        each
        for each in source.functions_at(code.co_firstlineno, is_lambda=is_lambda)
        if getattr(each, "name", "<lambda>") == code.co_name
        and _arguments(each.args) == _arguments_of(code)
        and _names_in(each) >= _names_of(code)
    ]


def statements(node: ast.AST, line: int = 0) -> Iterator[Any]:
    """Yield the statements inside a statement, a program or a function.

    Args:
        node: A node that has a body.
        line: One that they must contain; 0: all are yielded.
    """
    for part in _PARTS:
        for each in getattr(node, part, ()):
            first = getattr(each, "lineno", line)
            if not line or first <= line <= getattr(each, "end_lineno", line):
                yield each
                yield from statements(each, line)


def _first_line(node: Any) -> int:
    decorators = getattr(node, "decorator_list", [])
    lines: list[int] = [node.lineno, *(each.lineno for each in decorators)]
    return min(lines)


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
