"""What a report says of a run: findings, evidence, layers, and what is not there."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import zlib
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest

import tdbg
from report_runs import LAYERS, NAN, SPIKE, Element, Page, planted_run
from run_builder import RunBuilder, simple_run
from tdbg import _core, report
from tdbg.config import Role
from tdbg.drawing.heat_map import BAD, LEFT, RIGHT, WIDTH
from tdbg.modes import ModeKeys
from tdbg.report.sections.workers import step_time
from tdbg.report.subject import Subject
from tdbg.run.directory import create_run
from tdbg.run.schema import EventKind
from tdbg.view import Diagnosis

CORPUS = Path(__file__).parents[3] / "corpus" / "v1"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "planted"
    planted_run(path, 2000)
    return path


@pytest.fixture(scope="module")
def page(planted: Path) -> Page:
    return Page(report.render(tdbg.create_trial(planted)))


def rendered(path: Path) -> Page:
    return Page(report.render(tdbg.create_trial(path)))


def pixels(image: Element) -> np.ndarray:
    """The entries of the palette of an embedded PNG."""
    content = b64decode(image.attributes["href"].partition(",")[2])
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    at, chunks = 8, {}
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        (checksum,) = struct.unpack(">I", content[at + 8 + length : at + 12 + length])
        assert checksum == zlib.crc32(kind + data)
        chunks[kind] = data
        at += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8)
    return rows.reshape(height, width + 1)[:, 1:]


def points(path: Element) -> np.ndarray:
    return np.array(
        re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.attributes["d"]), float
    )


def step_of(x: float, last: int, left: float = 66, right: float = 746) -> float:
    return (x - left) / (right - left) * last


# --- Verdict and findings ---------------------------------------------------------


def test_a_run_nobody_judged_is_judged_for_the_report(page: Page) -> None:
    assert page.verdict.startswith(("recovered", "error", "warning"))
    rules = {each.text for each in page.section("findings").all("h3")}
    assert any("ExplodingTensor in gradient/layers.7.weight" in each for each in rules)
    assert any("LossSpike in loss_output_0" in each for each in rules)


def test_what_the_run_holds_of_a_diagnosis_is_shown_as_it_is(tmp_path: Path) -> None:
    planted_run(tmp_path / "run")
    tdbg.rules.check(tmp_path / "run", ["LossSpike"])
    found = rendered(tmp_path / "run")
    assert len(found.section("findings").all("h3")) == 1
    assert "LossSpike" in found.section("rules").text
    assert "ExplodingTensor" not in found.section("rules").text


def test_a_report_of_an_engine_is_shown_instead_if_given(tmp_path: Path) -> None:
    planted_run(tmp_path / "run")
    judged = tdbg.rules.check(tmp_path / "run", ["ExplodingTensor"], record=False)
    found = Page(report.render(tdbg.create_trial(tmp_path / "run"), judged=judged))
    assert "ExplodingTensor" in found.section("rules").text
    assert "LossSpike" not in found.section("rules").text


def test_a_sick_run_says_first_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        for step in range(60):
            array = np.full(4, np.nan if step > 20 else 1.0, np.float32)
            run.step(step, {"fc.weight": array})
    found = rendered(tmp_path / "run")
    assert (
        "Trained for 60 steps. One thing is wrong: ExplodingTensor in " in found.verdict
    )
    (banner,) = found.root.all("div", "verdict")
    assert "What to do: " in banner.text
    assert banner.attributes["class"] == "verdict tone-error"


def test_advice_and_measurements_stand_with_the_finding(page: Page) -> None:
    text = page.section("findings").text
    assert f"Since step {SPIKE}" in text
    assert f"Since step {NAN}" in text
    assert "The rule measured" in text
    assert "threshold" in text


def test_the_threshold_of_a_finding_is_a_line_across_its_evidence(page: Page) -> None:
    spike = next(
        each
        for each in page.section("findings").all("svg")
        if "Evidence of LossSpike" in each.attributes["aria-label"]
    )
    (line,) = [e for e in spike.all("line") if e.attributes["class"] == "limit"]
    (label,) = [e for e in spike.all("text") if e.attributes.get("class") == "limit"]
    assert re.fullmatch(r"threshold \d+\.\d+", label.text)
    # What was planted rises above the line, all else lies below it.
    at = float(line.attributes["y1"])
    ys = np.concatenate([points(p)[:, 1] for p in spike.all("path")])
    assert ys.min() < at
    assert np.median(ys) > at


def test_a_finding_about_what_is_no_tensor_has_no_chart(tmp_path: Path) -> None:
    simple_run(tmp_path / "run")
    trial = tdbg.create_trial(tmp_path / "run")
    judged = tdbg.rules.check(tmp_path / "run", ["AllZero"], record=False)
    finding = tdbg.rules.Finding(
        rule="AllZero",
        severity=tdbg.rules.Severity.WARNING,
        step=1,
        mode=ModeKeys.TRAIN,
        tensor="no tensor of that name",
        message="all of it is zero",
        first_step=1,
        last_step=1,
    )
    given = tdbg.rules.Report(
        run=judged.run,
        findings=(finding,),
        statuses=judged.statuses,
        n_steps=5,
        last_step=4,
    )
    found = Page(report.render(trial, judged=given))
    assert "all of it is zero" in found.section("findings").text
    assert found.section("findings").all("svg") == []


# --- Nothing is sampled -----------------------------------------------------------


def test_the_spike_of_one_step_is_the_top_of_the_loss_chart(page: Page) -> None:
    (chart,) = (
        each
        for each in page.section("losses").all("svg")
        if each.attributes["aria-label"].startswith("Losses")
    )
    # 2,000 steps on 600 columns: the spike is in the area, where the mean is not.
    (area,) = chart.all("path", "range")
    top = points(area)[np.argmin(points(area)[:, 1])]
    assert abs(step_of(top[0], 1999) - SPIKE) < 8
    assert "to 267" in chart.attributes["aria-label"]


def test_the_spike_is_in_the_map_of_gradients(page: Page) -> None:
    (image, *_) = page.section("layers").all("image", "map")
    levels = pixels(image)
    row, column = np.unravel_index(levels.argmax(), levels.shape)
    assert row == 3
    at = step_of(column, 2000, 0, levels.shape[1])
    assert abs(at - SPIKE) < 16


def test_one_nan_of_24000_rows_is_marked_in_the_map(page: Page) -> None:
    (image, *_) = page.section("layers").all("image", "map")
    rows, columns = np.nonzero(pixels(image) == BAD)
    assert set(rows.tolist()) == {7}
    assert abs(step_of(columns.mean(), 2000, 0, pixels(image).shape[1]) - NAN) < 16
    (drawing, *_) = page.section("layers").all("svg")
    (strip,) = (e for e in drawing.all("rect", "bad"))
    at = step_of(float(strip.attributes["x"]), 2000, LEFT, WIDTH - RIGHT)
    assert abs(at - NAN) < 16


def test_one_nan_has_a_mark_in_the_strip_of_its_evidence(page: Page) -> None:
    (chart,) = (
        each
        for each in page.section("findings").all("svg")
        if "ExplodingTensor" in each.attributes["aria-label"]
    )
    (mark,) = chart.all("rect", "bad")
    assert float(mark.attributes["width"]) >= 2.5
    assert abs(step_of(float(mark.attributes["x"]), 1999) - NAN) < 10
    said = chart.attributes["aria-label"]
    assert "1 row with NaN or Inf, the first in steps 408 to 411" in said


def test_a_finding_is_flagged_in_the_row_of_its_layer(page: Page) -> None:
    (drawing, *_) = page.section("layers").all("svg")
    flags = drawing.all("path", "flagged")
    titles = {flag.all("title")[0].text for flag in flags}
    assert any("ExplodingTensor: gradient/layers.7.weight" in each for each in titles)
    assert any("ExplodingGradient: gradient/layers.3.weight" in each for each in titles)


def test_values_a_logarithmic_axis_has_no_place_for_get_a_strip(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        for step in range(50):
            value = -1.0 if step == 30 else 10.0 ** (step % 5)
            one = np.array(value, np.float32)
            run.save(step, "loss_output_0", one, what="statistics", role=Role.LOSS)
            run.end_step(step)
    (chart, *_) = rendered(tmp_path / "run").section("losses").all("svg")
    (mark,) = chart.all("rect", "beyond")
    assert abs(step_of(float(mark.attributes["x"]), 49) - 30) < 1
    assert "≤ 0" in chart.text


# --- Layers -----------------------------------------------------------------------


def test_layers_are_in_the_order_in_which_they_came(page: Page) -> None:
    (drawing, *_) = page.section("layers").all("svg")
    names = [each.attributes and each.text for each in drawing.all("text", "name")]
    # The text of a name is also in its title.
    assert [each[len(each) // 2 :] for each in names] == [
        f"layers.{i}.weight" for i in range(LAYERS)
    ]


def test_updates_that_were_not_captured_name_the_setting(page: Page) -> None:
    assert 'Hook(include_collections=["updates"])' in page.section("layers").text


def test_the_ratio_of_update_and_weight_is_drawn_where_both_are(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        for step in range(10):
            weight = np.full(4, 2.0, np.float32)
            run.save(step, "fc.weight", weight)
            run.save(step, "update/fc.weight", weight * 1e-3, role=Role.UPDATE)
            run.end_step(step)
    drawings = rendered(tmp_path / "run").section("layers").all("svg")
    (ratio,) = (d for d in drawings if "update relative" in d.attributes["aria-label"])
    assert "from 0.001 to 0.001" in ratio.attributes["aria-label"]


def test_the_flow_has_a_dot_a_layer_at_start_middle_and_end(page: Page) -> None:
    (drawing,) = page.section("flow").all("svg")
    assert len(drawing.all("circle")) == 3 * LAYERS
    legend = [each.text for each in page.section("flow").all("li")]
    assert legend[:3] == ["step 0", "step 1,000", "step 1,999"]


def test_a_thousand_parameters_share_rows_and_lose_no_nan(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        for step in range(4):
            for i in range(1000):
                array = np.ones(2, np.float32)
                if (step, i) == (2, 777):
                    array[0] = np.inf
                run.save(step, f"gradient/l{i}.weight", array, what="statistics")
            run.end_step(step)
    found = rendered(tmp_path / "run")
    (image, *_) = found.section("layers").all("image", "map")
    levels = pixels(image)
    assert levels.shape[0] == 250
    rows = set(np.nonzero(levels == BAD)[0].tolist())
    assert rows == {777 // 4}
    assert len(found.source) < 1_000_000


# --- Histograms -------------------------------------------------------------------


def test_histograms_are_those_of_the_accused_tensors(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with RunBuilder(tmp_path / "run") as run:
        for step in range(40):
            sick = random.normal(size=100).astype(np.float32)
            if step > 10:
                sick[:3] = np.nan
            for name, array in (("sick.weight", sick), ("well.weight", sick * 0 + 1)):
                run.histogram(step, name, array)
                run.save(step, name, array, what="statistics")
            run.end_step(step)
    section = rendered(tmp_path / "run").section("histograms")
    headings = [each.text for each in section.all("h3")]
    assert headings[0] == "sick.weight"
    (chart, *_) = section.all("svg")
    assert len(chart.all("path", "ridge")) == 7
    assert "3 NaN" in chart.text


def test_values_stand_in_for_histograms_and_types_that_lose_are_named(
    tmp_path: Path,
) -> None:
    with RunBuilder(tmp_path / "run") as run:
        for step in range(3):
            run.step(step, {"fc.weight": np.full(64, 1e-7, np.float32)})
    section = rendered(tmp_path / "run").section("histograms")
    (table,) = section.all("table")
    row = [cell.text for cell in table.all("tbody")[0].all("td")]
    header = [cell.text for cell in table.all("thead")[0].all("th")][1:]
    told = dict(zip(header, row, strict=True))
    assert told["bfloat16"] == "0"
    assert told["float8_e4m3fn"] == "100.00 %"


def test_without_histograms_the_setting_is_named(page: Page) -> None:
    assert "save_histogram=True" in page.section("histograms").text


# --- Workers, rules, settings -----------------------------------------------------


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (
            {"accelerators": ["H200"], "cpu": "Xeon", "cores": 8, "memory": 64e9},
            "H200, Xeon, 8 cores",
        ),
        ({"cores": 1, "memory": 3_000_000_000}, "1 core, 3.0 GB of memory"),
        ({"cores": "8", "accelerators": "all"}, "unknown"),
        ("fast", "unknown"),
    ],
)
def test_the_facts_name_the_machine_as_far_as_it_is_known(
    tmp_path: Path, told: object, shown: str
) -> None:
    with RunBuilder(tmp_path / "run") as run:
        content = json.dumps({"hardware": told}).encode()
        run.capture.event(-1, EventKind.CONFIGURATION, 0, content)
        run.step(0, {"w": np.ones(2, np.float32)})
    rows = rendered(tmp_path / "run").section("run").all("tr")
    (row,) = [each.text for each in rows if each.text.startswith("Hardware")]
    assert row.removeprefix("Hardware") == shown


def test_each_worker_has_a_row_with_its_state_and_loss(tmp_path: Path) -> None:
    for rank in range(2):
        with RunBuilder(tmp_path / "run", rank=rank, world_size=2) as run:
            for step in range(3):
                one = np.array(rank + 1.0, np.float32)
                run.save(step, "loss_output_0", one, role=Role.LOSS)
                run.end_step(step)
    section = rendered(tmp_path / "run").section("workers")
    rows = [row.text for row in section.all("tbody")[0].all("tr")]
    assert rows == ["worker_0closed1", "worker_1closed2"]


def test_the_time_of_a_step_is_the_mean_of_its_workers(tmp_path: Path) -> None:
    for rank in range(2):
        with RunBuilder(tmp_path / "run", rank=rank, world_size=2) as run:
            for step in range(3):
                run.save(step, "w", np.ones(2, np.float32))
                run.end_step(step, duration_ns=(2 + 2 * rank) * 1_000_000)
    subject = Subject(tdbg.create_trial(tmp_path / "run"), Diagnosis())
    assert step_time(subject).mean.tolist() == [3.0, 3.0, 3.0]


def test_rules_are_rows_of_the_settings_below_those_of_the_user(tmp_path: Path) -> None:
    rule = {"name": "AllZero", "threshold": 100.0, "collections": ["outputs", "inputs"]}
    hook = {"rules": [rule], "needs": [{"interval": 1}], "naming": "tdbg"}
    with RunBuilder(tmp_path / "run") as run:
        content = json.dumps({"hook": hook}).encode()
        run.capture.event(-1, EventKind.CONFIGURATION, 0, content)
        run.step(0, {"fc.weight": np.ones(4, np.float32)})
    tables = rendered(tmp_path / "run").section("settings").all("table")
    rows = [
        [[cell.text for cell in row.children] for row in table.all("tr")[1:]]
        for table in tables
    ]
    assert rows == [
        [["naming", "tdbg"]],
        [
            ["rules: AllZero", "threshold 100.0; collections outputs, inputs"],
            ["needs[0]", "interval 1"],
        ],
    ]


def test_rules_without_anything_to_judge_by_are_told_apart(page: Page) -> None:
    section = page.section("rules")
    heads = [each.text for each in section.all("h3")]
    assert heads[-2:] == ["Nothing to judge by", "Do not apply to this training"]
    judged, blind, inapplicable = section.all("table")
    assert "TreeDepth" not in blind.text
    assert "LossSpikefound something1" in judged.text
    assert "TreeDepth" in inapplicable.text
    assert "this training has no boosted trees" in inapplicable.text


def test_how_to_reproduce_names_run_tensor_and_identity(
    planted: Path, page: Page
) -> None:
    text = page.section("reproduce").text
    assert "tdbg report planted" in text
    assert "tdbg show planted gradient/layers.7.weight" in text
    assert tdbg.create_trial(planted).uuid in text


# --- Runs with less in them -------------------------------------------------------


def test_an_empty_run_has_a_report_that_says_so(tmp_path: Path) -> None:
    RunBuilder(tmp_path / "run").close()
    found = rendered(tmp_path / "run")
    assert found.verdict == "nothing yetNothing was recorded."
    assert "Layer map" not in found.titles
    assert "No loss was recorded" in found.section("losses").text


def test_a_run_that_goes_on_says_so(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    for step in range(3):
        run.step(step, {"fc.weight": np.ones(4, np.float32)})
    run.flush()
    found = rendered(tmp_path / "run")
    assert "Training, 3 steps so far" in found.verdict
    run.close()


def test_a_training_that_was_stopped_says_so_and_why(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        for step in range(0, 30, 10):
            builder.step(step, {"fc.weight": np.ones(4, np.float32)}, mode_step=step)
        told = {"training": "stopped", "reason": "seen enough"}
        content = json.dumps(told).encode()
        builder.capture.event(-1, EventKind.STATUS, 0, content)
    found = rendered(tmp_path / "run")
    assert "Trained for 21 steps, then stopped." in found.verdict
    assert "it was stopped: seen enough" in found.section("run").text


def test_damage_is_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    simple_run(tmp_path / "run", range(200))
    (shard,) = (tmp_path / "run").rglob("*.tds")
    (index,) = (tmp_path / "run").rglob("*.tdi")
    index.unlink()
    os.truncate(shard, shard.stat().st_size // 2)
    found = rendered(tmp_path / "run")
    assert "Damage" in [each.text for each in found.section("run").all("h3")]
    assert "000001.tds" in found.section("run").text
    assert found.section("layers").all("svg")
    assert "How to reproduce" in found.titles


def test_what_cannot_be_read_is_told_at_the_end(tmp_path: Path) -> None:
    simple_run(tmp_path / "run", range(20))
    (shard,) = (tmp_path / "run").rglob("*.tds")
    content = shard.read_bytes()
    value = tdbg.create_trial(tmp_path / "run").tensor("fc.weight").value(0).tobytes()
    assert value in content
    shard.write_bytes(content.replace(value, bytes(len(value))))
    section = rendered(tmp_path / "run").section("reproduce")
    assert "What could not be read for this page" in section.text
    assert "fc.weight at 0" in section.text


def recorded_steps(expected: Path) -> set[int]:
    """Return the steps that a case of the corpus has: none, if it is of samples."""
    lines = map(json.loads, expected.read_text().splitlines())
    return {line[1] for line in lines if line[0] in ("row", "tensor", "step", "scalar")}


@pytest.mark.parametrize("case", sorted(each.name for each in CORPUS.iterdir()))
def test_runs_of_older_versions_have_reports(tmp_path: Path, case: str) -> None:
    (writer,) = (each for each in (CORPUS / case).iterdir() if each.is_dir())
    run = create_run(tmp_path / "run").path
    document = json.loads((run / "RUN.json").read_text())
    identity = _core.RunReader(str(writer)).identity()
    document["uuid"] = identity["run"].hex()
    (run / "RUN.json").write_text(json.dumps(document))
    shutil.copytree(writer, run / "w" / writer.name)
    trial = tdbg.create_trial(run)
    steps = recorded_steps(CORPUS / case / "expected.jsonl")
    assert bool(trial.count_steps(show_incomplete_steps=True)) == bool(steps)
    assert rendered(run).titles[-1] == "How to reproduce"
