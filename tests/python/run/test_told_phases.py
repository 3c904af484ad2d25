"""The phases of a step that a framework tells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdbg.run.profile_tables import LOADER, STEP, Phase
from tdbg.run.told_phases import UNREPORTED, spent_phases, tells_model, told_phases

DOCS = Path(__file__).parents[3] / "docs" / "profiler-steps.md"
COMPUTED = {Phase.COMPUTE, Phase.OTHER}


def configured(name: str, version: str = "1.0", **more: Any) -> Mapping[str, Any]:
    return {"framework": {"name": name, "version": version}, **more}


def test_what_a_framework_cannot_tell_is_said_in_words() -> None:
    told = told_phases(configured("mxnet"), COMPUTED)
    assert told.lacks([Phase.COMPILE]) == "MXNet does not tell when it compiles"
    assert told.lacks([Phase.DATA_WAIT]) == (
        "MXNet does not tell how long a step waits for data; "
        "hook.loader(batches) measures it"
    )
    assert told.lacks([Phase.GC, Phase.FORWARD]) == ""
    assert not told.tells(Phase.GC, Phase.COMPILE)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("3.12.0 (PyTorch 2.13.0)", "Keras on PyTorch"),
        ("3.12.0 (JAX 0.8.0)", "Keras on JAX"),
        ("3.12.0 (TensorFlow 2.20.0)", "Keras on TensorFlow"),
    ],
)
def test_keras_tells_what_its_backend_can(version: str, name: str) -> None:
    told = told_phases(configured("keras", version), COMPUTED)
    assert told.framework == name
    # One rank waits for nobody.
    assert told.unreported == UNREPORTED[name] - {Phase.COMMUNICATION}


def test_what_a_row_has_is_told_whatever_the_framework() -> None:
    spent = {*COMPUTED, Phase.DATA_WAIT, Phase.COMPILE, Phase.CHECKPOINT}
    assert told_phases(configured("tensorflow"), spent).unreported == frozenset()


def test_several_ranks_wait_for_each_other() -> None:
    told = told_phases(configured("jax", world_size=2), COMPUTED)
    assert not told.tells(Phase.COMMUNICATION)
    assert told_phases(configured("pytorch", world_size=2), COMPUTED).tells(
        Phase.COMMUNICATION
    )


def test_other_code_is_told_from_the_model_by_what_rows_hold() -> None:
    loop = {Phase.OPTIMIZER, Phase.OTHER}
    assert not tells_model(loop)
    assert told_phases({}, loop).lacks([Phase.OTHER]) == (
        "the framework does not tell the model's time from that of other code"
    )
    assert told_phases({}, {*loop, Phase.BACKWARD}).tells(Phase.OTHER)


def test_a_framework_that_nobody_knows_tells_what_its_rows_hold() -> None:
    told = told_phases(configured("novel"), {*COMPUTED, Phase.EVALUATION})
    assert told.lacks([Phase.COMPILE]) == "novel does not tell when it compiles"
    assert told.tells(Phase.EVALUATION)


def test_batches_of_a_loader_say_that_waiting_is_measured() -> None:
    steps = np.zeros(2, STEP)
    steps["compute_ns"][1] = 5
    assert spent_phases(steps, np.zeros(0, LOADER)) == {Phase.COMPUTE}
    assert spent_phases(steps, np.zeros(1, LOADER)) == {Phase.COMPUTE, Phase.DATA_WAIT}


def test_a_wait_that_only_some_steps_see_is_not_told() -> None:
    """Keras on TensorFlow sees it in the steps that capture."""
    steps = np.zeros(10, STEP)
    steps["compute_ns"], steps["data_wait_ns"][:3] = 5, 5
    assert spent_phases(steps, np.zeros(3, LOADER)) == {Phase.COMPUTE}
    steps["data_wait_ns"][:6] = 5
    assert spent_phases(steps, np.zeros(0, LOADER)) == {Phase.COMPUTE, Phase.DATA_WAIT}


def test_the_page_says_the_same() -> None:
    section = DOCS.read_text().partition("### What is not told")[2]
    lines = section.partition("\n## ")[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    told = {
        name: {Phase[phase.strip().replace(" ", "_").upper()] for phase in phases}
        for names, phases in ((row[0].split(", "), row[1].split(",")) for row in rows)
        for name in names
        if name in UNREPORTED
    }
    assert told == {
        name: unreported for name, unreported in UNREPORTED.items() if unreported
    }
