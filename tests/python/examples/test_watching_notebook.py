"""The example notebook, executed: its outputs, and the state of its widget."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tdbg.ui.packing import unpack

VIEW = "application/vnd.jupyter.widget-view+json"
NOTEBOOK = "examples/notebook/watch.ipynb"
STATE = "application/vnd.jupyter.widget-state+json"


@pytest.fixture(scope="module")
def executed(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("notebook")
    source, result = NOTEBOOK, folder / "executed.ipynb"
    program = repository / "tests" / "python" / "helpers" / "programs"
    done = subprocess.run(
        [
            sys.executable,
            str(program / "execute_notebook.py"),
            *(str(repository / source), str(folder), str(result)),
        ],
        env={
            **os.environ,
            "IPYTHONDIR": str(folder / "ipython"),
            "PYTHONPATH": os.pathsep.join([str(repository), *filter(None, sys.path)]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(result.read_text("utf-8"))


def outputs(notebook: dict[str, Any]) -> dict[str, Any]:
    """What each cell shows, by the last line of its source."""
    return {
        "".join(cell["source"]).splitlines()[-1]: {
            kind: "".join(data) if isinstance(data, list) else data
            for kind, data in cell["outputs"][-1]["data"].items()
        }
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and cell["outputs"]
    }


def test_the_view_is_a_widget_with_a_fallback_and_its_state(
    executed: dict[str, Any],
) -> None:
    data = outputs(executed)["view"]
    assert data["text/plain"].startswith("Trial(")
    assert "<table>" in data["text/html"]
    states = executed["metadata"]["widgets"][STATE]["state"]
    state = states[data[VIEW]["model_id"]]
    assert state["model_module"] == "anywidget"
    assert "Built from python/tdbg/ui/frontend" in state["state"]["_esm"]
    (buffer,) = state["buffers"]
    assert buffer["path"] == ["picture"]
    header, _ = unpack(base64.b64decode(buffer["data"]))
    # The last picture of the training, in a cell that was executed while it ran.
    assert (header["name"], header["steps"]) == ("notebook", 400)
    assert header["state"] == "closed"


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("report", "LossSpike"),
        ("trial", "400 recorded, from 0 to 399"),
        ("trial.findings()[0]", "what to do"),
        ('trial.tensor("gradient/0.weight")', "<svg"),
        ('trial.tensor("0.weight").histogram(399)', "median"),
    ],
)
def test_values_show_themselves(executed: dict[str, Any], line: str, part: str) -> None:
    html = outputs(executed)[line]["text/html"]
    assert part in html
    assert "<script" not in html
    assert len(html.encode()) < 50_000


def test_plots_are_pictures(executed: dict[str, Any]) -> None:
    for line in ("ax.figure", 'trial.plot.ridgeline("0.weight", most=9).figure'):
        png = base64.b64decode(outputs(executed)[line]["image/png"])
        assert png.startswith(b"\x89PNG")


def test_the_notebook_that_is_committed_shows_the_same_without_state_of_widgets(
    repository: Path, executed: dict[str, Any]
) -> None:
    committed = json.loads((repository / NOTEBOOK).read_text("utf-8"))
    assert outputs(committed).keys() == outputs(executed).keys()
    assert "widgets" not in committed["metadata"]
