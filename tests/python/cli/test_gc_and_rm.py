"""``tdbg gc`` and ``tdbg rm``, called as a user would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from run_builder import RunBuilder, simple_run
from tdbg.cli import _tdbg
from tdbg.run.schema import EventKind
from tdbg.trial import create_trial


def call(*arguments: object, **options: Any) -> Result:
    return CliRunner().invoke(_tdbg, [str(each) for each in arguments], **options)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """100 steps with values, in several shards, with a retention of its own."""
    random = np.random.default_rng(0)
    with RunBuilder(tmp_path / "run", shard_bytes=128 << 10) as run:
        run.event(
            EventKind.CONFIGURATION,
            {"hook": {"retention": {"values": "last 10", "max_bytes": None}}},
        )
        for step in range(100):
            run.step(step, {"w": random.normal(size=2048).astype(np.float32)})
    return tmp_path / "run"


def values_of(run: Path) -> list[int]:
    return create_trial(run).tensor("w").steps(what="values")


def test_gc_keeps_the_values_that_are_asked_for(run: Path) -> None:
    dry = call("gc", run, "--values", "last 50", "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "would go" in dry.output
    assert len(values_of(run)) == 100
    done = call("gc", run, "--values", "last 50")
    assert done.exit_code == 0, done.output
    assert "went, from" in done.output
    assert 50 <= len(values_of(run)) < 75
    assert len(create_trial(run).tensor("w").steps(what="statistics")) == 100


def test_gc_applies_the_runs_own_retention(run: Path) -> None:
    result = call("gc", run, "--json")
    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.stdout)["runs"]
    assert report["after"] < report["before"]
    assert report["shards"][0]["values_only"]
    assert 10 <= len(values_of(run)) < 40


def test_gc_says_what_to_give_where_a_run_has_none(tmp_path: Path) -> None:
    simple_run(tmp_path / "simple")
    result = call("gc", tmp_path / "simple")
    assert result.exit_code == 2
    assert "--max-bytes 50GB" in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--values", "first 3"), "'last 1000', 'every 100'"),
        (("--max-bytes", "much"), "'50GB'"),
        (("--max-bytes", "10 KB"), "at least 1 MiB"),
    ],
)
def test_gc_refuses_what_it_does_not_understand(
    run: Path, arguments: tuple[str, ...], told: str
) -> None:
    result = call("gc", run, *arguments)
    assert result.exit_code == 2
    assert told in result.output.replace("\n", " ")


def test_gc_of_a_live_run_touches_no_open_shard(tmp_path: Path) -> None:
    path = tmp_path / "run"
    random = np.random.default_rng(0)
    with RunBuilder(path, shard_bytes=128 << 10) as run:
        for step in range(80):
            run.step(step, {"w": random.normal(size=2048).astype(np.float32)})
            if step == 40:
                run.flush()
                result = call("gc", path, "--values", "none", "--json")
                assert json.loads(result.stdout)["runs"][0]["shards"]
    trial = create_trial(path)
    assert trial.problems() == []
    assert trial.lost_records().in_order
    assert trial.tensor("w").steps(what="values")[-1] == 79


def test_rm_asks_and_removes_only_its_own_files(run: Path) -> None:
    (run / "notes.txt").write_text("mine")
    no = call("rm", run, input="n\n")
    assert no.exit_code == 1
    assert create_trial(run).steps()
    yes = call("rm", run, input="y\n")
    assert yes.exit_code == 0, yes.output
    assert [each.name for each in run.iterdir()] == ["notes.txt"]
    assert "notes.txt" in yes.output


def test_rm_removes_the_directory_of_a_run(run: Path) -> None:
    result = call("rm", run, "--yes", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["removed"][0]["n_bytes"] > 0
    assert not run.exists()


def test_rm_refuses_what_is_no_run(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "data"
    other.mkdir()
    (other / "precious").write_text("data")
    link = tmp_path / "link"
    link.symlink_to(run)
    for path, told in ((other, "is not a run"), (link, "symbolic link")):
        # A run before it stays, too: all are looked at first.
        result = call("rm", run, path, "--yes")
        assert result.exit_code == 3
        assert told in result.output
    assert (other / "precious").exists()
    assert create_trial(run).steps()


def test_rm_refuses_a_live_run(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunBuilder(path) as run:
        run.step(0, {"w": np.zeros(3, np.float32)})
        run.flush()
        # To this process it is its own; another one sees a living writer.
        command = [sys.executable, "-m", "tdbg", "rm", str(path), "--yes"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 3, result.stdout + result.stderr
        assert "is in use" in result.stderr
        assert path.exists()
