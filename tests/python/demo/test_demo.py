"""The demonstration does what it says, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tdbg.rules.table import LASTING

pytestmark = pytest.mark.torch


def test_demo_passes_the_healthy_training_and_stops_the_sick_one(
    tmp_path: Path,
) -> None:
    out = tmp_path / "demo"
    # 150 steps are enough to learn the digits.
    finished = subprocess.run(
        [sys.executable, "-m", "tdbg", "demo", "--json", "--steps=150", f"--out={out}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    document = json.loads(finished.stdout)
    healthy, sick, cost = document["healthy"], document["sick"], document["cost"]
    assert healthy["findings"] == []
    assert healthy["stopped"] is None
    assert healthy["steps"] == 150
    assert healthy["accuracy"] > 0.95
    vanishing = [f for f in sick["findings"] if f["rule"] == "VanishingGradient"]
    assert vanishing
    # As soon as it has lasted.
    assert min(f["step"] for f in vanishing) < LASTING
    assert all(f["value"] < f["threshold"] and f["advice"] for f in vanishing)
    assert "VanishingGradient" in sick["stopped"]
    assert sick["saved"] > 0.5
    assert cost["ratio"] > 0
