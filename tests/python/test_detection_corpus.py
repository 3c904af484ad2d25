"""The corpus of sick and healthy trainings: complete, and what it says of itself.

That every predicate holds where it should and nowhere else takes minutes and is what
``python -m benchmarks.detection verify`` is for.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.detection.corpus import case
from benchmarks.detection.corpus.case import TWIN, Case, cases, load
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.verify import run, trouble

pytestmark = pytest.mark.torch


def named(name: str) -> Case:
    load()
    (found,) = (one for one in cases(name) if one.name == name)
    return found


def test_there_are_as_many_as_were_promised() -> None:
    load()
    every = cases()
    sick = [one for one in every if one.is_sick]
    alone = [one for one in every if not one.is_sick and not one.twin_of]
    assert len(sick) >= 40
    assert len(alone) >= 25
    assert len(every) == 2 * len(sick) + len(alone)


def test_every_sick_case_says_all_that_it_must() -> None:
    load()
    names = {one.name for one in cases()}
    for one in cases():
        if one.is_sick:
            assert one.name + TWIN in names
            assert one.named_by, one.name
            assert one.diagnosis, one.name
            assert "Source:" in one.story, one.name
            assert "Visible:" in one.story, one.name


def test_a_fault_is_visible_in_the_sick_training_and_not_in_its_twin() -> None:
    sick, twin = named("split_of_sorted_rows"), named("split_of_sorted_rows.twin")
    seen, not_seen = run(sick, 0), run(twin, 0)
    assert seen.visible_at is not None
    assert not_seen.visible_at is None
    assert trouble(sick, seen) == ""
    assert trouble(twin, not_seen) == ""
    # Confused, both are reported.
    assert "though healthy" in trouble(twin, seen)
    assert "never visible" in trouble(sick, not_seen)


def test_steps_of_evaluation_are_counted_as_a_hook_counts_them() -> None:
    outcome = run(named("robust_regression"), 0)
    assert outcome.n_steps == 150
    # An evaluation after each 25th step.
    assert outcome.global_steps[24:27] == [24, 26, 27]
    assert outcome.global_steps[-1] == 149 + 5


def test_a_healthy_training_that_learns_nothing_is_in_trouble() -> None:
    def idle(t: Training) -> None:
        for _ in t.steps(3):
            pass
        t.learned(False)

    changed = replace(named("regression"), program=idle)
    assert trouble(changed, run(changed, 0)) == "healthy, but has not learned"


def test_cases_are_added_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case, "_registered", {})
    file = tmp_path / "more.py"
    file.write_text(
        "from benchmarks.detection.corpus.case import sick\n"
        "@sick(named_by={'DeadRelu'}, diagnosis='nothing')\n"
        "def one_of_ours(t):\n"
        "    for _ in t.steps(2):\n"
        "        t.visible(t.sick)\n"
    )
    load([file])
    assert run(named("one_of_ours"), 0).visible_at == 0
    assert run(named("one_of_ours.twin"), 0).visible_at is None
