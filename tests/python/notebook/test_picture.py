"""What a live view is sent: nothing sampled, columns that stay, bounded bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdbg
from report_runs import LAYERS, NAN, SPIKE, planted_run
from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.errors import ConfigurationError, QueryError, TensorUnavailable
from tdbg.modes import ModeKeys
from tdbg.notebook.picture import MOST_CELLS, picture
from tdbg.trial import Trial
from tdbg.ui.packing import unpack


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    path = tmp_path_factory.mktemp("runs") / "planted"
    planted_run(path)
    tdbg.rules.check(path)
    return tdbg.create_trial(path)


def read(trial: Trial, *asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    header, arrays = unpack(picture(trial, *asked))
    columns = header["columns"]
    for name, array in arrays.items():
        listed = header["curves" if name.startswith("curve") else "layers"]
        assert array.shape == (len(listed), columns), name
    assert header["start"] % header["width"] == 0
    assert header["start"] <= header["from"]
    assert header["start"] + columns * header["width"] >= header["to"]
    return header, arrays


def column(header: dict[str, Any], step: int) -> int:
    return int((step - header["start"]) // header["width"])


def test_verdict_findings_and_the_planted_spike_and_nan_are_in_it(trial: Trial) -> None:
    header, arrays = read(trial)
    assert "3 problems occurred and recovered" in header["verdict"]["sentence"]
    assert {each["rule"] for each in header["findings"]} >= {"LossSpike"}
    assert header["curves"] == ["loss_output_0"]
    assert arrays["curve_high"][0].argmax() == column(header, SPIKE)
    assert header["of"] == "gradients"
    assert header["layers"] == [f"gradient/layers.{i}.weight" for i in range(LAYERS)]
    assert np.argwhere(arrays["layer_bad"]).tolist() == [[7, column(header, NAN)]]
    row, at = np.unravel_index(
        arrays["layer_high"].argmax(), arrays["layer_high"].shape
    )
    assert (row, at) == (3, column(header, SPIKE))


def test_a_collection_names_and_a_statistic_can_be_asked_for(trial: Trial) -> None:
    header, _ = read(trial, "weights", "l2")
    assert header["layers"] == [f"layers.{i}.weight" for i in range(LAYERS)]
    header, arrays = read(trial, ["layers.3.weight"], "std")
    assert header["layers"] == ["layers.3.weight"]
    assert header["field"] == "std"
    assert arrays["layer_rows"].sum() == 600


def test_a_run_without_a_step_has_an_empty_picture(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run"):
        pass
    header, _ = read(tdbg.create_trial(tmp_path / "run"))
    assert header["layers"] == header["curves"] == []
    assert header["verdict"]["tone"] == "starting"


def test_losses_of_two_modes_are_two_curves(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        for step in range(20):
            mode = ModeKeys.EVAL if step % 5 == 4 else ModeKeys.TRAIN
            loss = np.array(1 / (step + 1), np.float32)
            run.save(step, "loss_output_0", loss, role=Role.LOSS)
            run.end_step(step, mode)
    header, arrays = read(tdbg.create_trial(tmp_path / "run"))
    assert header["curves"] == ["loss_output_0 (TRAIN)", "loss_output_0 (EVAL)"]
    assert arrays["curve_rows"].sum(axis=1).tolist() == [16, 4]


def test_of_many_layers_columns_are_wider_and_the_bytes_bounded(tmp_path: Path) -> None:
    names = [f"gradient/layers.{i}.weight" for i in range(700)]
    with RunBuilder(tmp_path / "run") as run:
        for step in range(200):
            run.save(step, names[step], np.ones(2, np.float32), what="statistics")
            run.end_step(step)
        for name in names:
            run.save(200, name, np.ones(2, np.float32), what="statistics")
        run.end_step(200)
    trial = tdbg.create_trial(tmp_path / "run")
    header, arrays = read(trial)
    assert arrays["layer_rows"].size <= MOST_CELLS
    assert arrays["layer_rows"].sum() == 900
    assert header["width"] == 4


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (("gradients", "median"), ConfigurationError),
        (("gradientz",), QueryError),
        ((["layers.99"],), TensorUnavailable),
    ],
)
def test_what_is_not_there_is_a_typed_error(
    trial: Trial, asked: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        picture(trial, *asked)
