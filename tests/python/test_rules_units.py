"""SaturatedActivation and DeadEmbedding, judged from unit summaries."""

from __future__ import annotations

import numpy as np
import pytest

from rules_fake import FakeRun, judge
from tdbg.errors import ConfigurationError
from tdbg.facts import Facts, ParameterFacts
from tdbg.findings import Severity
from tdbg.modes import ModeKeys
from tdbg.rules import DeadEmbedding, DeadRelu, SaturatedActivation

LINEAR = ParameterFacts(
    shape=(4, 4), dtype="float32", requires_grad=True, module="Linear"
)


def known(activation: str = "Tanh", *, last: bool = False) -> Facts:
    modules = {"": "Net", "a": "Linear", "act": activation, "b": "Linear"}
    if last:
        modules = {"": "Net", "a": "Linear", "b": "Linear", "act": activation}
    parameters = {"a.weight": LINEAR, "b.weight": LINEAR}
    return Facts(step=0, modules=modules, parameters=parameters)


def saturated(
    n_units: int, beyond: int = 58, count: int = 64, **flags: object
) -> FakeRun:
    """Steps at which so many of 10 units have so many values beyond."""
    run = FakeRun(every=10)
    run.known_facts = [known()]
    for step in range(6):
        outside = [beyond] * n_units + [0] * (10 - n_units)
        run.units(step, "act_output_0", [32] * 10, count, outside)
        run.step(step, **flags)
    return run


@pytest.mark.parametrize(
    ("n_units", "beyond", "n_findings"),
    [(5, 58, 0), (6, 58, 1), (6, 57, 0), (10, 64, 1)],
)
def test_the_share_of_saturated_units_decides(
    n_units: int, beyond: int, n_findings: int
):
    found = judge(saturated(n_units, beyond), SaturatedActivation())
    assert len(found) == n_findings
    if found:
        assert (found[0].tensor, found[0].step) == ("act_output_0", 2)
        assert found[0].severity is Severity.WARNING
        assert f"{n_units} of 10 units" in found[0].message


def test_units_that_are_saturated_for_most_samples_are_found_by_all_their_values():
    # Each unit for 46 of 64 values, far from 90 %.
    (finding,) = judge(saturated(10, 46), SaturatedActivation())
    assert (finding.value, finding.threshold) == (pytest.approx(71.875), 70.0)
    assert "72 % of all values are saturated" in finding.message
    assert "0 of 10 units" in finding.message
    assert judge(saturated(10, 44), SaturatedActivation()) == []


@pytest.mark.parametrize("facts", [known("ReLU"), known(last=True), None])
def test_other_modules_and_the_last_activation_are_not_judged(facts: Facts | None):
    run = saturated(10)
    run.known_facts = [facts] if facts else []
    assert judge(run, SaturatedActivation()) == []


def test_what_is_known_later_is_judged_from_then_on():
    run = saturated(10)
    facts = known()
    run.known_facts = [
        Facts(step=4, modules=facts.modules, parameters=facts.parameters)
    ]
    (finding,) = judge(run, SaturatedActivation())
    assert finding.step == 4


@pytest.mark.parametrize(
    "flags", [{"complete": False}, {"lossless": False}, {"mode": ModeKeys.EVAL}]
)
def test_steps_that_are_not_whole_and_evaluation_are_not_judged(
    flags: dict[str, object],
):
    assert judge(saturated(10, **flags), SaturatedActivation()) == []


def test_units_of_other_modules_are_not_dead_relus():
    run = FakeRun(every=10)
    for step in range(6):
        run.units(step, "act_output_0", [0] * 10, 64)
        run.step(step)
    assert len(judge(run, DeadRelu())) == 1
    run.known_facts = [known("Tanh")]
    assert judge(run, DeadRelu()) == []
    run.known_facts = [known("ReLU")]
    assert len(judge(run, DeadRelu())) == 1


def test_units_that_are_rarely_active_are_a_warning_at_most():
    run = FakeRun(every=10)
    for step in range(30):
        run.units(step, "act_output_0", [1 if step % 3 == 0 else 0] * 10, 64)
        run.step(step)
    (finding,) = judge(run, DeadRelu())
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("n_units", "limit"),
    # Of wide layers by the normal distribution: n / 2 + 1.645 sqrt(n) / 2.
    [(3, 3), (12, 10), (64, 40), (65536, 32768 + 211 + 1)],
)
def test_a_layer_is_dead_beyond_chance_however_wide(n_units: int, limit: int):
    def said(n_dead: int) -> int:
        run = FakeRun(every=10)
        active = [0] * n_dead + [64] * (n_units - n_dead)
        for step in range(12):
            run.units(step, "act_output_0", active, 64)
            run.step(step)
        return len(judge(run, DeadRelu(error_layer=100.0)))

    assert [said(limit - 1), said(limit)] == [0, 1]


def embedded(
    n_used: int, n_rows: int = 100, share: float = 0.5, n_steps: int = 25
) -> FakeRun:
    """Each step uses a random share of the rows that are in use at all."""
    random = np.random.default_rng(0)
    run = FakeRun(every=10)
    for step in range(n_steps):
        used = (random.random(n_rows) < share) & (np.arange(n_rows) < n_used)
        run.units(step, "gradient/e.weight", used * 8, 8)
        run.step(step)
    return run


@pytest.mark.parametrize(("n_used", "n_findings"), [(100, 0), (51, 0), (49, 1), (5, 1)])
def test_rows_that_are_never_used_are_reported(n_used: int, n_findings: int):
    found = judge(embedded(n_used), DeadEmbedding())
    assert len(found) == n_findings
    if found:
        assert (found[0].tensor, found[0].step) == ("gradient/e.weight", 9)
        assert f"{n_used} of 100 rows" in found[0].message


def test_rare_rows_are_not_dead():
    rare = embedded(1000, n_rows=1000, share=0.01)
    assert judge(rare, DeadEmbedding()) == []
    # Few rows in use that are rare themselves: nobody knows yet.
    assert judge(embedded(100, n_rows=1000, share=0.02), DeadEmbedding()) == []


def test_where_nearly_all_rows_are_unused_rare_ones_need_not_be_waited_for():
    (finding,) = judge(embedded(100, n_rows=9000, share=0.1), DeadEmbedding())
    assert finding.step == 9
    assert finding.value > 80.0


def test_places_for_longer_texts_are_information():
    run = embedded(5, share=1.1)
    # Of the only embedding of a model they are tokens.
    (finding,) = judge(run, DeadEmbedding())
    assert finding.severity is Severity.WARNING
    both = {"": "Net", "e": "Embedding", "tokens": "Embedding"}
    run.known_facts = [Facts(step=0, modules=both)]
    (places,) = judge(run, DeadEmbedding())
    assert places.severity is Severity.INFO
    assert "the first 5 of 100 rows had a gradient at every" in places.message
    (tokens,) = judge(embedded(5), DeadEmbedding())
    assert tokens.severity is Severity.WARNING


def test_summaries_of_gradients_are_not_for_relus():
    assert judge(embedded(5), DeadRelu()) == []


@pytest.mark.parametrize(
    ("rule", "name", "value"),
    [
        (SaturatedActivation, "threshold_activity", 0.0),
        (SaturatedActivation, "max_steps", 1),
        (SaturatedActivation, "tensor_regex", "["),
        (DeadEmbedding, "threshold", 0.0),
        (DeadEmbedding, "max_steps", 5),
    ],
)
def test_parameters_out_of_range_are_refused(rule: type, name: str, value: object):
    with pytest.raises(ConfigurationError, match=f"{rule.__name__}.{name}"):
        rule(**{name: value})
