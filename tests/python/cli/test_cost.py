"""``tdbg cost``: what a run has cost, by part of its time, and what would cost less."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from run_builder import RunBuilder
from tdbg.cli import _tdbg
from tdbg.run.profile_tables import STEP, SYSTEM

SECOND = 10**9
PRICES = """\
name,price_per_hour,gpus,gpu,gpu_memory,cpus,memory,network_gbps,relative_speed
cpu.small,0.40,0,,,8,32,5,
cpu.large,1.60,0,,,32,128,10,
"""


def call(*arguments: object, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(_tdbg, [str(each) for each in arguments])
    assert result.exit_code == exit_code, result.output
    return result


def call_json(*arguments: object) -> Any:
    return json.loads(call(*arguments, "--json").stdout)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Make a run of 100 s that waits for data in 60 of them, and fills 6 cores."""
    path = tmp_path / "run"
    builder = RunBuilder(path)
    began = time.monotonic_ns()
    steps = np.zeros(100, STEP)
    steps["time"] = SECOND * np.arange(1, 101) + began
    steps["global_step"] = steps["mode_step"] = np.arange(100)
    steps["mode"] = 1
    steps["duration_ns"] = SECOND
    steps["data_wait_ns"] = 6 * SECOND // 10
    steps["forward_ns"] = 4 * SECOND // 10
    steps["samples"] = 32
    builder.samples("step", steps)
    system = np.zeros(50, SYSTEM)
    system["time"] = 2 * SECOND * np.arange(50) + began
    system["allowed_cores"], system["allowed_busy"] = 32, 6 / 32
    system["memory_total"], system["memory_available"] = 128 << 30, 124 << 30
    system["cgroup_memory"] = 2**64 - 1
    builder.samples("system", system)
    builder.close()
    return path


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.csv"
    path.write_text(PRICES)
    return path


def test_a_run_costs_its_price_by_part_of_its_time(run: Path) -> None:
    found = call_json("cost", run, "--price", "3.6")
    assert found["total"] == pytest.approx(0.1, rel=0.05)
    assert found["per_1000_steps"] == pytest.approx(1.0, rel=0.05)
    assert found["per_sample"] == pytest.approx(0.1 / 3200, rel=0.05)
    parts = {part["name"]: part["share"] for part in found["parts"]}
    assert parts["data wait"] == pytest.approx(0.6, rel=0.05)
    assert sum(parts.values()) == pytest.approx(1)
    assert found["offers"] == []
    text = call("cost", run, "--price", "3.6").output
    assert "the model was computed in 4" in text
    assert "data wait" in text


def test_a_machine_that_is_enough_is_offered(run: Path, prices: Path) -> None:
    told = ["--prices", str(prices), "--on", "cpu.large"]
    found = call_json("cost", run, *told)
    (offer,) = found["offers"]
    assert offer["instance"] == "cpu.small"
    assert offer["saving"]["middle"] == pytest.approx(0.75)
    text = call("cost", run, *told).output
    assert "1 x cpu.small: saves 75 %" in text
    assert "to be sure: run 200 steps on 1 x cpu.small" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "there is no price: give --price"),
        (["--on", "cpu.large"], "give --prices FILE"),
        (["--prices", "{prices}"], "give --on NAME.*cpu.small, cpu.large"),
        (["--prices", "{prices}", "--on", "cpu.larg"], "did you mean 'cpu.large'"),
        (["--price", "-1"], "-1"),
    ],
)
def test_a_price_that_is_missing_is_asked_for(
    run: Path, prices: Path, options: list[str], said: str
) -> None:
    told = [each.format(prices=prices) for each in options]
    result = call("cost", run, *told, exit_code=2)
    assert said.partition(".*")[0] in " ".join(result.output.split())


def test_a_run_without_a_profile_says_so(tmp_path: Path) -> None:
    RunBuilder(tmp_path / "run").close()
    result = call("cost", tmp_path / "run", "--price", "1", exit_code=3)
    assert "has no profile" in result.output
