"""A file is as long as its concept: not longer than can be read, not a fragment."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

LIMIT = 600
SUFFIXES = {".py", ".pyi", ".cc", ".h", ".cu", ".css", ".ts", ".tsx"}
# Of the dashboard: what npm fetched, and what was built.
GENERATED = {"node_modules", "static"}
FOLDERS = ("cpp", "python", "tests", "benchmarks", "examples")

# A module below this many lines is one that two others import, or stands here.
FLOOR = 60
SMALL = {
    "tdbg/__main__.py": "python -m tdbg",
    "tdbg/modes.py": "the modes of a training, public",
    "tdbg/catboost.py": "a public face",
    "tdbg/lightgbm.py": "a public face",
    "tdbg/mxnet.py": "a public face",
    "tdbg/keras.py": "a public face",
    "tdbg/pytorch.py": "a public face",
    "tdbg/xgboost.py": "a public face",
    "tdbg/hooks/trees/adapter.py": "what all frameworks of boosted trees share",
    "tdbg/tensorflow.py": "a public face",
    "tdbg/jax.py": "a public face",
    "tdbg/hooks/jax/interception.py": "what stands between traces and libraries",
    "tdbg/actions/stop.py": "an action, found by its name",
    "tdbg/actions/notify.py": "an action, found by its name",
    "tdbg/cli/*.py": "a verb of the command line, found by its name",
    "tdbg/profiler/*.py": "a part of the profiler, started by its place in a list",
    "tdbg/report/sections/*.py": "a section of a report, found by its name",
    "tdbg/demo/*.py": "the demo is shown to readers file by file",
    "tdbg/compat/smdebug/*/hook.py": "a module of smdebug, found by its path",
    "tdbg/compat/smdebug/__main__.py": "python -m tdbg.compat.smdebug",
    "tdbg/rules/builtin/*/*.py": "a rule, found by its name",
    "tdbg/launch/site/sitecustomize.py": "found by Python by this name",
}


def line_counts(repository: Path) -> dict[str, int]:
    """Map every source file to its number of lines."""
    return {
        path.relative_to(repository).as_posix(): len(path.read_text().splitlines())
        for folder in FOLDERS
        for path in (repository / folder).rglob("*")
        if path.suffix in SUFFIXES and not GENERATED.intersection(path.parts)
    }


def importers(package: Path) -> Counter[str]:
    """Count, for each module, the modules that import it or a name of it."""
    found: Counter[str] = Counter()
    for path in package.rglob("*.py"):
        named = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                named.add(node.module)
                named.update(f"{node.module}.{each.name}" for each in node.names)
            elif isinstance(node, ast.Import):
                named.update(each.name for each in node.names)
        found.update(named)
    return found


def test_no_file_is_longer_than_the_limit(repository: Path) -> None:
    counts = line_counts(repository)
    assert len(counts) > 50, "the sources were not found"
    too_long = {name: count for name, count in counts.items() if count > LIMIT}
    assert too_long == {}


def test_a_small_module_has_two_importers_or_a_reason(repository: Path) -> None:
    root = repository / "python"
    imported = importers(root / "tdbg")
    small = {
        path.relative_to(root).as_posix()
        for path in (root / "tdbg").rglob("*.py")
        if path.name != "__init__.py"
        and len(path.read_text().splitlines()) < FLOOR
        and imported[".".join(path.relative_to(root).with_suffix("").parts)] < 2
        and not any(path.match(pattern) for pattern in SMALL)
    }
    assert small == set()
