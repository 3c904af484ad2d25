"""What counts as the cause, a symptom, or silence, and what words name a cause."""

from __future__ import annotations

import re

import pytest

from benchmarks.detection.kit.case import HALVES, Case, Collection, cases, load
from benchmarks.detection.kit.causes import CAUSES
from benchmarks.detection.kit.harm import conclude
from benchmarks.detection.kit.training import Training
from benchmarks.detection.told import (
    Told,
    accused_table,
    read,
    told_by_class,
    told_table,
)
from tdbg.modes import ModeKeys
from tdbg.run.findings import Finding, Phase, Severity
from tdbg.view import Problem, diagnosis_of

pytestmark = pytest.mark.torch

LEAK = Case(
    name="leak",
    program=lambda _: None,
    origin="own",
    half=HALVES[0],
    is_sick=True,
    cause=CAUSES["sees what comes later"],
)


def said(
    rule: str,
    message: str,
    advice: str = "",
    severity: Severity = Severity.WARNING,
    phase: Phase = "begin",
) -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        step=3,
        mode=ModeKeys.TRAIN,
        tensor=rule,
        message=message,
        advice=advice,
        first_step=3,
        last_step=3,
        phase=phase,
    )


def problems(*findings: Finding) -> tuple[Problem, ...]:
    return diagnosis_of(findings, {}).problems


CAUSE = said("Causality", "outputs depend on later tokens", "pass a causal mask")
OTHER = said("DeadRelu", "40 of 64 units are dead", severity=Severity.ERROR)


def test_the_cause_is_named_first_only_if_nothing_is_printed_before_it() -> None:
    alone = read(LEAK, problems(CAUSE))
    assert (alone.place, alone.n_problems, alone.is_mended) == (1, 1, True)
    behind = read(LEAK, problems(CAUSE, OTHER))
    assert (behind.place, behind.n_problems) == (2, 2)


def test_a_true_finding_of_something_else_is_a_symptom() -> None:
    other = read(LEAK, problems(OTHER))
    assert (other.place, other.n_problems) == (0, 1)
    assert not other.is_mended


def test_a_note_names_and_does_not_accuse() -> None:
    note = said("Causality", "depends on later tokens", severity=Severity.INFO)
    noted = read(LEAK, problems(note))
    assert (noted.place, noted.n_problems, noted.is_noted) == (0, 0, True)


def test_what_is_gone_at_the_end_is_counted_apart() -> None:
    gone = read(LEAK, problems(OTHER, said("DeadRelu", "awake", phase="end")))
    assert (gone.n_problems, gone.n_gone) == (0, 1)
    assert (gone.accused_by, gone.gone_by) == ((), ("DeadRelu",))


def test_rows_add_up() -> None:
    def one(*, sick: bool = True, problems: int = 0, **more: object) -> Told:
        return Told(
            case="c",
            half=HALVES[0],
            is_sick=sick,
            n_problems=problems,
            **more,  # type: ignore[arg-type]
        )

    every = [
        one(problems=1, place=1, is_mended=True),
        one(problems=2, place=2),
        one(is_noted=True),
        one(problems=1),
        one(),
        one(sick=False, problems=1),
        one(sick=False),
    ]
    first, _, whole = told_table(every).rows
    counts = ["5", "1 (20%)", "2 (40%)", "1", "1", "1", "1", "2", "1 (50%)", "0"]
    assert first[1:] == whole[1:] == counts
    of_losses, _ = told_by_class([one(problems=1, place=1, of_class="losses")]).rows
    assert of_losses[:3] == [f"losses, {HALVES[0]}", "1", "1 (100%)"]


def test_healthy_runs_are_counted_by_the_rule_that_accuses_them() -> None:
    def one(half: str, *rules: str, gone: tuple[str, ...] = ()) -> Told:
        return Told(
            case="c",
            half=half,
            is_sick=False,
            n_problems=len(rules),
            accused_by=rules,
            gone_by=gone,
        )

    tuning, held_out = HALVES
    table = accused_table(
        [
            one(tuning, "DeadRelu", "DeadRelu"),
            one(tuning, gone=("DeadRelu", "LossSpike")),
            one(held_out, "LossSpike"),
            one(held_out),
        ]
    )
    assert table.rows == [
        ["DeadRelu", "1", "1", "0", "0"],
        ["LossSpike", "0", "1", "1", "0"],
    ]


def test_patterns_can_be_read_and_every_cause_has_a_case() -> None:
    load()
    used = {one.cause for one in cases() if one.cause is not None}
    for name, cause in CAUSES.items():
        re.compile(cause.named)
        re.compile(cause.fix)
        assert cause in used, name


def test_a_case_names_its_fault_by_words_or_by_the_name_of_a_rule() -> None:
    assert LEAK.names("Causality", "outputs depend on later tokens")
    assert not LEAK.names("DeadRelu", "units are dead")
    by_rule = Case(
        name="dead",
        program=lambda _: None,
        origin="own",
        half=HALVES[0],
        named_by=frozenset({"DeadRelu"}),
    )
    assert by_rule.names("DeadRelu", "whatever it says")


def test_a_cause_that_is_not_in_the_list_is_refused() -> None:
    with pytest.raises(KeyError, match="bad luck"):
        Collection("own").silent("bad luck", "nothing")(lambda _: None)


@pytest.mark.parametrize(
    ("fault", "reached", "harms", "visible"),
    [
        (True, False, True, True),
        (True, True, True, False),
        (True, True, False, True),
        (False, False, True, False),
    ],
)
def test_a_fault_that_should_harm_is_visible_only_if_it_does(
    *, fault: bool, reached: bool, harms: bool, visible: bool
) -> None:
    t = Training(sick=True, seed=0)
    t.counted(1)
    conclude(t, fault=fault, reached=reached, harms=harms)
    assert (t.outcome.visible_at is not None) is visible
    assert t.outcome.learned is reached


def test_nobody_watches_a_framework_unless_there_is_a_hook() -> None:
    assert Training(sick=True, seed=0).callbacks("keras") == []
    watched = Training(sick=True, seed=0, hooks=str.upper)
    assert watched.callbacks("keras") == ["KERAS"]
