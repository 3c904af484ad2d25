"""The view of a run: steps, last loss, problems and the sentence about them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planted import add_findings, finding
from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.findings import Cause, Finding, Severity, Stage
from tdbg.trial import LostRecords, RunOverhead, WriterLostRecords, create_trial
from tdbg.view import (
    Coverage,
    Diagnosis,
    Head,
    Verdict,
    diagnosis_of,
    file_problems,
    verdict_of,
    view_of,
)

QUIET = {"A": {"status": "NoIssuesFound", "message": ""}}


def head(**changes: object) -> Head:
    known = Head(
        state="closed",
        steps=1263,
        evaluated=0,
        step_word="step",
        recorded=1263,
        first_step=0,
        last_step=1262,
        first_global_step=0,
        last_global_step=1262,
        wall=None,
        rate=None,
        stopped=None,
        created="",
        bytes=0,
        damaged_files=0,
        incomplete=0,
        damaged=0,
        ranks=1,
        absent=(),
        coverage=Coverage(),
        overhead=RunOverhead(),
        lost_records=LostRecords(),
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def judged(*findings: Finding, **changes: object) -> Verdict:
    return verdict_of(head(**changes), diagnosis_of(findings, QUIET))


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("closed", "Trained for 1,263 steps. 1 rule found nothing wrong."),
        ("dead", "Killed after 1,263 steps. 1 rule found nothing wrong."),
        ("running", "Training, 1,263 steps so far. 1 rule found nothing wrong."),
    ],
)
def test_the_state_of_the_training_begins_the_sentence(
    state: str, sentence: str
) -> None:
    assert judged(state=state).sentence == sentence


def test_only_a_whole_run_that_went_well_is_green() -> None:
    assert judged().tone == "ok"
    assert judged(state="running").tone == "ok"
    assert judged(state="dead").tone == "info"
    lost = LostRecords((WriterLostRecords("rank-0", records=100),))
    lossy = judged(lost_records=lost)
    assert lossy.tone == "info"
    assert "Data is missing: 100 records lost." in lossy.sentence
    late = judged(incomplete=7)
    assert late.tone == "info"
    assert "7 steps not recorded by all ranks" in late.sentence


@pytest.mark.parametrize("place", [0.3, 0.5, 0.7])
def test_a_run_that_is_damaged_inside_is_not_green(
    tmp_path: Path, place: float
) -> None:
    """The index answers for the shard, so that nothing of it is read on opening."""
    with RunBuilder(tmp_path / "run") as run:
        for step in range(200):
            run.save(step, "gradient/w", np.arange(64, dtype=np.float32) + step)
            run.end_step(step)
    calm = diagnosis_of([], QUIET)
    assert view_of(create_trial(tmp_path / "run"), calm).verdict.tone == "ok"
    (shard,) = (tmp_path / "run").rglob("*.tds")
    content = bytearray(shard.read_bytes())
    at = int(place * len(content))
    content[at : at + 64] = bytes(~byte & 0xFF for byte in content[at : at + 64])
    shard.write_bytes(content)
    found = view_of(create_trial(tmp_path / "run"), calm)
    assert found.verdict.tone == "info"
    assert "Data is missing: some of its files are damaged." in found.verdict.sentence
    assert file_problems(create_trial(tmp_path / "run"))[0].kind == "damage"


def test_a_rule_that_raised_is_said_and_is_not_nothing_wrong() -> None:
    statuses = {**QUIET, "B": {"status": "Error", "message": "ValueError: no"}}
    said = verdict_of(head(), diagnosis_of([], statuses))
    assert said.tone == "warning"
    assert said.sentence.endswith(
        "1 rule failed and judged nothing: B. 1 other rule found nothing wrong."
    )
    sick = finding("ExplodingTensor", "w", 3, Severity.ERROR)
    said = verdict_of(head(), diagnosis_of([sick], statuses))
    assert said.sentence.endswith("1 rule failed and judged nothing: B.")
    assert (said.tone, said.wrong) == ("error", 1)


def test_findings_of_info_accuse_nothing() -> None:
    said = judged(finding("TrainingSetup", "model", 3, Severity.INFO))
    assert (said.tone, said.wrong, said.notes) == ("info", 0, 1)
    assert said.sentence.endswith("Nothing is wrong; 1 note: TrainingSetup in model.")


def test_problems_are_counted_by_rule_and_the_worst_is_named() -> None:
    one = finding("ExplodingTensor", "w", 3, Severity.WARNING)
    assert judged(one).sentence.endswith("One thing is wrong: ExplodingTensor in w.")
    two = [finding("VanishingGradient", f"g{i}", 5, Severity.ERROR) for i in range(3)]
    said = judged(one, *two)
    assert (said.tone, said.wrong) == ("error", 2)
    assert said.sentence.endswith(
        "2 things are wrong, the worst: VanishingGradient in g0 and 2 more."
    )


def test_the_cause_comes_first_and_what_follows_is_no_fault_of_its_own() -> None:
    cause = finding("WeightUpdateRatio", "w", 3, Severity.WARNING)
    grave = replace(
        finding("DeadRelu", "a", 9, Severity.ERROR),
        cause=Cause("WeightUpdateRatio", "w", 3),
    )
    other = finding("LossSpike", "l", 1, Severity.WARNING)
    diagnosis = diagnosis_of([grave, other, cause], QUIET)
    found = [each.rule for each in diagnosis.problems]
    assert found == ["WeightUpdateRatio", "DeadRelu", "LossSpike"]
    said = verdict_of(head(), diagnosis)
    assert (said.tone, said.wrong) == ("error", 2)
    assert said.advice == cause.advice
    # Whoever looks for errors finds the run, by its cause.
    assert (said.tone, diagnosis.counts["error"]) == ("error", 1)
    assert "the worst: WeightUpdateRatio in w, with 1 consequence." in said.sentence
    # What it brought about is over: no reason to look there first.
    gone = replace(grave, phase="end", step=12)
    early = finding("LossSpike", "l", 1, Severity.ERROR)
    first = diagnosis_of([cause, grave, gone, early], QUIET).problems[0]
    assert first.rule == "LossSpike"


def test_of_equally_grave_ones_facts_come_first_and_lost_time_last() -> None:
    def told(rule: str, step: int, stage: Stage, severity: Severity) -> Finding:
        return replace(finding(rule, "w", step, severity), stage=stage)

    found = diagnosis_of(
        [
            told("Slow", 0, Stage.CONTENTION, Severity.WARNING),
            told("Symptom", 3, Stage.LEARNING, Severity.WARNING),
            told("Fact", 900, Stage.SETUP, Severity.WARNING),
            told("Grave", 950, Stage.LEARNING, Severity.ERROR),
        ],
        QUIET,
    )
    rules = [each.rule for each in found.problems]
    assert rules == ["Grave", "Fact", "Symptom", "Slow"]


def test_what_is_over_is_wrong_no_more() -> None:
    begun = finding("LossSpike", "w", 7, Severity.ERROR)
    said = judged(begun, replace(begun, phase="end", step=30))
    assert (said.tone, said.wrong, said.recovered) == ("info", 0, 1)
    assert said.sentence.endswith(
        "1 problem occurred and recovered: LossSpike in w; nothing is wrong now."
    )


def test_a_run_without_steps_or_rules_is_not_judged() -> None:
    assert verdict_of(head(), Diagnosis()).tone == "unjudged"
    assert verdict_of(head(recorded=0), Diagnosis()).sentence == "Nothing was recorded."
    waiting = verdict_of(head(recorded=0, state="running"), Diagnosis())
    assert (waiting.tone, waiting.sentence) == (
        "starting",
        "Waiting for the first step.",
    )


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 training steps, 40 of evaluation behind each 15; and two losses."""
    path = tmp_path_factory.mktemp("runs") / "evaluated"
    step = 0
    with RunBuilder(path) as run:
        for epoch in range(4):
            for mode, n in ((ModeKeys.TRAIN, 15), (ModeKeys.EVAL, 10)):
                for i in range(n):
                    value = 1 / (1 + epoch * 15 + i) + 10 * (mode is ModeKeys.EVAL)
                    loss = np.array(value, np.float32)
                    run.save(step, "loss_output_0", loss, role=Role.LOSS)
                    pixels = np.full(5, 0.00162, np.float32)
                    run.save(step, "a_loss_by_pixel", pixels, role=Role.LOSS)
                    part = np.full(1, 0.5, np.float32)
                    run.save(step, "class_loss_output_0", part, role=Role.LOSS)
                    run.end_step(step, mode)
                    step += 1
    return path


def test_steps_are_training_steps_and_evaluation_stands_apart(evaluated: Path) -> None:
    found = view_of(create_trial(evaluated)).head
    assert (found.steps, found.evaluated, found.recorded) == (60, 40, 100)
    assert found.counted_steps == "60 steps"


def test_the_last_loss_is_the_whole_one_of_training(evaluated: Path) -> None:
    loss = view_of(create_trial(evaluated)).loss
    assert loss is not None
    assert (loss.name, loss.mode, loss.mode_step) == (
        "loss_output_0",
        ModeKeys.TRAIN,
        59,
    )
    assert loss.value == pytest.approx(1 / 60)
    assert loss.text == "0.01667"


def test_all_steps_count_where_every_tenth_is_recorded(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with RunBuilder(run) as builder:
        for step in range(0, 400, 10):
            builder.step(step, {"w": np.ones(2, np.float32)}, mode_step=step)
    trial = create_trial(run)
    assert view_of(trial).head.steps == 391
    assert view_of(trial).loss is None


def test_what_a_run_holds_is_a_document(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with RunBuilder(run) as builder:
        builder.step(0, {"w": np.ones(2, np.float32)})
    add_findings(run, finding("LossSpike", "w", 0, Severity.ERROR))
    document = view_of(create_trial(run)).to_json()
    assert document["verdict"]["wrong"] == 1
    assert document["problems"][0]["rule"] == "LossSpike"
    assert document["steps"] == 1
    assert document["last_loss"] is None
