"""``import tdbg`` is cheap: what it brings along is a closed list.

A list, not a stopwatch: a clock in a test fails on a busy machine.
"""

from __future__ import annotations

import json
import subprocess
import sys

# What `import tdbg` may load from outside the standard library.
ALLOWED = {"numpy", "ml_dtypes", "tdbg"}

LOADED = """
import json, sys
before = set(sys.modules)
import {module}
roots = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(json.dumps(sorted(roots - set(sys.stdlib_module_names))))
"""


def roots_loaded_by(module: str) -> set[str]:
    """Import *module* in a new process and return the packages it loaded."""
    result = subprocess.run(
        [sys.executable, "-c", LOADED.format(module=module)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    # Helpers of compiled modules and of editable installations have names that
    # say so; they are no packages.
    return {
        name
        for name in json.loads(result.stdout)
        if not name.startswith(("_", "cython"))
    }


def test_import_loads_no_framework_and_no_tool_of_the_command_line() -> None:
    loaded = roots_loaded_by("tdbg")
    assert "tdbg" in loaded
    assert loaded - ALLOWED == set()


def test_the_rules_need_no_framework() -> None:
    assert roots_loaded_by("tdbg.rules") - ALLOWED == set()


def test_the_command_line_needs_no_framework() -> None:
    loaded = roots_loaded_by("tdbg.cli")
    assert loaded & {"torch", "tensorflow", "jax", "sklearn", "scipy"} == set()


def test_reading_imports_no_framework() -> None:
    program = (
        "import sys, tdbg.trial\n"
        "found = {'torch', 'tensorflow', 'xgboost', 'sklearn'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_hook_of_keras_chooses_no_backend() -> None:
    """A program does, by its variable, before it imports Keras."""
    loaded = roots_loaded_by("tdbg.keras")
    assert loaded & {"keras", "tensorflow", "jax", "torch"} == set()
