"""The first tier of tests needs little, and no tier leaves out a test in silence."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiers import SECOND, need_of

#: What the extra ``test`` installs, by the names of its modules; and what is ours.
INSTALLED = {
    *("click", "google", "hypothesis", "ml_dtypes", "numpy", "perfetto", "pytest"),
    *(
        "pytest_timeout",
        "re2",
        "rich",
        "sklearn",
        "tensorboard",
        "starlette",
        "torch",
        "uvicorn",
        "xdist",
        "yaml",
        "zstandard",
    ),
    *("benchmarks", "examples", "tdbg"),
}


@pytest.fixture(scope="module")
def tests(repository: Path) -> Path:
    return repository / "tests" / "python"


#: An import in a program that a test writes down in a string and starts.
WRITTEN_IMPORT = re.compile(
    r"^\s*(?:from (\w+)[\w.]* import|import ([\w., ]+)$)", re.MULTILINE
)


def imported_by(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports anywhere, by their first names."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Constant) and "\n" in str(node.value):
            for one, several in WRITTEN_IMPORT.findall(str(node.value)):
                names = one or several
                yield from (each.split()[0].split(".")[0] for each in names.split(","))


def test_the_first_tier_imports_only_what_it_installs(tests: Path) -> None:
    helpers = {path.stem: path for path in (tests / "helpers").rglob("*.py")}
    known = INSTALLED | sys.stdlib_module_names | helpers.keys()
    wrong = {}
    for path in tests.rglob("test_*.py"):
        marked = {*re.findall(r'mark\.needs\("(\w+)"\)', path.read_text("utf-8"))}
        beyond = {*imported_by(path)} - known - marked - {path.stem}
        if beyond and need_of(path) is None:
            wrong[path.relative_to(tests).as_posix()] = sorted(beyond)
    assert wrong == {}


def test_what_the_second_tier_names_is_there(tests: Path) -> None:
    assert [name for name in SECOND if not (tests / name).exists()] == []
    assert need_of(tests / "keras" / "test_life.py") == "Keras and TensorFlow"
    assert need_of(tests / "capture" / "test_steps.py") is None


def test_no_test_is_skipped_for_lack_of_a_package(tests: Path) -> None:
    skipping = "import" + "orskip"
    found = [
        path for path in tests.rglob("*.py") if skipping in path.read_text("utf-8")
    ]
    assert found == []
