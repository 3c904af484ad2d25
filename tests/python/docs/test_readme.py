"""What the README shows is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tdbg.rules import registry

ROOT = Path(__file__).parents[3]


def blocks(file: str, language: str) -> list[str]:
    text = (ROOT / file).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.torch
def test_the_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    (code,) = blocks("README.md", "python")
    printed = blocks("README.md", "text")[0]
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == printed


def test_every_rule_is_named() -> None:
    named = set(re.findall(r"`(\w+)`", (ROOT / "README.md").read_text()))
    assert set(registry.names()) <= named


@pytest.mark.torch
def test_the_silent_mistake_is_told_as_the_pages_say(tmp_path: Path) -> None:
    (code,) = blocks("docs/silent-mistakes.md", "python")
    (shown,) = blocks("docs/silent-mistakes.md", "text")
    assert shown in blocks("README.md", "text")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    told = subprocess.run(
        [sys.executable, "-m", "tdbg", "check", "runs/split"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 1, told.stderr
    assert " ".join(told.stdout.split()).startswith(" ".join(shown.split()))
