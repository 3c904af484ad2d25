"""A test that changes the process for the next ones is a failure that says what."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import left_behind

TESTS = """
import gc, logging, os, signal, subprocess, sys, threading, time
import numpy as np
import pytest
import torch
import tdbg.pytorch as td

@pytest.fixture(scope="module", autouse=True)
def of_the_module():
    os.environ["OF_THE_MODULE"] = "1"
    yield
    del os.environ["OF_THE_MODULE"]

def test_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("LEFT", "1")
    monkeypatch.chdir(tmp_path)
    thread = threading.Timer(0.1, int)
    thread.start()

def test_environment(): os.environ["LEFT"] = "1"
def test_directory(tmp_path): os.chdir(tmp_path)
def test_thread(): threading.Thread(target=go.wait, name="left", daemon=True).start()
def test_process(): test_process.child = subprocess.Popen(["sleep", "300"])
def test_signal(): signal.signal(signal.SIGUSR1, lambda *_: None)
def test_profile(): sys.setprofile(lambda *_: None)
def test_collection(): gc.disable()
def test_log(): logging.getLogger("tdbg").setLevel(logging.ERROR)
def test_numpy(): np.seterr(all="raise")
def test_dtype(): torch.set_default_dtype(torch.float64)
def test_anomaly(): torch.autograd.set_detect_anomaly(True)
def test_gradient(): torch.set_grad_enabled(False)
def test_global_hook():
    torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
def test_patch(): torch.optim.Optimizer.__init__ = lambda *_: None
def test_open_hook(tmp_path): test_open_hook.hook = td.Hook(tmp_path / "run")
def test_the_last(): test_process.child.kill(); go.set()

go = threading.Event()
"""
LEFT = {
    "environment": "a variable: ",
    "directory": "the working directory: ",
    "thread": "a thread: <Thread(left",
    "process": "a process: ",
    "signal": "handlers of signals: ",
    "profile": "the tracing function: ",
    "collection": "garbage collection: ",
    "log": "the log: ",
    "numpy": "numpy's errors: ",
    "dtype": "torch's default dtype: torch.float64, before it torch.float32",
    "anomaly": "torch's anomaly mode: True",
    "gradient": "torch's gradient mode: False",
    "global_hook": "torch's _global_forward_hooks: ",
    "patch": "torch's Optimizer.__init__: ",
    "open_hook": "a hook that is not closed",
}


@pytest.mark.torch
def test_what_a_test_leaves_is_said_and_no_more(tmp_path: Path) -> None:
    folder = Path(left_behind.__file__).parent
    (tmp_path / "test_leavers.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        'import sys\npytest_plugins = ["left_behind"]\n'
        "def pytest_configure():\n"
        '    sys.modules["left_behind"].PATIENCE_SECONDS = 1.0\n'
    )
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert f"{len(LEFT) + 2} passed, {len(LEFT)} errors" in done.stdout, done.stdout
    for name, said in LEFT.items():
        _, _, after = done.stdout.partition(f"ERROR at teardown of test_{name} _")
        assert f"\n  {said}" in after.partition("ERROR at")[0], name


def test_the_suite_is_run_with_it(request: pytest.FixtureRequest) -> None:
    assert "leaves_nothing" in request.fixturenames
