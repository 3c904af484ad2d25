"""Folders in which smdebug's directories lie beside runs: listed without being read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tdbg
from run_builder import simple_run
from smdebug_corpus import CORPUS
from tdbg.cli.ls import command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run, and what smdebug wrote; its cache is empty."""
    monkeypatch.setenv("TDBG_CACHE", str(tmp_path / "cache"))
    simple_run(tmp_path / "runs" / "a")
    shutil.copytree(CORPUS / "pytorch" / "out", tmp_path / "runs" / "old")
    return tmp_path / "runs"


def listed(folder: Path) -> dict[str, Any]:
    told = CliRunner().invoke(command, [str(folder), "--json"], catch_exceptions=False)
    assert told.exit_code == 0
    runs = json.loads(told.output)["runs"]
    return {Path(each["run"]).name: each for each in runs}


def test_a_directory_of_smdebug_is_listed_and_not_converted(folder: Path) -> None:
    found = listed(folder)
    assert found["a"]["state"] == "closed"
    assert found["old"] == {
        "run": str(folder / "old"),
        "state": "smdebug, not read yet",
        "error": f"tdbg show {folder / 'old'} reads it",
    }
    assert not list((folder.parent / "cache").rglob("RUN.json"))
    printed = CliRunner().invoke(command, [str(folder)], catch_exceptions=False).output
    assert "smdebug, not read yet" in printed


def test_once_it_was_opened_it_is_listed_as_a_run(folder: Path) -> None:
    assert tdbg.create_trial(folder / "old").steps()
    assert listed(folder)["old"]["state"] == "closed"
    assert "verdict" in listed(folder)["old"]
