"""Tests that hang, crash or vanish are named, and all others are run nevertheless."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import hang_guard
from hang_watcher import Stopwatch, delays

# How long tests that hang have here, and what does not hear of it.
TIMEOUT, GRACE = 3, 4
KILLED = TIMEOUT + GRACE
PLUGINS = ["-p", "no:cacheprovider", "-p", "xdist.plugin", "-p", "pytest_timeout"]

SLEEPS = """
import time
def test_hangs(): time.sleep(600)
"""
# A call of C without end that never lets another thread run.
HOLDS = """
import itertools
def test_hangs(): sum(itertools.repeat(0))
"""
FIXTURE_HANGS = """
import itertools, pytest
@pytest.fixture
def endless():
    yield
    sum(itertools.repeat(0))
def test_hangs(endless): assert False
"""
IMPORT_HANGS = """
import itertools
sum(itertools.repeat(0))
def test_hangs(): pass
"""
VANISHES = """
import os
def test_hangs(): os._exit(0)
"""
CRASHES = """
import ctypes
def test_hangs(): ctypes.string_at(0)
"""
# Its child holds what was open.
LEAVES_A_CHILD = """
import os, time
def test_hangs():
    if os.fork() == 0:
        time.sleep(60)
    os._exit(1)
"""
HOLDS_WITH_A_CHILD = """
import itertools, os, time
def test_hangs():
    if os.fork() == 0:
        open("child", "w").write(str(os.getpid()))
        time.sleep(600)
    while not (os.path.exists("child") and open("child").read()): pass
    sum(itertools.repeat(0))
"""
A_THREAD_IS_LEFT = """
import threading, time
def test_hangs(): threading.Thread(target=time.sleep, args=(600,)).start()
"""
BEFORE = """
def test_before(): pass
"""
AFTER = """
def test_after(): pass
"""


@dataclass
class Ended:
    """A run of pytest that has ended."""

    code: int
    said: str

    def counted(self, outcome: str) -> int:
        found = re.search(rf"(\d+) {outcome}", self.said)
        return int(found[1]) if found else 0


@pytest.fixture
def run(tmp_path: Path, repository: Path) -> Callable[..., Ended]:
    """Runs tests as ``make pytest`` does, but for the time that they have."""
    folder = Path(hang_guard.__file__).parent
    options = tomllib.loads((repository / "pyproject.toml").read_text())
    method = options["tool"]["pytest"]["ini_options"]["timeout_method"]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    # Of all plugins there are only those that matter: each is loaded many times.
    environment = {
        **inherited,
        "PYTHONPATH": str(folder),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\ntimeout={TIMEOUT}\ntimeout_method={method}\nhang_grace={GRACE}\n"
    )
    (tmp_path / "conftest.py").write_text(
        'pytest_plugins = ["hang_guard", "lost_tests"]\n'
    )

    def run(*options: str, **files: str) -> Ended:
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        # Into a file: who is left behind may hold it, and nobody waits for them.
        output = tmp_path / "output"
        with output.open("w") as file:
            code = subprocess.run(
                [sys.executable, "-m", "pytest", *PLUGINS, *options],
                cwd=tmp_path,
                env=environment,
                stdout=file,
                stderr=file,
                check=False,
                timeout=240,
            ).returncode
        return Ended(code, output.read_text())

    return run


def workers(n: int) -> list[str]:
    return ["-n", str(n), "--dist", "loadfile", "--no-loadscope-reorder"]


@pytest.mark.nightly
def test_what_a_worker_dies_of_is_named_and_the_rest_is_run(
    run: Callable[..., Ended],
) -> None:
    tests = [SLEEPS, HOLDS, FIXTURE_HANGS, VANISHES, CRASHES, LEAVES_A_CHILD]
    files = {f"of_{i}": BEFORE + test + AFTER for i, test in enumerate(tests)}
    done = run(*workers(2), **files)
    assert done.code == 1
    for file in files:
        assert f"FAILED test_{file}.py::test_hangs" in done.said
    assert done.counted("passed") == 2 * len(tests)
    # A fixture that hangs after its test has failed is a second failure of it.
    assert done.counted("failed") == len(tests) + 1


def test_a_single_worker_that_is_lost_costs_one_test(run: Callable[..., Ended]) -> None:
    done = run(*workers(1), a=BEFORE, b=BEFORE + HOLDS + AFTER, c=AFTER, d=CRASHES)
    assert done.code == 1
    assert (done.counted("failed"), done.counted("passed")) == (2, 4)


@pytest.mark.nightly
@pytest.mark.parametrize("test", [HOLDS, CRASHES], ids=["holds", "crashes"])
def test_several_workers_are_lost(run: Callable[..., Ended], test: str) -> None:
    done = run(*workers(2), a=test + AFTER, b=test + AFTER, c=test, d=AFTER)
    assert done.code == 1
    assert (done.counted("failed"), done.counted("passed")) == (3, 3)


@pytest.mark.nightly
@pytest.mark.parametrize("test", [HOLDS, FIXTURE_HANGS], ids=["holds", "fixture"])
def test_without_workers_it_is_named_with_its_stack(
    run: Callable[..., Ended], test: str
) -> None:
    done = run("-q", a=BEFORE + test)
    assert done.code == -6
    assert f"test_a.py::test_hangs has not ended within {KILLED} s" in done.said
    assert re.search(r'test_a.py", line \d+ in (test_hangs|endless)', done.said)


@pytest.mark.nightly
def test_without_workers_what_hears_the_signal_is_a_failure(
    run: Callable[..., Ended],
) -> None:
    done = run("-q", a=BEFORE + SLEEPS + AFTER)
    assert done.code == 1
    assert "FAILED test_a.py::test_hangs - Failed: Timeout" in done.said
    assert done.counted("passed") == 2


@pytest.mark.nightly
def test_a_module_that_hangs_is_named_by_its_stack(run: Callable[..., Ended]) -> None:
    done = run("-q", a=IMPORT_HANGS)
    assert done.code == -6
    assert f"the collection of tests has not ended within {KILLED} s" in done.said
    assert 'test_a.py", line 3 in <module>' in done.said


@pytest.mark.nightly
def test_a_thread_that_is_left_does_not_keep_the_process(
    run: Callable[..., Ended],
) -> None:
    done = run("-q", a=A_THREAD_IS_LEFT)
    assert done.code == -6
    assert f"a thread goes on has not ended within {GRACE} s" in done.said


@pytest.mark.nightly
def test_children_of_what_hangs_are_killed(
    run: Callable[..., Ended], tmp_path: Path
) -> None:
    assert run("-q", a=HOLDS_WITH_A_CHILD).code == -6
    child = int((tmp_path / "child").read_text())
    # The signal was sent; a busy machine takes its time to end the process.
    deadline = time.monotonic() + 60
    while not has_ended(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_ended(process: int) -> bool:
    """Whether the process is gone, or waits for whoever it was left to."""
    try:
        return ") Z " in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_suite_is_run_with_these_plugins(
    pytestconfig: pytest.Config, repository: Path
) -> None:
    assert pytestconfig.pluginmanager.has_plugin("hang_guard")
    assert pytestconfig.pluginmanager.has_plugin("lost_tests")
    assert "--dist loadfile" in (repository / "Makefile").read_text()


def test_time_in_which_a_test_waits_for_a_processor_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, waited = 0.0, {1: 0, 2: 0}
    monkeypatch.setattr("hang_watcher.delays", lambda _: dict(waited))
    monkeypatch.setattr("time.monotonic", lambda: clock)
    watch = Stopwatch(1, "a test", 20.0, 30.0)

    def passed(seconds: float, *seconds_waited: float) -> tuple[float, bool, bool]:
        nonlocal clock
        clock += seconds
        for task, each in enumerate(seconds_waited, 1):
            waited[task] += int(each * 1e9)
        watch.look()
        return watch._seconds, watch.rings(), watch.is_over()

    assert passed(5, 5, 5) == (5, False, False)  # Nobody knows how it began.
    assert passed(10, 9, 3) == (6, False, False)
    assert passed(10, 10, 10) == (7, False, False)  # A part counts anyway.
    assert passed(10) == (17, False, False)
    assert watch.next_look() == 3
    assert passed(4) == (21, True, False)
    assert passed(5) == (26, False, False)  # It rings once.
    waited[3] = 10**12  # A thread that was not there before.
    assert passed(5) == (31, False, True)


def test_who_waits_for_a_processor_is_known() -> None:
    assert delays(os.getpid())[os.getpid()] >= 0
