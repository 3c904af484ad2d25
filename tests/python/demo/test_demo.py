"""The demonstration does what it says, in processes of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tdbg.cli.demo import command
from tdbg.rules.table import LASTING


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tdbg", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "PYTHONWARNINGS": "error", **environment},
    )


def trained(framework: str, n_steps: int, folder: Path, **environment: str) -> Any:
    """What the demonstration says in JSON."""
    finished = demo(
        "--json",
        f"--framework={framework}",
        f"--steps={n_steps}",
        f"--out={folder / 'demo'}",
        **environment,
    )
    assert finished.returncode == 0, finished.stderr
    assert "Traceback" not in finished.stderr
    # The last line opens the page on what was recorded.
    last = finished.stderr.rstrip().splitlines()[-1]
    assert last.split()[:3] == ["tdbg", "ui", str(folder / "demo")]
    return json.loads(finished.stdout)


def is_learned(healthy: Any, n_steps: int) -> None:
    assert healthy["findings"] == []
    assert healthy["stopped"] is None
    assert healthy["steps"] == n_steps
    assert healthy["accuracy"] > 0.95


def is_stopped(sick: Any, rule: str, before: int) -> None:
    found = [f for f in sick["findings"] if f["rule"] == rule]
    assert found
    assert min(f["first_step"] for f in found) < before
    assert all(f["advice"] for f in found)
    assert rule in sick["stopped"]
    assert sick["saved"] > 0


@pytest.mark.torch
def test_demo_passes_the_healthy_training_and_stops_the_sick_one(
    tmp_path: Path,
) -> None:
    # 150 steps are enough to learn the digits.
    document = trained("pytorch", 150, tmp_path)
    is_learned(document["healthy"], 150)
    # As soon as it has lasted.
    is_stopped(document["sick"], "VanishingGradient", LASTING)
    assert document["sick"]["saved"] > 0.5
    assert document["cost"]["ratio"] > 0


def test_the_same_is_found_of_jax_in_the_same_words(tmp_path: Path) -> None:
    document = trained("jax", 1500, tmp_path)
    is_learned(document["healthy"], 1500)
    is_stopped(document["sick"], "VanishingGradient", LASTING)


def test_the_same_is_found_of_keras(tmp_path: Path) -> None:
    # 22 batches an epoch.
    document = trained("keras", 1100, tmp_path, KERAS_BACKEND="jax")
    is_learned(document["healthy"], 1100)
    is_stopped(document["sick"], "VanishingGradient", LASTING)


def test_a_feature_that_gives_the_answer_away_is_found_of_xgboost(
    tmp_path: Path,
) -> None:
    document = trained("xgboost", 500, tmp_path)
    assert document["healthy"]["accuracy"] > 0.95
    sick = document["sick"]
    is_stopped(sick, "TreeSettings", 10)
    assert any("f64" in finding["message"] for finding in sick["findings"])
    assert sick["accuracy"] < 0.7


@pytest.mark.parametrize(
    ("framework", "hidden", "expected"),
    [
        ("xgboost", {"xgboost"}, "xgboost: pip install 'tdbg[demo,xgboost]'"),
        ("jax", {"sklearn"}, "sklearn: pip install 'tdbg[demo,jax]'"),
        ("pytorch", {"torch"}, "torch: pip install 'tdbg[demo]'"),
        ("keras", {"tensorflow", "jax", "torch"}, "tensorflow, jax or torch: pip"),
    ],
)
def test_what_is_not_installed_is_named_with_the_extra_that_has_it(
    framework: str,
    hidden: set[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, package=None: None if name in hidden else find(name, package),
    )
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    refused = CliRunner().invoke(command, ["--framework", framework])
    assert refused.exit_code == 2
    assert f"the demo needs {expected}" in refused.stderr


def test_a_framework_that_is_not_known_is_refused() -> None:
    refused = CliRunner().invoke(command, ["--framework", "theano"])
    assert refused.exit_code == 2
    assert "'theano' is not one of 'jax', 'keras', 'pytorch', 'xgboost'" in (
        refused.stderr
    )
