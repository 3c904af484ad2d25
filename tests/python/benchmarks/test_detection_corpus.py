"""The corpus of sick and healthy trainings: complete, and what it says of itself.

That every predicate holds where it should and nowhere else takes minutes and is what
``python -m benchmarks.detection verify`` is for.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.detection import __main__ as program
from benchmarks.detection import table
from benchmarks.detection.judge import Judged, Named
from benchmarks.detection.kit import case
from benchmarks.detection.kit.case import HALVES, TWIN, Case, cases, load
from benchmarks.detection.kit.training import Training
from benchmarks.detection.verify import run, trouble
from tdbg.rules.registry import names
from tdbg.run.findings import Severity

pytestmark = pytest.mark.torch


def named(name: str) -> Case:
    load()
    return case.case_named(name)


@pytest.mark.parametrize(
    ("origin", "n_sick", "n_healthy"),
    [
        ("first", 75, 39),
        ("second", 57, 73),
        ("third", 45, 13),
        ("fourth", 52, 20),
        ("fifth", 0, 62),
        ("sixth", 80, 0),
        ("seventh", 0, 25),
        ("eighth", 0, 21),
    ],
)
def test_each_collection_is_complete(origin: str, n_sick: int, n_healthy: int) -> None:
    load()
    every = cases(origins=[origin])
    sick = [one for one in every if one.is_sick]
    healthy = [one for one in every if not one.is_sick]
    assert len(sick) == n_sick
    assert {one.twin_of for one in healthy} - {""} == {one.name for one in sick}
    assert sum(not one.twin_of for one in healthy) == n_healthy


def test_every_sick_case_says_all_that_it_must() -> None:
    load()
    for one in cases():
        if one.is_sick:
            assert one.named_by or one.cause, one.name
            assert one.named_by <= set(names()), one.name
            assert one.diagnosis, one.name
            assert "Source:" in one.story, one.name
            assert "Visible:" in one.story, one.name


def test_every_case_stands_with_its_kind() -> None:
    load()
    folders = {one.name: Path(one.source).parent.name for one in cases()}
    for one in cases():
        own_home = one.is_sick or one.twin_of
        assert (folders[one.name] != "healthy") == bool(own_home), one.name


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
        "from benchmarks.detection.kit.case import own\n"
        "@own.sick('DeadRelu', 'nothing')\n"
        "def one_of_ours(t):\n"
        "    for _ in t.steps(2):\n"
        "        t.visible(t.sick)\n"
    )
    load([file])
    assert run(named("one_of_ours"), 0).visible_at == 0
    assert run(named("one_of_ours.twin"), 0).visible_at is None


def test_the_case_on_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case, "_registered", {})
    page = Path(program.__file__).with_name("README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "mine.py"
    file.write_text(code)
    load([file])
    sick, twin = cases()
    assert trouble(sick, run(sick, 0)) == trouble(twin, run(twin, 0)) == ""


def test_a_twin_is_in_the_half_of_its_case_and_the_halves_are_halves() -> None:
    load()
    halves = {one.name: one.half for one in cases()}
    assert all(halves[name] == halves[name.removesuffix(TWIN)] for name in halves)
    sick = [one.half for one in cases(origins=["first"]) if one.is_sick]
    assert all(sick.count(half) > len(sick) / 3 for half in HALVES)


def test_a_case_whose_name_was_taken_stays_in_its_half() -> None:
    load()
    for origin in (case.first, case.second, case.third, case.fourth):
        for name, old_name in origin.formerly.items():
            digest = hashlib.sha256(old_name.encode()).digest()
            assert named(name).half == HALVES[digest[0] & 1]
            # Another case has the old name.
            assert named(old_name).origin != origin.origin


# Made so that each figure of the tables is another.
def judged(
    name: str,
    visible: int | None,
    *found: tuple[str, Severity, int],
    sick: bool = True,
    origin: str = "first",
) -> Judged:
    return Judged(
        case=name,
        seed=0,
        origin=origin,
        half=HALVES[0],
        is_sick=sick,
        named_by=frozenset({"DeadRelu"} if sick else ()),
        visible_at=visible,
        n_steps=100,
        findings=tuple(
            Named(rule=rule, severity=severity, step=step, tensor="t", message="m")
            for rule, severity, step in found
        ),
    )


def test_what_counts_as_found_and_as_in_time() -> None:
    warning, error, info = Severity.WARNING, Severity.ERROR, Severity.INFO
    early = judged("a", 20, ("DeadRelu", warning, 12), ("DeadRelu", error, 30))
    assert early.in_time
    assert early.delay == -8
    late = judged("b", 20, ("DeadRelu", error, 21), ("DeadRelu", info, 3))
    assert not late.in_time
    assert late.delay == 1
    other = judged("c", 20, ("Overfit", error, 3))
    assert other.found is None
    assert other.delay is None
    well = judged("d", None, ("Overfit", warning, 7), sick=False)
    rows = table.by_half([early, late, other, well]).rows
    assert rows[0][1:] == ["3", "2 (67%)", "1 (33%)", "-3.5, 1", "1", "0", "1"]
    assert [row[0] for row in table.missed([early, late, other]).rows] == ["b", "c"]
    assert table.false_alarms([early, well]).rows[0][:4] == [
        "d",
        HALVES[0],
        "warning",
        "Overfit",
    ]


def test_rows_of_tables_are_not_wider_than_a_page() -> None:
    long = "the loss has jumped to " + "0.1 and " * 40
    runs = [
        judged(
            "a_case_with_a_name",
            20,
            *[(f"Rule{i}", Severity.INFO, 3) for i in range(30)],
        )
    ]
    runs += [judged("well", None, ("LossSpike", Severity.WARNING, 3), sick=False)]
    runs[1] = replace(runs[1], findings=(replace(runs[1].findings[0], message=long),))
    (missed,) = table.missed(runs[:1]).rows
    assert re.fullmatch(r"Rule0(, Rule\d+)+ and \d+ more", missed[-1])
    for one in (table.missed(runs[:1]), table.false_alarms(runs)):
        widths = [len(line) for line in one.markdown().splitlines()]
        assert 100 < max(widths) <= 120


def test_each_collection_is_reported_by_itself() -> None:
    found = ("DeadRelu", Severity.WARNING, 3)
    ours = judged("a", 20, found)
    theirs = [judged("b", 20, origin="third"), judged("c", 20, found, origin="third")]
    rows = table.by_origin([ours, *theirs]).rows
    assert [row[:3] for row in rows] == [
        ["first", "1", "1 (100%)"],
        ["third", "2", "1 (50%)"],
    ]
    assert len(table.tables([ours])) == len(table.tables([ours, *theirs])) - 1


@pytest.mark.slow
def test_cases_are_recorded_once_and_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def judge(*more: str) -> list[dict[str, object]]:
        arguments = ["--only=constant_columns", "--seeds=1", "--jobs=1", "--json"]
        given = ["detection", *arguments, f"--cache={tmp_path}", *more]
        monkeypatch.setattr(sys, "argv", given)
        program.main()
        answer: list[dict[str, object]] = json.loads(capsys.readouterr().out)
        return answer

    sick, twin = judge()
    (outcome,) = tmp_path.glob("*/constant_columns/*/outcome.json")
    written = outcome.stat().st_mtime_ns
    assert sick["visible_at"] == 0
    assert sick["delay"] == 0
    assert not [one for one in twin["findings"] if one["rule"] == "ExplodingTensor"]
    # Another rule only, over the same recording.
    (sick, _) = judge("--rules", "DeadRelu")
    assert sick["delay"] is None
    assert outcome.stat().st_mtime_ns == written
