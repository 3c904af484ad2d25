"""Findings that follow from others: which is the cause, and when it has gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tdbg.modes import ModeKeys
from tdbg.rules import BUILT_IN, check, get
from tdbg.rules.causes import AFTERMATH, Causes, cause_of, with_causes
from tdbg.rules.engine.engine import Engine
from tdbg.rules.testing import Recording
from tdbg.run.findings import Finding, Severity, Stage
from tdbg.trial import create_trial

WARNING, ERROR = Severity.WARNING, Severity.ERROR


def found(
    rule: str,
    step: int,
    severity: Severity = ERROR,
    tensor: str = "a",
    **fields: object,
) -> Finding:
    given: dict[str, object] = {"stage": get(rule).stage, **fields}
    return replace(
        Finding(
            rule=rule,
            severity=severity,
            step=step,
            mode=ModeKeys.TRAIN,
            tensor=tensor,
            message="",
            first_step=step,
            last_step=step,
        ),
        **given,
    )


def causes_of(*findings: Finding) -> list[str | None]:
    return [each.cause and each.cause.rule for each in with_causes(findings)]


def test_the_first_of_a_chain_is_the_cause_of_all_in_whichever_order_they_are_given():
    chain = [
        found("WeightUpdateRatio", 0),
        found("DeadRelu", 14),
        found("AllZero", 14, WARNING),
        found("TensorVariance", 14, WARNING),
        found("LossNotDecreasing", 90, WARNING),
    ]
    assert causes_of(*chain) == [None, *["WeightUpdateRatio"] * 4]
    assert causes_of(*reversed(chain)) == [*["WeightUpdateRatio"] * 4, None]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        # A fact has no cause, and what holds for others is none of a chain's.
        (found("WeightUpdateRatio", 0), found("ZeroLearningRate", 9, WARNING)),
        (found("WeightUpdateRatio", 0), found("ClassImbalance", 9, WARNING)),
        (found("ClassImbalance", 0, WARNING), found("DeadRelu", 9)),
        # A rate of zero kills no unit.
        (found("ZeroLearningRate", 0), found("DeadRelu", 9)),
        # A layer of which half is dead does not say why the loss does not fall.
        (found("DeadRelu", 0, WARNING), found("LossNotDecreasing", 60, WARNING)),
        # Two layers of the same kind, and what began later.
        (found("DeadRelu", 0), found("DeadRelu", 9, tensor="b")),
        (found("AllZero", 3, WARNING), found("DeadRelu", 9)),
        # What was over long before.
        (
            found("ExplodingGradient", 3, phase="end"),
            found("DeadRelu", 4 + AFTERMATH),
        ),
        (found("ExplodingGradient", 3, WARNING, phase="end"), found("DeadRelu", 4)),
        (found("DeadRelu", 0, Severity.INFO), found("AllZero", 9, WARNING)),
    ],
)
def test_what_does_not_follow_stays_a_finding_of_its_own(
    earlier: Finding, later: Finding
):
    assert causes_of(earlier, later) == [None, None]


@pytest.mark.parametrize(
    ("saved", "cause"), [(0.1, None), (0.5, "CpuContention"), (None, "CpuContention")]
)
def test_a_cause_of_lost_time_saves_at_least_half_of_what_its_symptom_costs(
    saved: float | None, cause: str | None
):
    """A core that is missing for a tenth of the time is not why a loader takes 60 %."""
    crowded = found("CpuContention", 5, Severity.WARNING, gain=saved)
    waiting = found("DataLoaderBound", 9, Severity.WARNING, gain=0.6)
    assert causes_of(crowded, waiting) == [None, cause]


def test_a_fact_explains_what_was_noticed_before_it_had_lasted_long_enough():
    rate = found("ZeroLearningRate", 19, WARNING, first_step=0)
    assert causes_of(found("UnchangedTensor", 9, WARNING), rate) == [
        "ZeroLearningRate",
        None,
    ]


def test_a_cause_has_not_gone_while_something_follows_from_it():
    cause = found("WeightUpdateRatio", 0, phase="end")
    dead = found("DeadRelu", 9)
    assert [each.is_over for each in with_causes([cause, dead])] == [False, False]
    over = replace(dead, phase="end")
    assert [each.is_over for each in with_causes([cause, over])] == [True, True]


def test_causes_that_are_named_live_are_those_known_by_then():
    causes = Causes()
    unchanged = found("UnchangedTensor", 9, WARNING)
    assert causes.begin(unchanged) is None
    rate = found("ZeroLearningRate", 19, first_step=0)
    assert causes.begin(rate) is None
    flat = found("LossNotDecreasing", 60, WARNING)
    assert causes.begin(flat) == cause_of(rate)
    assert causes.goes_on(cause_of(rate))
    causes.end(replace(flat, phase="end"))
    assert not causes.goes_on(cause_of(rate))


def test_every_stage_has_a_rule_and_every_rule_of_the_chain_a_stage():
    stages = {get(name).stage for name in BUILT_IN}
    assert stages >= set(Stage)


def test_a_finding_survives_json_with_its_stage_and_cause():
    (_, dead) = with_causes([found("WeightUpdateRatio", 0), found("DeadRelu", 9)])
    document = dead.to_json()
    assert (document["stage"], document["cause"]) == (
        "units",
        {"rule": "WeightUpdateRatio", "tensor": "a", "first_step": 0},
    )
    assert Finding.from_json(document) == dead
    older = {key: document[key] for key in document if key not in ("stage", "cause")}
    assert Finding.from_json(older) == replace(dead, stage=None, cause=None)
    assert Finding.from_json({**document, "stage": "later"}).stage is None
    with pytest.raises(ValueError, match="cause"):
        Finding.from_json(
            {**document, "cause": {"rule": 1, "tensor": "", "first_step": 0}}
        )


def nan_run(path: Path) -> Path:
    """NaN in the data at step 3; from then on weights, too, and outputs are zero."""
    with Recording(path) as run:
        for step in range(30):
            x, w, out = (np.full(16, 1.0 + step % 2, np.float32) for _ in range(3))
            if step == 3:
                x[0] = np.nan
            if step > 3:
                w[:], out[:] = np.nan, 0.0
            run.step(
                {"Net_input_0": x, "fc.weight": w, "relu_output_0": out},
                roles={"Net_input_0": "model_input"},
            )
    return path


def test_what_has_spoiled_the_weights_has_not_gone_when_the_data_is_sound_again(
    tmp_path: Path,
):
    rules = ["ExplodingTensor", "AllZero"]
    report = check(nan_run(tmp_path / "run"), rules, record=False)
    assert [(each.rule, each.is_over) for each in report.findings] == [
        ("ExplodingTensor", False),
        ("AllZero", False),
    ]
    assert report.findings[1].cause == cause_of(report.findings[0])


def test_events_name_the_cause_and_hold_back_its_end(tmp_path: Path):
    run = nan_run(tmp_path / "run")
    for max_window in (None, 1):
        engine = Engine(run, ["ExplodingTensor", "AllZero"], max_window=max_window)
        events = engine.poll()
        engine.finish()
        assert [(each.rule, each.phase) for each in events] == [
            ("ExplodingTensor", "begin"),
            ("AllZero", "begin"),
        ]
        assert events[1].cause == cause_of(events[0])
    assert create_trial(run).findings() == events
