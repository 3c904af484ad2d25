"""A run as a row: what it says is what the other faces say."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from faces import save_steps
from run_builder import RunBuilder, simple_run
from tdbg.compare import settings_of
from tdbg.config import Role
from tdbg.errors import QueryError, StorageError
from tdbg.modes import ModeKeys
from tdbg.query import RUN_COLUMNS, is_higher_better, record_of, unreadable
from tdbg.query import runs as rows_of_runs
from tdbg.run.schema import EventKind
from tdbg.trial import create_trial
from tdbg.view import view_of


def test_it_says_what_the_view_says(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "a") as run:
        save_steps(run)
    trial = create_trial(tmp_path / "a")
    row, view = record_of(trial), view_of(trial)
    assert row.values["state"] == "closed"
    assert row.values["steps"] == view.head.steps == 60
    assert row.values["evaluated"] == 20
    assert view.loss is not None
    assert row.values["loss"] == view.loss.value
    assert row.values["verdict"] == view.verdict.tone
    assert row.values["sentence"] == view.verdict.sentence
    assert row.values["bytes"] == trial.n_bytes
    assert row.values["created"] == datetime.fromisoformat(trial.created)
    assert row.values["duration"] >= 0
    assert row.settings == settings_of(trial)


def test_it_has_a_value_for_each_plain_column(tmp_path: Path) -> None:
    simple_run(tmp_path / "a")
    row = record_of(create_trial(tmp_path / "a"))
    by_name = {"last", "best", "settings"}
    assert set(row.values) == set(RUN_COLUMNS.names) - by_name
    json.dumps(row.to_json(), allow_nan=False)


def test_losses_of_evaluation_are_apart(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "a") as run:
        save_steps(run, 3)
    row = record_of(create_trial(tmp_path / "a"))
    assert row.last["loss_output_0"] == pytest.approx(1 / 3)
    assert row.best["loss_output_0"] == row.values["best_loss"]
    assert row.last["loss_output_0 (EVAL)"] == pytest.approx(7 + 1 / 3)


def test_the_best_of_a_metric_is_what_its_name_says(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "a") as run:
        for step, value in enumerate((0.5, 0.9, math.nan, 0.2)):
            run.scalar(step, "scalar/accuracy", value)
            run.scalar(step, "scalar/val_error", value)
            run.scalar(step, "scalar/optimizer/group_0/lr", value)
            loss = np.array(value, np.float32)
            run.save(step, "score_loss", loss, role=Role.LOSS)
            run.end_step(step, ModeKeys.TRAIN)
    row = record_of(create_trial(tmp_path / "a"))
    assert row.best == {
        "accuracy": 0.9,
        "val_error": 0.2,
        "score_loss": np.float32(0.2),
    }
    assert row.settings["optimizer/group_0/lr"] == (0.2, 0.9)


def test_a_value_that_is_not_finite_is_nan_and_never_best(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "a") as run:
        for step, value in enumerate((1.0, 2.0, math.inf)):
            loss = np.array(value, np.float32)
            run.save(step, "loss_output_0", loss, role=Role.LOSS)
            run.end_step(step)
    row = record_of(create_trial(tmp_path / "a"))
    assert math.isnan(row.last["loss_output_0"])
    assert row.values["best_loss"] == 1.0
    assert row.to_json()["last"] == {"loss_output_0": None}


def test_findings_are_counted_as_the_view_counts_them(tmp_path: Path) -> None:
    simple_run(tmp_path / "a")
    told = {
        "rule": "ExplodingTensor",
        "severity": "error",
        "step": 3,
        "mode": "TRAIN",
        "tensor": "fc.weight",
        "message": "m",
        "first_step": 3,
        "last_step": 3,
    }
    with RunBuilder(tmp_path / "a", role="engine") as engine:
        engine.event(EventKind.FINDING, told)
    row = record_of(create_trial(tmp_path / "a"))
    assert (row.values["errors"], row.values["warnings"], row.values["notes"]) == (
        *(1, 0),
        0,
    )
    assert row.values["verdict"] == "error"


def test_what_is_not_asked_for_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simple_run(tmp_path / "a")
    trial = create_trial(tmp_path / "a")
    for name in ("view_of", "settings_of"):
        monkeypatch.setattr(rows_of_runs, name, None)
    row = record_of(trial, ["path", "state", "created"])
    assert dict(row.values) == {
        "path": trial.path,
        "state": "closed",
        "created": datetime.fromisoformat(trial.created),
    }


def test_an_unknown_column_is_refused(tmp_path: Path) -> None:
    simple_run(tmp_path / "a")
    with pytest.raises(QueryError, match="no column 'stat'; did you mean 'state'"):
        record_of(create_trial(tmp_path / "a"), ["stat"])


def test_a_run_that_cannot_be_read_is_a_row_too() -> None:
    row = unreadable("runs/a", StorageError("torn"), ["path", "state", "error", "loss"])
    assert row.values == {
        "path": "runs/a",
        "state": "unreadable",
        "error": "torn",
        "loss": None,
    }


@pytest.mark.parametrize(
    ("name", "is_higher"),
    [
        ("val/top1_accuracy", True),
        ("Accuracy (EVAL)", True),
        ("val/perplexity", False),
    ],
)
def test_the_direction_follows_from_words(name: str, is_higher: bool) -> None:
    assert is_higher_better(name) is is_higher
