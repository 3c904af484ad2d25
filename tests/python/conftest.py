"""Fixtures that more than one test file needs."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# What ends a run, whatever tests do; what they may not leave behind; and which are run.
pytest_plugins = ["hang_guard", "left_behind", "lost_tests", "tiers"]

ROOT = Path(__file__).resolve().parents[2]

# Under nohup and in the background of a script these are ignored, by children too.
signal.signal(signal.SIGINT, signal.default_int_handler)
for ignored in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(ignored, signal.SIG_DFL)

# On a busy machine the default budget would leave out what a test looks for; tests of
# budgets say what they are to be.
os.environ.setdefault("TDBG_BUDGET", "off")

# Two cores and other tests beside it: a slow example is no finding.
settings.register_profile("tdbg", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tdbg"))


def pytest_collection_finish() -> None:
    """Spare whoever goes through all objects the million that are loaded by now.

    Hooks look for optimizers among all objects, and some tests ask for a collection
    again and again: each of these would take a quarter of a second.
    """
    if "torch" in sys.modules:
        # Half of the objects: PyTorch loads its compiler with the first optimizer.
        importlib.import_module("torch._dynamo")
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def cpp_program() -> Callable[[str], Path]:
    """Finds a program built from tests/cpp, by its name.

    In ``TDBG_BUILD_DIR``, else where ``make develop`` builds.  A program that is
    missing is a failure: a skipped crash test would go unnoticed.
    """
    build = Path(os.environ.get("TDBG_BUILD_DIR", ROOT / "build" / "editable"))

    def find(name: str) -> Path:
        program = build / "bin" / name
        if not program.exists():
            pytest.fail(f"{program} is missing: run `make develop`")
        return program

    return find


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A path for a run that does not exist yet."""
    return tmp_path / "run"


@pytest.fixture
def nothing_is_compiled() -> None:
    """Functions of torch are not followed in a process that has compiled anything."""
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()


@pytest.fixture(scope="session")
def io_fault(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment under which system calls can fail: tests/shim/io_fault.c."""
    library = tmp_path_factory.mktemp("shim") / "io_fault.so"
    source = ROOT / "tests" / "shim" / "io_fault.c"
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return {"LD_PRELOAD": str(library)}
