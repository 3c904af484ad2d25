"""The faces that show a run, and what each of them says about it."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from report_runs import Page
from run_builder import RunBuilder
from tdbg.cli import _tdbg
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.notebook.picture import picture
from tdbg.report import render
from tdbg.run.schema import EventKind
from tdbg.trial import create_trial
from tdbg.ui.documents import described
from tdbg.ui.packing import unpack
from tdbg.view import RunView, view_of

__all__ = [
    "add_statuses",
    "check_faces",
    "killed_run",
    "said_by",
    "save_steps",
    "save_thinned_losses",
]


def save_steps(run: RunBuilder, n: int = 60) -> None:
    """Training steps, and after every third one of evaluation with a larger loss."""
    step = 0
    for i in range(n):
        for mode in (ModeKeys.TRAIN, ModeKeys.EVAL)[: 1 + (i % 3 == 2)]:
            loss = np.array(1 / (1 + i) + 7 * (mode is ModeKeys.EVAL), np.float32)
            run.save(step, "loss_output_0", loss, role=Role.LOSS)
            run.save(step, "fc.weight", np.full(8, i, np.float32), what="statistics")
            run.end_step(step, mode)
            step += 1


def save_thinned_losses(run: RunBuilder, n: int = 1300) -> None:
    """More steps than a chart has columns, and three losses at every 300th of them.

    An evaluation ends the training.  The losses that are not *the* loss come first by
    name or hold an element for each pixel.
    """
    modes = [ModeKeys.TRAIN] * n + [ModeKeys.EVAL] * 9
    for step, mode in enumerate(modes):
        value = 1 / (1 + step) + 7 * (mode is ModeKeys.EVAL)
        losses = {"a_part": 5 + value, "loss_output_0": 3 * value}
        for name, each in losses.items():
            if mode is ModeKeys.EVAL or step % 300 < 2:
                loss = np.array(each, np.float32)
                run.save(step, name, loss, role=Role.LOSS)
                pixels = np.full(5, 0.00162, np.float32)
                run.save(step, "a_by_pixel", pixels, role=Role.LOSS)
        run.save(step, "fc.weight", np.full(8, step, np.float32), what="statistics")
        run.end_step(step, mode)


def add_statuses(path: Path, **messages: str) -> None:
    with RunBuilder(path, role="engine") as engine:
        for rule, message in messages.items():
            word = "Error" if message else "NoIssuesFound"
            told = {"rule": rule, "status": word, "message": message, "n_findings": 0}
            engine.capture.event(-1, EventKind.STATUS, 0, json.dumps(told).encode())


def killed_run(path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from run_builder import RunBuilder\n"
        "from faces import save_steps\n"
        "run = RunBuilder(Path(sys.argv[1])); save_steps(run); run.flush()\n"
        "os._exit(9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", program, str(path)], env=environment)  # noqa: PLW1510


def said_by(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(_tdbg, [str(each) for each in arguments])
    return result.exit_code, re.sub(r"\s+", " ", result.stdout)


def check_faces(path: Path) -> None:
    """Check that every face says what the view of the run says."""
    view = view_of(create_trial(path))
    for face, document in _documents_of(path).items():
        assert document["verdict"] == view.verdict.to_json(), face
        loss = None if view.loss is None else view.loss.to_json()
        assert document["last_loss"] == loss, face
        for key in ("state", "steps", "recorded", "last_step", "coverage", "counts"):
            assert document[key] == view.to_json()[key], (face, key)
    (top,) = json.loads(f"[{said_by('top', path, '--once', '--json')[1]}]")
    if view.loss is not None:
        assert next(iter(top["losses"].items())) == (view.loss.name, view.loss.value)
    for face, text in _texts_of(path, view).items():
        assert view.verdict.sentence in text, face
        if view.loss is not None and face != "live view":
            assert view.loss.text in text, face


def _documents_of(path: Path) -> dict[str, dict[str, object]]:
    """What each face says as JSON, by its name."""
    found = {"dashboard": described(create_trial(path))}
    for verb in (["ls"], ["show"], ["top", "--once"]):
        code, text = said_by(*verb, path, "--json")
        assert code in (0, 3), text
        found[verb[0]] = json.loads(text)
    folder = json.loads(said_by("ls", path.parent, "--json")[1])["runs"]
    (found["ls of the folder"],) = (e for e in folder if e["run"] == str(path))
    return found


def _texts_of(path: Path, view: RunView) -> dict[str, str]:
    """What each face says to people."""
    trial = create_trial(path)
    page = render(trial) if view.verdict.tone != "unjudged" else ""
    cell = re.sub(r"<[^>]*>", "", html.unescape(trial._repr_html_()))
    header, _ = unpack(picture(trial))
    found = {
        "live view": header["verdict"]["sentence"],
        "cell": cell,
        "top": said_by("top", path, "--once")[1],
        "ls": said_by("ls", path)[1],
    }
    assert view.verdict.short in said_by("ls", path.parent)[1]
    if page:
        found["report"] = Page(page).text
    if view.loss is not None:
        found["show"] = said_by("show", path)[1]
    return found
