"""``tdbg import``, and the other verbs on what smdebug wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import tdbg
from smdebug_corpus import CORPUS
from tdbg.cli import _tdbg

SOURCE = CORPUS / "pytorch" / "out"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TDBG_CACHE", str(tmp_path / "cache"))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(_tdbg, [str(each) for each in arguments])
    return result.exit_code, result.output


def test_a_directory_becomes_a_run(tmp_path: Path) -> None:
    code, text = run("import", "smdebug", str(SOURCE), str(tmp_path / "run"))
    assert code == 0
    assert text == f"6 steps imported into {tmp_path / 'run'}\n"
    trial = tdbg.create_trial(tmp_path / "run")
    assert trial.steps("GLOBAL") == [0, 2, 4, 6, 8, 10]
    assert trial.status == "closed"


def test_an_import_goes_on_where_it_was(tmp_path: Path) -> None:
    command = "import", "smdebug", str(SOURCE), str(tmp_path / "run"), "--json"
    first, second = (json.loads(run(*command)[1]) for _ in range(2))
    assert (first["steps"], second["steps"]) == (6, 0)
    assert first["ended"] is second["ended"] is True


def test_losses_are_told_and_end_with_1(tmp_path: Path) -> None:
    out = Path(shutil.copytree(SOURCE, tmp_path / "out"))
    (out / "events/000000000002/000000000002_worker_0.tfevents").unlink()
    code, text = run("import", "smdebug", str(out), str(tmp_path / "run"))
    assert code == 1
    assert "could not be read" in text


def test_what_smdebug_did_not_write_is_refused(tmp_path: Path) -> None:
    code, text = run("import", "smdebug", str(tmp_path), str(tmp_path / "run"))
    assert code == 3
    assert "is not what smdebug's hook wrote" in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "line",
    [
        "ls {out}",
        "ls {folder}",
        "show {out}",
        "show {out} Net_conv1.weight --step 0",
        "check {out}",
        "report {out} --out {folder}/report.html",
        "export tensorboard {out} --out {folder}/board",
        "fsck {out}",
    ],
)
def test_verbs_take_what_smdebug_wrote(tmp_path: Path, line: str) -> None:
    out = Path(shutil.copytree(SOURCE, tmp_path / "out"))
    code, text = run(*line.format(out=out, folder=tmp_path).split())
    assert code in (0, 1), text
    assert "Traceback" not in text
