"""What the server answers: documents, envelopes, rows, histograms, the doorbell."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dashboard import Dashboard, dashboard
from planted import NAN_STEP, add_findings, finding
from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.findings import Finding, Severity
from tdbg.trial import create_trial
from tdbg.ui.documents import described
from tdbg.ui.packing import pack, unpack


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    with RunBuilder(path) as builder:
        for step in range(100):
            weight = np.arange(8, dtype=np.float32) + step
            builder.save(step, "fc.weight", weight, what="statistics")
            loss = np.array(100.0 - step, np.float32)
            builder.save(step, "loss_output_0", loss, what="any", role=Role.LOSS)
            builder.scalar(step, "lr", np.nan if step == 7 else 1.0 / (1 + step))
            mode = ModeKeys.EVAL if step % 10 == 9 else ModeKeys.TRAIN
            builder.end_step(step, mode)
    return path


@pytest.fixture(scope="module")
def served(run: Path) -> Iterator[Dashboard]:
    with dashboard(run) as found:
        yield found


def test_arrays_come_out_of_bytes_as_they_went_in() -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([], np.uint32),
        "c": np.array([np.nan, np.inf]),
    }
    header, found = unpack(pack({"é": "x"}, arrays))
    assert header == {"é": "x"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_arrays_that_no_page_has_are_refused() -> None:
    with pytest.raises(ValueError, match="array 'x' has dtype int64; use one of"):
        pack({}, {"x": np.zeros(1, np.int64)})
    with pytest.raises(ValueError, match="3 bytes hold no header"):
        unpack(b"abc")


def test_an_envelope_is_that_of_the_trial(served: Dashboard, run: Path) -> None:
    query = f"run={served.run_id()}&name=fc.weight&field=l2&columns=7"
    answer = served.ask(f"/api/envelope?{query}").arrays
    expected = create_trial(run).envelope(
        ["fc.weight"], columns=7, fields=("l2",), by="training"
    )
    np.testing.assert_array_equal(answer["low"], expected.low["l2"])
    np.testing.assert_array_equal(answer["high"], expected.high["l2"])
    np.testing.assert_array_equal(answer["edges"], expected.edges)
    assert answer["rows"].sum() == 100


@pytest.mark.parametrize(("name", "bad"), [("loss_output_0", 0), ("lr", 1)])
@pytest.mark.parametrize("mode", [None, "TRAIN", "EVAL"])
def test_curves_hold_each_step_of_a_mode_once(
    served: Dashboard, name: str, bad: int, mode: str | None
) -> None:
    query = f"run={served.run_id()}&name={name}&columns=16"
    query += "" if mode is None else f"&mode={mode}"
    found = served.ask(f"/api/curve?{query}").arrays
    n = {None: 100, "TRAIN": 90, "EVAL": 10}[mode]
    assert found["rows"].sum() == n
    assert found["bad"].sum() == (0 if mode == "EVAL" else bad)
    has_rows = found["rows"] > found["bad"]
    assert (found["low"] <= found["high"])[has_rows].all()
    assert np.isnan(found["mean"][~has_rows]).all()


def test_rows_are_exact_and_say_what_is_no_number(served: Dashboard) -> None:
    query = f"run={served.run_id()}&name=fc.weight&start=41&stop=43"
    rows = served.ask(f"/api/rows?{query}").json["rows"]
    assert [row["step"] for row in rows] == [41, 42]
    # Four steps of evaluation came before.
    assert [row["global_step"] for row in rows] == [45, 46]
    assert rows[1]["mean"] == 49.5
    assert rows[1]["mode"] == "TRAIN"


def test_integers_that_a_browser_would_round_come_as_text(tmp_path: Path) -> None:
    run, least, greatest = tmp_path / "run", -(2**60) - 1, 2**53 - 1
    with RunBuilder(run) as builder:
        builder.step(0, {"ids": np.array([least, greatest], np.int64)})
    with dashboard(run) as served:
        path = f"/api/rows?run={served.run_id()}&name=ids"
        (row,) = served.ask(path).json["rows"]
    assert (row["min"], row["max"]) == (str(least), greatest)


@pytest.mark.parametrize(("around", "first"), [(0, 0), (45, 43), (99, 85), (1000, 85)])
def test_rows_around_a_step_are_those_next_to_it(
    served: Dashboard, around: int, first: int
) -> None:
    query = f"run={served.run_id()}&name=fc.weight&start=0&stop=100&around={around}"
    found = served.ask(f"/api/rows?{query}").json
    recorded = [row["global_step"] for row in found["rows"]]
    assert recorded == list(range(first, first + 15))
    assert found["n_steps"] == 100


def test_a_row_without_numbers_has_none(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with RunBuilder(run) as builder:
        builder.step(0, {"x": np.full(3, np.nan, np.float32)})
    with dashboard(run) as served:
        path = f"/api/rows?run={served.run_id()}&name=x"
        (row,) = served.ask(path).json["rows"]
    assert (row["nan"], row["count"]) == (3, 3)
    assert row["min"] is row["max"] is row["mean"] is row["rms"] is None


def test_histograms_are_of_saved_values_where_none_was_counted(
    served: Dashboard,
) -> None:
    query = f"run={served.run_id()}&name=loss_output_0&columns=10&bins=20"
    answer = served.ask(f"/api/histograms?{query}")
    n_columns, n_bins = answer.arrays["counts"].shape
    assert 5 <= n_columns <= 10
    assert n_bins == 20
    # Those of training: evaluation has other distributions at the same steps.
    assert answer.arrays["counts"].sum() == pytest.approx(90)
    assert answer.header["lost"][0]["dtype"] == "float16"
    query = f"run={served.run_id()}&name=fc.weight"
    assert served.ask(f"/api/histograms?{query}").arrays["steps"].shape == (0,)


def test_histograms_of_what_is_not_finite_keep_what_is(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with RunBuilder(run) as builder:
        for step, last in enumerate((1.0, np.nan, np.inf)):
            x = np.array([1.0, 2.0, 3.0, last], np.float32)
            builder.histogram(step, "x", x)
            builder.save(step, "x", x, what="statistics")
            builder.end_step(step)
    with dashboard(run) as served:
        query = f"run={served.run_id()}&name=x&columns=3"
        found = served.ask(f"/api/histograms?{query}").arrays
    np.testing.assert_allclose(found["counts"].sum(axis=1), [4, 3, 3])
    np.testing.assert_array_equal(found["bad"], [0, 1, 1])
    assert np.isfinite(found["edges"]).all()


def test_the_document_of_a_run_names_losses_before_settings(
    served: Dashboard,
) -> None:
    document = served.ask(f"/api/run?run={served.run_id()}").json
    assert document["curves"] == ["loss_output_0", "lr"]
    assert document["verdict"]["tone"] == "unjudged"
    assert (document["steps"], document["last_step"]) == (90, 90)
    assert document["last_global_step"] == 99
    assert document["modes"] == ["TRAIN", "EVAL"]


def test_nobody_asks_a_training_that_has_ended(served: Dashboard, run: Path) -> None:
    for verb, body in (("stop", {"reason": "x"}), ("capture", {"regex": ["x"]})):
        path = f"/api/{verb}?run={served.run_id()}"
        answer = served.ask(path, method="POST", body=body)
        assert answer.json == {"state": "ended", "request": None}
    assert not (run / "ctl").exists() or not list((run / "ctl").iterdir())


@pytest.mark.parametrize(
    "body",
    [
        {"reason": 1},
        {"reason": "x" * 501},
        {"rule": "x"},
        [],
        b"{",
        b"[" * 60_000,
    ],
)
def test_a_request_to_stop_that_is_none_is_refused(
    served: Dashboard, body: object
) -> None:
    answer = served.ask(
        f"/api/stop?run={served.run_id()}",
        method="POST",
        body=body,
        content_type="application/json",
    )
    assert answer.status == 400


def test_the_doorbell_rings_when_a_step_was_written_and_when_a_run_came(
    tmp_path: Path,
) -> None:
    with RunBuilder(tmp_path / "a") as builder, dashboard(tmp_path) as served:
        id_ = served.run_id()
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
        token = str(served.access.control)
        connection.request(
            "GET", f"/api/events?run={id_}", headers={"X-Tdbg-Token": token}
        )
        stream = connection.getresponse()

        def rung() -> dict[str, object]:
            while True:
                line = stream.readline()
                if line.startswith(b"data: "):
                    found: dict[str, object] = json.loads(line[6:])
                    return found

        first = rung()
        assert first["listing"] == served.ask("/api/runs").json["listing"]
        builder.step(0, {"w": np.ones(2, np.float32)})
        builder.flush()
        assert id_ in str(rung()["changed"])
        RunBuilder(tmp_path / "b").close()
        while "listing" not in (ring := rung()):
            pass
        assert ring["listing"] != first["listing"]
        connection.close()


# --- The verdict --------------------------------------------------------------


def test_a_verdict_tells_all_steps_where_every_tenth_is_recorded(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    with RunBuilder(run) as builder:
        for step in range(0, 400, 10):
            builder.step(step, {"w": np.ones(2, np.float32)}, mode_step=step)
    trial = create_trial(run)
    found = described(trial)
    assert found["verdict"]["sentence"].startswith("Trained for 391 steps.")
    assert (found["steps"], found["recorded"]) == (391, 40)
    wall = trial.step_table()["wall_ns"]
    assert found["rate"] == pytest.approx(390e9 / (wall[-1] - wall[0]))


def test_what_is_over_is_wrong_no_more(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with RunBuilder(run) as builder:
        builder.step(0, {"w": np.ones(2, np.float32)})
    begun = finding("LossSpike", "w", NAN_STEP, Severity.ERROR)
    ended = Finding.from_json({**begun.to_json(), "phase": "end", "step": 3000})
    add_findings(run, begun, ended)
    with dashboard(run) as served:
        document = served.ask(f"/api/run?run={served.run_id()}").json
    verdict = document["verdict"]
    assert (verdict["tone"], verdict["wrong"], verdict["recovered"]) == ("info", 0, 1)
    assert [each["over"] for each in document["findings"]] == [True]
