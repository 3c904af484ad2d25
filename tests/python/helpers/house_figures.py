"""Figures of tdbg's structure and prose, computed from the sources alone.

tests/python/house holds them: what was once put in order stays so.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path

Graph = Mapping[str, set[str]]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
BRANCHES = (
    *(ast.If, ast.For, ast.While, ast.With, ast.ExceptHandler, ast.match_case),
    *(ast.BoolOp, ast.IfExp, ast.comprehension, ast.Assert),
)


@dataclass(frozen=True)
class Import:
    """A module of the package that another one imports, and when it does."""

    module: str
    lazy: bool  # Inside of a function.
    typing: bool  # For type checkers only.


@dataclass(frozen=True)
class Function:
    """A function, with its size but for its docstring and its number of ways."""

    name: str
    lines: int
    complexity: int


class Package:
    """The modules of a package by their dotted names, each parsed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trees: dict[str, ast.Module] = {}
        self.faces: set[str] = set()  # Modules that are an `__init__`.
        self.compiled = {  # Modules of which there is a stub and no source.
            ".".join(path.relative_to(folder.parent).with_suffix("").parts)
            for path in folder.rglob("*.pyi")
            if not path.with_suffix(".py").exists()
        }
        for path in sorted(folder.rglob("*.py")):
            if "node_modules" in path.parts:
                continue
            parts = path.relative_to(folder.parent).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            self.trees[name] = ast.parse(path.read_text("utf-8"))
            if path.name == "__init__.py":
                self.faces.add(name)

    @cached_property
    def imports(self) -> dict[str, list[Import]]:
        """Each module's imports of others in the package."""
        return {
            name: [
                each
                for each in self._imports_in(tree.body)
                if each.module in self.trees and each.module != name
            ]
            for name, tree in self.trees.items()
        }

    def _imports_in(
        self, body: list[ast.stmt], *, lazy: bool = False, typing: bool = False
    ) -> Iterator[Import]:
        for node in body:
            if isinstance(node, ast.Import):
                yield from (Import(each.name, lazy, typing) for each in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for each in node.names:
                    full = f"{node.module}.{each.name}"
                    is_module = full in self.trees or full in self.compiled
                    found = full if is_module else node.module
                    yield Import(found, lazy, typing)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                yield from self._imports_in(node.body, lazy=lazy, typing=True)
                yield from self._imports_in(node.orelse, lazy=lazy, typing=typing)
            else:
                later = lazy or isinstance(node, FunctionNode)
                for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                    inner = getattr(node, field, [])
                    yield from self._imports_in(inner, lazy=later, typing=typing)

    def graph(self, *, lazy: bool = False, typing: bool = False) -> Graph:
        """Return the modules that each imports when loaded; lazy or typed ones too."""
        return {
            name: {
                each.module
                for each in found
                if (lazy or not each.lazy) and (typing or not each.typing)
            }
            for name, found in self.imports.items()
        }

    def floors(self, package: str) -> int:
        """Return the longest chain of imports inside ``tdbg.<package>``."""
        return longest_chain(self.graph(), f"{self.folder.name}.{package}.")

    def packages(self) -> list[str]:
        """Return all packages, the deepest too, without the name of the first."""
        own = self.folder.name
        return sorted(face.removeprefix(f"{own}.") for face in self.faces - {own})

    def with_one_importer(self) -> list[str]:
        """Return the modules, but for faces, that one other imports when loaded.

        A module that a face publishes is used by whoever imports the face: it does not
        count either.
        """
        graph = self.graph()
        importers = Counter(each for found in graph.values() for each in found)
        public = {
            each for module in graph for each in graph[module] & self._published(module)
        }
        faces = {each for each in self.trees if self._only_publishes(each)}
        inner = self.trees.keys() - self.faces - faces - public
        return sorted(each for each in inner if importers[each] == 1)

    def _only_publishes(self, module: str) -> bool:
        body = self.trees[module].body
        defines = any(isinstance(each, Documented) for each in body)
        return not defines and bool(self._published(module))

    def _published(self, module: str) -> set[str]:
        """Return the modules whose names stand in the ``__all__`` of *module*."""
        tree = self.trees[module]
        listed = {
            name.value
            for node in tree.body
            if isinstance(node, ast.Assign) and last_name(node.targets[0]) == "__all__"
            for name in ast.walk(node.value)
            if isinstance(name, ast.Constant)
        }
        return {
            node.module
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            if listed & {each.asname or each.name for each in node.names}
        }

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and methods, nested ones too, as ``module:Class.method``."""
        return [
            function
            for module, tree in self.trees.items()
            for function in functions_in(tree, f"{module}:")
        ]

    def public_classes(self, *, without: str) -> Counter[str]:
        """Count the public classes of each name, outside of the package *without*."""
        return Counter(
            node.name
            for module, tree in self.trees.items()
            if not f"{module}.".startswith(f"{without}.")
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        )

    def one_line_docstrings(self) -> Iterator[tuple[str, str]]:
        """Yield the module and the text of each docstring of a single line."""
        for module, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, Documented):
                    text = ast.get_docstring(node)
                    if text and "\n" not in text:
                        yield module, text

    def parts_taken_of(self, owner: str, parts: set[str], *packages: str) -> list[str]:
        """Return where *packages* name one of the *parts* of a variable or attribute.

        Args:
            owner: What the variable's name ends with: ``session`` is also ``_session``.
            parts: Attributes of the object.
            packages: Packages of tdbg to look at.
        """
        inside = tuple(f"{self.folder.name}.{each}." for each in packages)
        return [
            f"{module}:{node.lineno}: {ast.unparse(node)}"
            for module, tree in self.trees.items()
            if f"{module}.".startswith(inside)
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr in parts
            and last_name(node.value).endswith(owner)
        ]


def last_name(node: ast.expr) -> str:
    """Return the name that an expression ends with: ``b`` of ``a.b``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def functions_in(node: ast.AST, prefix: str) -> Iterator[Function]:
    """Yield the functions below *node*, whose names begin with *prefix*."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, FunctionNode):
            name = f"{prefix}{each.name}"
            yield Function(name, lines_of(each), complexity_of(each))
            yield from functions_in(each, f"{name}.")
        elif isinstance(each, ast.ClassDef):
            yield from functions_in(each, f"{prefix}{each.name}.")
        elif isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from functions_in(each, prefix)


def lines_of(function: FunctionNode) -> int:
    """Return the lines from ``def`` to the last one, without the docstring's."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is None:
        return lines
    first = function.body[0]
    return lines - (first.end_lineno or 0) + first.lineno - 1


def complexity_of(function: FunctionNode) -> int:
    """Return one more than there are branches, those of nested functions too."""
    return 1 + sum(isinstance(each, BRANCHES) for each in ast.walk(function))


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or not."""
    reached = {name: reachable(graph, name) for name in graph}
    groups = {
        tuple(sorted(w for w in found if name in reached[w]))
        for name, found in reached.items()
        if name in found
    }
    return sorted(map(list, groups))


def reachable(graph: Graph, start: str) -> set[str]:
    """Return all that *start* imports, directly or not."""
    found: set[str] = set()
    todo = [start]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo.extend(new)
    return found


def longest_chain(graph: Graph, prefix: str = "") -> int:
    """Return the number of modules of the longest chain of imports.

    Args:
        graph: Imports without a circle; ``graphlib.CycleError`` names one.
        prefix: Only modules whose names begin so are links of the chain.
    """
    depth = {}
    for name in TopologicalSorter(graph).static_order():
        below = [depth[each] for each in graph[name] if each in depth]
        if name.startswith(prefix):
            depth[name] = 1 + max(below, default=0)
    return max(depth.values(), default=0)


@dataclass(frozen=True)
class Prose:
    """How often some words stand among 1,000 of a page, without code and tables."""

    words: int
    of: float
    you: float


def prose_of(page: str) -> Prose:
    """Count the words of a page of Markdown."""
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    text = "\n".join(line for line in text.split("\n") if not line.startswith("|"))
    words = [word.lower() for word in re.findall(r"\w+", text)]

    def per_thousand(counted: Iterable[str]) -> float:
        return 1000 * sum(map(words.count, counted)) / max(1, len(words))

    return Prose(
        len(words), per_thousand(["of"]), per_thousand(["you", "your", "yours"])
    )


def layers_drawn(page: str, language: str) -> list[set[str]]:
    """Return the layers of docs/architecture.md's drawing, the lowest one first."""
    drawing = re.search(rf"^    {language} (.*(?:\n     .*)*)", page, re.MULTILINE)
    if drawing is None:
        message = f"no layers of {language} are drawn"
        raise ValueError(message)
    return [
        {name.strip() for name in layer.split(",")} for layer in drawing[1].split("<-")
    ]
