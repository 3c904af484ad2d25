"""Rows of steps of Keras and of TensorFlow's loops: batches, phases, tracing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_programs import run_program
from tdbg.modes import EVAL, TRAIN
from tdbg.run.profile_tables import PHASE_COLUMNS
from tdbg.trial import create_trial

#: Of an epoch of 50 samples.
SIZES = [16, 16, 16, 2]
BACKENDS = ("tensorflow", "torch", "jax")


class Ran:
    """The program, once for each backend."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reports: dict[str, Any] = {}

    def report(self, backend: str) -> Any:
        """What the program reports."""
        out = self._folder / backend
        if backend not in self._reports:
            out.mkdir()
            self._reports[backend] = run_program("step_rows", out, backend)
        return self._reports[backend]

    def rows(self, backend: str, name: str, mode: Any = TRAIN) -> Any:
        """The rows of a run, which add up."""
        assert self.report(backend)[name] == 0
        rows = create_trial(self._folder / backend / name).profile.steps(mode)
        total = sum(rows[column] for column in PHASE_COLUMNS.values())
        assert (total == rows["duration_ns"]).all()
        return rows


@pytest.fixture(scope="module")
def ran(tmp_path_factory: Any) -> Ran:
    return Ran(tmp_path_factory.mktemp("step_rows"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["plain", "tapped"])
def test_each_row_has_the_samples_of_its_batch(
    ran: Ran, backend: str, name: str
) -> None:
    assert list(ran.rows(backend, name)["samples"]) == 3 * SIZES
    assert list(ran.rows(backend, name, EVAL)["samples"]) == 3 * [16, 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_of_keras_has_no_parts(ran: Ran, backend: str) -> None:
    rows = ran.rows(backend, "plain")
    assert not rows["forward_ns"].any()
    assert not rows["optimizer_ns"].any()


def test_samples_that_only_a_graph_of_ones_own_sees_are_unknown(ran: Ran) -> None:
    samples = ran.rows("tensorflow", "own step")["samples"]
    assert set(samples.tolist()) <= {-1, *SIZES}
    assert (samples == -1).any()
    assert list(ran.rows("torch", "own step")["samples"]) == 3 * SIZES


def test_tracing_is_time_of_the_compiler(ran: Ran) -> None:
    rows = ran.rows("tensorflow", "plain")
    assert rows["compile_ns"][0] > 0
    assert rows["compile_ns"][0] > rows["compute_ns"][0] / 2
    assert (rows["compile_ns"][5:] == 0).any()
    changes = create_trial(ran._folder / "tensorflow" / "plain").events("change")
    compiled = [each.data for each in changes if each.data["what"] == "compilation"]
    assert {each["compiler"] for each in compiled} == {"tensorflow"}


def test_tracing_for_tdbg_is_time_of_tdbg(ran: Ran) -> None:
    rows = ran.rows("tensorflow", "tapped")
    assert rows["capture_ns"][0] > rows["compute_ns"][0]
    assert rows["capture_ns"][0] > rows["compile_ns"][0]


def test_an_eager_loop_has_forward_backward_and_optimizer(ran: Ran) -> None:
    rows = ran.rows("tensorflow", "loop eager")
    for phase in ("forward_ns", "backward_ns", "optimizer_ns"):
        assert (rows[phase] > 0).all(), phase
    assert list(rows["samples"]) == 6 * SIZES
    report = ran.report("tensorflow")
    assert report["loop eager is timed"]
    assert not report["loop eager is left"]


def test_a_graph_is_a_training_step_and_its_tracing_the_compilers(ran: Ran) -> None:
    rows = ran.rows("tensorflow", "loop graph")
    assert rows["compile_ns"][0] > 0
    assert (rows["compute_ns"][8:] > 0).all()
    assert (rows["other_ns"][8:] < rows["duration_ns"][8:] / 2).mean() > 0.7
    assert list(rows["samples"]) == 6 * SIZES


def test_a_function_of_the_hook_has_the_samples_of_its_arguments(ran: Ran) -> None:
    rows = ran.rows("tensorflow", "loop function")
    assert list(rows["samples"]) == 6 * SIZES
    assert (rows["compile_ns"] > 0).any()
