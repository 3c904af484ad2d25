"""What a notebook shows of runs, tensors and findings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tdbg
from report_runs import HOSTILE, LAYERS, NAN, Page, hostile_run, planted_run
from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.drawing.snippet import MOST_BYTES
from tdbg.modes import ModeKeys
from tdbg.run.findings import Finding, Severity
from tdbg.trial import Trial

FINDING = Finding(
    rule="ExplodingTensor",
    severity=Severity.ERROR,
    step=411,
    mode=ModeKeys.TRAIN,
    tensor="gradient/<b>fc</b>",
    message="1 NaN among 8 & more",
    advice="clip gradients",
    first_step=411,
    last_step=420,
)


def shown(value: object) -> Page:
    text = value._repr_html_()  # type: ignore[attr-defined]
    assert len(text.encode("utf-8", "backslashreplace")) < MOST_BYTES
    assert "<script" not in text
    return Page(text)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    path = tmp_path_factory.mktemp("runs") / "planted"
    planted_run(path)
    tdbg.rules.check(path)
    return tdbg.create_trial(path)


def test_a_run_shows_its_state_findings_losses_and_all_layers(planted: Trial) -> None:
    page = shown(planted)
    assert "600 recorded, from 0 to 599" in page.root.text
    assert "3 problems occurred and recovered: " in page.root.text
    assert "ExplodingTensor" in page.root.text
    said = [
        e.attributes["aria-label"]
        for e in page.root.all("svg")
        if e.attributes.get("role")
    ]
    assert [each.partition(".")[0] for each in said] == [
        "Losses",
        "Map of layers over steps: rms of gradients",
    ]
    names = [str(e.children[-1]) for e in page.root.all("text")]
    assert [f"layers.{i}.weight" for i in range(LAYERS)] == [
        name for name in names if name.startswith("layers.")
    ]


def test_a_spike_of_one_step_is_in_the_loss_of_a_run(planted: Trial) -> None:
    (said,) = (
        e.attributes["aria-label"]
        for e in shown(planted).root.all("svg")
        if e.attributes.get("aria-label", "").startswith("Losses")
    )
    assert "to 267" in said


def test_a_tensor_shows_its_course_and_where_it_is_not_finite(planted: Trial) -> None:
    page = shown(planted.tensor("gradient/layers.7.weight"))
    (svg,) = page.root.all("svg")
    assert "1 row with NaN or Inf" in svg.attributes["aria-label"]
    assert f"{NAN - NAN % 4}" in svg.attributes["aria-label"]
    assert "gradient" in page.root.text
    assert "600 recorded" in page.root.text


@pytest.mark.parametrize("name", ["loss_output_0", "scalar/optimizer/group_0/lr"])
def test_a_number_shows_its_value(planted: Trial, name: str) -> None:
    (svg,) = shown(planted.tensor(name)).root.all("svg")
    assert svg.attributes["aria-label"].startswith("value over steps.")


def test_losses_of_two_modes_are_two_lines(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        for step in range(20):
            mode = ModeKeys.EVAL if step % 5 == 4 else ModeKeys.TRAIN
            loss = np.array(1 / (step + 1), np.float32)
            run.save(step, "loss_output_0", loss, role=Role.LOSS)
            run.end_step(step, mode)
    text = shown(tdbg.create_trial(tmp_path / "run")).root.text
    assert "loss_output_0 (TRAIN)" in text
    assert "loss_output_0 (EVAL)" in text


def test_a_run_without_a_step_says_so(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run"):
        pass
    page = shown(tdbg.create_trial(tmp_path / "run"))
    assert "none yet" in page.root.text
    assert page.root.all("svg") == []


def test_a_damaged_run_shows_what_is_left(tmp_path: Path) -> None:
    planted_run(tmp_path / "run", 40)
    (shard,) = (tmp_path / "run").rglob("*.tds")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 400] = bytes(400)
    shard.write_bytes(content)
    for index in (tmp_path / "run").rglob("*.tdi"):
        index.unlink()
    trial = tdbg.create_trial(tmp_path / "run")
    assert trial.problems()
    assert "problem" in shown(trial).root.text


def test_hostile_names_are_text_and_keep_the_bound(tmp_path: Path) -> None:
    hostile_run(tmp_path / "run")
    trial = tdbg.create_trial(tmp_path / "run")
    for value in (trial, *(trial.tensor(name) for name in HOSTILE)):
        page = shown(value)
        assert not {"img", "script"} & {e.name for e in page.root.all("*")}


def test_a_map_of_many_layers_keeps_the_bound(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    names = [f"gradient/{'block' * 12}.{i}.{'weight' * 12}" for i in range(300)]
    with RunBuilder(tmp_path / "run") as run:
        for step in range(60):
            for name in names:
                array = random.normal(size=4).astype(
                    np.float32
                ) * 10.0 ** random.integers(9)
                run.save(step, name, array.astype(np.float32), what="statistics")
            run.end_step(step)
    page = shown(tdbg.create_trial(tmp_path / "run"))
    assert any(
        "Map of layers" in e.attributes["aria-label"]
        for e in page.root.all("svg")
        if "role" in e.attributes
    )
    assert "too large" not in page.root.text


def test_a_finding_says_where_what_and_what_to_do() -> None:
    page = shown(FINDING)
    assert "error ExplodingTensor" in page.root.text
    cells = [e.text for e in page.root.all("td")]
    assert cells == [
        "gradient/<b>fc</b>",
        "steps 411 to 420 (TRAIN)",
        "1 NaN among 8 & more",
        "clip gradients",
    ]
