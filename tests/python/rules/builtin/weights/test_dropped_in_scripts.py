"""CodeMisuse in scripts: what a cell of a notebook has shown, and what is dropped."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import tdbg

pytestmark = pytest.mark.torch

SCRIPT = """
import torch
import torch.nn.functional as F
import tdbg.pytorch as td
{before}
model = torch.nn.Linear(6, 2)
x, y = torch.randn(24, 6), torch.arange(24) % 2
{line}
with td.watch(model, out=out, budget="off", min_free_bytes=0):
    for _ in range(4):
        F.cross_entropy(model(x), y).backward()
        {inside}
"""


def script(tmp_path: Path, line: str, before: str = "", inside: str = "") -> list[str]:
    """Run a script, and return what is found in it."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(line=line, before=before, inside=inside))
    runpy.run_path(str(path), {"out": tmp_path / "run"})
    rules = [tdbg.rules.CodeMisuse()]
    found = tdbg.rules.check(tmp_path / "run", rules=rules).findings
    return [each.message for each in found]


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("", "torch.softmax(torch.from_numpy(x.numpy()), dim=0)"),
        ("out.name", "torch.relu(x)"),
        ("z = [1]; z[0]", "x.clamp(-1, 1)"),
        ("", ""),
    ],
)
def test_a_script_that_was_a_notebook_may_show_values(
    tmp_path: Path, before: str, line: str
) -> None:
    assert script(tmp_path, line, before) == []


@pytest.mark.parametrize(
    ("before", "line", "inside"),
    [
        ("", "x.clamp(-1, 1)", ""),
        ("", "", "torch.relu(x)"),
        ("out.name", "", "x.clamp(-1, 1)"),
        ("out.name", "torch.no_grad()", ""),
    ],
)
def test_a_script_that_drops_a_result_is_named(
    tmp_path: Path, before: str, line: str, inside: str
) -> None:
    (message,) = script(tmp_path, line, before, inside)
    assert f"`{line or inside}`" in message
