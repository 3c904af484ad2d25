"""Calls that tdbg never makes: ones that run what a file says, and ones that
end or talk over the process that it is a guest of.

A run directory is untrusted input (docs/format.md): nothing in it is executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

FORBIDDEN_MODULES = {"cPickle", "cloudpickle", "dill", "marshal", "pickle", "shelve"}
FORBIDDEN_CALLS = {
    "compile",
    "eval",
    "exec",
    "__import__",
    "os.popen",
    "os.system",
    "torch.load",
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load",
    "yaml.unsafe_load_all",
    "yaml.full_load",
}
# Keyword -> complaint, when it is given anything but False.
FORBIDDEN_KEYWORDS = {"allow_pickle", "shell"}

# What TDBG_DCHECK calls in Debug builds (cpp/base/check.h): the one place that may.
CPP_CHECK = "cpp/base/check.cc"
CPP_FORBIDDEN = re.compile(
    r"\b(?:(?:std::)?(?:printf|fprintf|puts|putchar|abort|terminate|exit|_exit|"
    r"quick_exit|system|popen|raise|assert)\s*\(|std::(?:cout|cerr|clog)\b)"
    r"|#\s*include\s*<iostream>"
)
CPP_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def dotted(node: ast.expr) -> str:
    """Spell a name or an attribute of names; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
    else:
        return
    for name in names:
        if name.partition(".")[0] in FORBIDDEN_MODULES or name in FORBIDDEN_CALLS:
            yield f"import of {name}"


def _calls(node: ast.AST) -> Iterator[str]:
    if not isinstance(node, ast.Call):
        return
    name = dotted(node.func)
    if name in FORBIDDEN_CALLS:
        yield f"call of {name}"
    for keyword in node.keywords:
        value = keyword.value
        harmless = isinstance(value, ast.Constant) and value.value is False
        if keyword.arg in FORBIDDEN_KEYWORDS and not harmless:
            yield f"{keyword.arg}= in a call of {name or 'something'}"


def python_complaints(source: str) -> list[str]:
    """Return what *source* does that it must not, with line numbers."""
    found = []
    for node in ast.walk(ast.parse(source)):
        complaints = [*_imports(node), *_calls(node)]
        if isinstance(node, ast.Assert):
            # `python -O` removes it, so it must not be what checks anything.
            complaints.append("assert")
        found += [f"{getattr(node, 'lineno', 0)}: {text}" for text in complaints]
    return found


def cpp_complaints(source: str) -> list[str]:
    """The same for C++."""
    code = CPP_COMMENT_OR_STRING.sub(
        lambda match: "\n" * match.group().count("\n"), source
    )
    return [
        f"{code.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for match in CPP_FORBIDDEN.finditer(code)
    ]


def test_python_makes_no_dangerous_call(repository: Path) -> None:
    files = sorted((repository / "python" / "tdbg").rglob("*.py"))
    assert len(files) > 20, "the sources were not found"
    found = {
        str(path.relative_to(repository)): complaints
        for path in files
        if (complaints := python_complaints(path.read_text()))
    }
    assert found == {}


def test_the_core_neither_prints_nor_ends_the_process(repository: Path) -> None:
    files = [
        path
        for path in sorted((repository / "cpp").rglob("*"))
        if path.suffix in {".h", ".cc", ".cu"}
    ]
    assert len(files) > 20, "the sources were not found"
    found = {
        path.relative_to(repository).as_posix(): complaints
        for path in files
        if (complaints := cpp_complaints(path.read_text()))
    }
    checks = found.pop(CPP_CHECK)
    assert [text.split(" ", 1)[1] for text in checks] == [
        "std::fprintf(",
        "std::abort(",
    ]
    assert found == {}


def test_failed_checks_are_compiled_in_debug_builds_only(repository: Path) -> None:
    """The code of CPP_CHECK stands between `#ifndef NDEBUG` and the end."""
    lines = (repository / CPP_CHECK).read_text().split("\n\n")
    assert lines[1] == "#ifndef NDEBUG"
    assert lines[-1] == "#endif\n"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "from yaml import load",
        "eval('1')",
        "exec('x = 1')",
        "import torch\ntorch.load('f')",
        "import numpy as np\nnp.load('f', allow_pickle=True)",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import subprocess\nsubprocess.run('ls', shell=flag)",
        "def f(x):\n    assert x",
    ],
)
def test_a_dangerous_line_of_python_is_found(source: str) -> None:
    assert len(python_complaints(source)) >= 1


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
        "import numpy as np\nnp.load('f', allow_pickle=False)",
        "model.eval()",
        "import yaml\nyaml.safe_load('a')",
        "import re\nre.compile('a')",
    ],
)
def test_a_harmless_line_of_python_is_accepted(source: str) -> None:
    assert python_complaints(source) == []


@pytest.mark.parametrize(
    "source",
    [
        'std::printf("x");',
        "std::cout << 1;",
        "if (bad) abort();",
        "std::exit(1);",
        "#include <iostream>",
        "assert(x);",
    ],
)
def test_a_forbidden_line_of_cpp_is_found(source: str) -> None:
    assert len(cpp_complaints(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "// never calls abort()",
        'const char* text = "exit(1)";',
        'std::snprintf(text, 9, "%d", 1);',
        "static_assert(sizeof(int) == 4);",
        "TDBG_DCHECK(n > 0);",
        "pthread_atfork(nullptr, nullptr, nullptr);",
    ],
)
def test_a_harmless_line_of_cpp_is_accepted(source: str) -> None:
    assert cpp_complaints(source) == []
