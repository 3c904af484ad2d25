"""What may import what: the promises of docs/architecture.md, in fresh processes too.

import-linter holds the layers (``make lint``); here is what it cannot see.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

FRAMEWORKS = {"torch", "tensorflow", "keras", "jax", "xgboost", "lightgbm", "mxnet"}

LOADED = """
import importlib, json, sys
importlib.import_module({module!r})
print(json.dumps(sorted(sys.modules)))
"""

# Packages whose `__init__` is their face: the rest of tdbg imports nothing below it.
FACES = (
    "tdbg.trial",
    "tdbg.rules",
    "tdbg.actions",
    "tdbg.bridge",
    "tdbg.compare",
    "tdbg.export",
    "tdbg.query",
    "tdbg.report",
)


def loaded_by(module: str) -> set[str]:
    """The modules that a process has which imported nothing but *module*."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(module=module)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def inside(names: set[str], *packages: str) -> set[str]:
    """Those of *names* that are one of these packages, or within one."""
    return {n for n in names if any(f"{n}.".startswith(f"{p}.") for p in packages)}


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and module of every import of a file, lazy ones too."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, each.name) for each in node.names)


@pytest.mark.parametrize(
    "module",
    [
        "tdbg.rules",
        "tdbg.actions",
        "tdbg.trial",
        "tdbg.export",
        "tdbg.report",
        "tdbg.cli",
        "tdbg.rules.engine.engine",
        "tdbg.rules.engine.worker",
        "tdbg.run.requests",
    ],
)
def test_who_reads_or_judges_loads_no_capture_and_no_framework(module: str) -> None:
    loaded = loaded_by(module)
    assert inside(loaded, "tdbg.capture", "tdbg.hooks", *FRAMEWORKS) == set()


@pytest.mark.torch
@pytest.mark.parametrize("module", ["tdbg.pytorch", "tdbg.hooks.pytorch.hook"])
def test_a_hook_loads_no_trial_and_no_rule_engine(module: str) -> None:
    loaded = loaded_by(module)
    assert "tdbg.capture.session" in loaded
    assert inside(loaded, "tdbg.trial", "tdbg.rules", "tdbg.export") == set()


@pytest.mark.parametrize("face", FACES)
def test_a_package_is_used_through_its_face(repository: Path, face: str) -> None:
    root = repository / "python"
    own = root.joinpath(*face.split("."))
    found = [
        f"{path.relative_to(root)}:{line}: {module}"
        for path in sorted((root / "tdbg").rglob("*.py"))
        if own not in path.parents
        for line, module in imports_of(path)
        if module.startswith(f"{face}.")
    ]
    assert found == []


def test_no_module_of_tdbg_has_an_underscore(repository: Path) -> None:
    """What is private is said by the faces, in one way."""
    names = [path.name for path in (repository / "python" / "tdbg").rglob("*.py")]
    assert [n for n in names if n.startswith("_") and not n.startswith("__")] == []


def test_no_string_names_a_module_of_an_upper_layer(repository: Path) -> None:
    """An import that is hidden in a string points down like any other."""
    config = tomllib.loads((repository / "pyproject.toml").read_text())
    contract = config["tool"]["importlinter"]["contracts"][0]
    assert contract["name"] == "layers"
    level = {
        name.strip(" ()"): i
        for i, line in enumerate(reversed(contract["layers"]))
        for name in line.split("|")
    }
    root = repository / "python" / "tdbg"
    found = []
    for path in sorted(root.rglob("*.py")):
        own = path.relative_to(root).parts[0].removesuffix(".py")
        if own == "__init__":
            continue  # The package loads its public names from every layer.
        tree = ast.parse(path.read_text("utf-8"))
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or id(node) in docs:
                continue
            found += [
                f"{path.relative_to(root)}:{node.lineno}: {name}"
                for name in re.findall(r"\btdbg\.([a-z_]+)\.\w", str(node.value))
                if level.get(name, -1) > level[own]
            ]
    assert found == []


def test_every_package_has_a_folder_of_tests(repository: Path) -> None:
    root, tests = repository / "python" / "tdbg", repository / "tests" / "python"
    packages = {
        path.parent.relative_to(root)
        for path in root.rglob("__init__.py")
        if path.parent != root
        and "compat" not in path.parts
        and "hooks" not in path.parts
    }
    assert [str(each) for each in sorted(packages) if not (tests / each).is_dir()] == []
    assert (tests / "pytorch").is_dir()
    assert (tests / "compat" / "smdebug").is_dir()
