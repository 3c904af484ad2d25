"""Plots: what is drawn where, on whose axes, and what is said where nothing can be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import tdbg
from report_runs import LAYERS, NAN, SPIKE, planted_run
from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.errors import ConfigurationError, QueryError, TensorUnavailable
from tdbg.modes import ModeKeys
from tdbg.trial import Trial

NAME = "gradient/$a_1$ <b>"


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    path = tmp_path_factory.mktemp("runs") / "planted"
    planted_run(path)
    return tdbg.create_trial(path)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """Histograms of one tensor, values of another; NaN in each at step 3."""
    path = tmp_path_factory.mktemp("runs") / "counted"
    random = np.random.default_rng(0)
    with RunBuilder(path) as run:
        for step in range(30):
            array = random.normal(size=400).astype(np.float32)
            array[:4] = np.nan if step == 3 else 0.0
            run.histogram(step, NAME, array)
            run.save(step, NAME, array, what="statistics")
            run.save(step, "fc.weight", array)
            run.end_step(step)
    return tdbg.create_trial(path)


# --- Series -----------------------------------------------------------------------


def test_a_spike_of_one_step_is_in_the_envelope_of_few_columns(trial: Trial) -> None:
    ax = trial.plot.series("loss_output_0", columns=20)
    (area,) = ax.collections
    top = area.get_paths()[0].vertices
    high = top[top[:, 1].argmax()]
    assert high[1] > 200
    assert abs(high[0] - SPIKE) <= 32
    assert ax.get_yscale() == "log"
    assert ax.get_ylabel() == "value of loss_output_0"
    assert ax.get_xlabel() == "step"


def test_what_is_not_finite_has_a_mark_above_the_axes(trial: Trial) -> None:
    ax = trial.plot.series("gradient/layers.7.weight", columns=600)
    line, marks = ax.lines
    assert marks.get_label() == "NaN or infinity"
    assert marks.get_xdata().tolist() == [NAN]
    assert min(marks.get_ydata()) > 1  # Of the height of the axes: above them.
    assert np.isfinite(line.get_ydata()).sum() >= 599


def test_a_logarithmic_axis_marks_what_it_has_no_place_for(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        for step, loss in enumerate([1e3, 1.0, 0.0, -2.0, 5.0]):
            one = np.array(loss, np.float32)
            run.save(step, "loss_output_0", one, role=Role.LOSS)
            run.end_step(step)
    ax = tdbg.create_trial(tmp_path / "run").plot.series("loss_output_0", log=True)
    *_, marks = ax.lines
    assert marks.get_label() == "zero or below"
    assert marks.get_xdata().tolist() == [2, 3]
    ax.figure.canvas.draw()


def test_a_second_series_has_another_colour_and_the_same_axis(trial: Trial) -> None:
    ax = trial.plot.series("gradient/layers.0.weight", "l2")
    again = trial.plot.series("gradient/layers.1.weight", "l2", ax=ax, label="second")
    assert again is ax
    first, second = (line for line in ax.lines if line.get_gid())
    assert first.get_color() != second.get_color()
    assert second.get_label() == "second"
    assert ax.get_ylabel() == "l2 norm"


def test_a_scalar_is_drawn_in_its_range_and_mode(trial: Trial) -> None:
    name = "scalar/optimizer/group_0/lr"
    ax = trial.plot.series(name, start=100, stop=200, mode=ModeKeys.TRAIN)
    (line,) = ax.lines
    assert (line.get_xdata()[0], line.get_xdata()[-1]) == (100, 199)
    with pytest.raises(TensorUnavailable, match="nothing of 'scalar"):
        trial.plot.series(name, mode="EVAL")


def test_a_dollar_in_a_name_is_no_formula(counted: Trial) -> None:
    ax = counted.plot.series(NAME)
    ax.legend()
    ax.figure.canvas.draw()
    counted.plot.layer_map([NAME]).figure.canvas.draw()
    counted.plot.ridgeline(NAME).figure.canvas.draw()
    assert ax.get_ylabel().replace("\\", "") == f"root mean square of {NAME}"


# --- Layer map --------------------------------------------------------------------


def test_a_map_has_a_row_a_layer_and_the_spike_in_its_cell(trial: Trial) -> None:
    ax = trial.plot.layer_map("gradients", "l2", columns=30)
    mesh, bad = ax.collections
    values = mesh.get_array()
    assert values.shape[0] == LAYERS
    edges = mesh.get_coordinates()[0, :, 0]
    row, column = np.unravel_index(values.argmax(), values.shape)
    assert row == 3
    assert edges[column] <= SPIKE < edges[column + 1]
    (cell,) = np.argwhere(~bad.get_array().mask)
    assert cell[0] == 7
    assert edges[cell[1]] <= NAN < edges[cell[1] + 1]
    assert [t.get_text() for t in ax.get_yticklabels()][:2] == [
        "layers.0.weight",
        "layers.1.weight",
    ]


def test_a_map_of_fewer_rows_than_layers_loses_no_spike(trial: Trial) -> None:
    ax = trial.plot.layer_map("gradients", rows=4, colorbar=False)
    values = ax.collections[0].get_array()
    assert values.shape[0] == 4
    assert np.unravel_index(values.argmax(), values.shape)[0] == 1
    assert ax.get_title() == "root mean square of gradients"


def test_steps_between_captured_ones_are_no_gap_in_a_map(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        for step in [*range(0, 50, 5), *range(200, 250, 5)]:
            run.save(step, "fc.weight", np.ones(3, np.float32), what="statistics")
            run.end_step(step)
    ax = tdbg.create_trial(tmp_path / "run").plot.layer_map("weights", columns=250)
    (row,) = np.ma.getmaskarray(ax.collections[0].get_array())
    assert not row[:45].any()
    assert row[60:190].all()
    assert not row[200:].any()


# --- Ridgeline --------------------------------------------------------------------


@pytest.mark.parametrize("name", [NAME, "fc.weight"])
def test_a_ridgeline_leaves_no_histogram_out(counted: Trial, name: str) -> None:
    ax = counted.plot.ridgeline(name, most=5)
    spans = [t.get_text().split(" to ") for t in ax.get_yticklabels()]
    assert len(spans) == len(ax.collections) == 5
    assert (spans[0][0], spans[-1][-1]) == ("0", "29")
    found = [step for a, b in spans for step in range(int(a), int(b) + 1)]
    assert set(counted.tensor(name).steps(what="any")) <= set(found)
    notes = [each.get_text() for each in ax.texts]
    assert "4 NaN" in " ".join(notes)


def test_a_ridgeline_says_what_bins_do_not_show(counted: Trial) -> None:
    ax = counted.plot.ridgeline(NAME, start=2, stop=5)
    assert [each.get_text() for each in ax.texts] == ["1% zero", "4 NaN", "1% zero"]
    colors = [each.get_color() for each in ax.texts]
    assert colors[1] != colors[0] == colors[2]


# --- Axes, and what cannot be -----------------------------------------------------


def test_axes_that_are_given_are_drawn_on_and_returned(trial: Trial) -> None:
    ax = Figure().add_subplot()
    assert trial.plot.layer_map("weights", ax=ax) is ax
    assert ax.collections


def test_no_state_of_pyplot_is_touched(trial: Trial) -> None:
    code = (
        "import sys, tdbg\n"
        f"trial = tdbg.create_trial({trial.path!r})\n"
        "assert 'matplotlib' not in sys.modules\n"
        "trial.plot.series('loss_output_0').figure.savefig(sys.argv[1])\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    target = str(Path(trial.path).parent / "loss.pdf")
    subprocess.run([sys.executable, "-c", code, target], check=True)
    assert Path(target).stat().st_size > 1000


@pytest.mark.parametrize("plot", ["series", "ridgeline"])
def test_an_unknown_tensor_is_named_with_its_neighbour(trial: Trial, plot: str) -> None:
    with pytest.raises(TensorUnavailable, match=r"loss_output_1.*loss_output_0"):
        getattr(trial.plot, plot)("loss_output_1")


def test_a_missing_histogram_names_the_setting_that_saves_it(trial: Trial) -> None:
    with pytest.raises(TensorUnavailable, match="save_histogram=True"):
        trial.plot.ridgeline("layers.0.weight")


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda p: p.series("loss_output_0", "median"), ConfigurationError, "median"),
        (lambda p: p.layer_map("gradients", "mean"), ConfigurationError, "zero_share"),
        (lambda p: p.layer_map("gradientz"), QueryError, "gradients"),
        (lambda p: p.layer_map(["layers.99"]), TensorUnavailable, "layers.99"),
        (lambda p: p.layer_map("outputs"), TensorUnavailable, "'outputs'"),
        (
            lambda p: p.ridgeline("layers.0.weight", most=0),
            ConfigurationError,
            "most=0",
        ),
    ],
)
def test_what_cannot_be_drawn_is_a_typed_error(
    trial: Trial, ask: object, error: type[Exception], words: str
) -> None:
    assert callable(ask)
    with pytest.raises(error, match=words):
        ask(trial.plot)


def test_without_matplotlib_the_error_names_the_extra(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'tdbg\[plot\]'"):
        trial.plot.series("loss_output_0")
