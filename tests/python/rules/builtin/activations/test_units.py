"""DeadRelu, SaturatedActivation and DeadEmbedding, judged from unit summaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from rules_fake import FakeRun, judge
from tdbg.modes import ModeKeys
from tdbg.rules import DeadEmbedding, DeadRelu, SaturatedActivation
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo, ParameterFacts

LINEAR = ParameterFacts(
    shape=(4, 4), dtype="float32", requires_grad=True, module="Linear"
)


def known(activation: str = "Tanh", *, last: bool = False) -> ModelInfo:
    modules = {"": "Net", "a": "Linear", "act": activation, "b": "Linear"}
    if last:
        modules = {"": "Net", "a": "Linear", "b": "Linear", "act": activation}
    parameters = {"a.weight": LINEAR, "b.weight": LINEAR}
    return ModelInfo(step=0, modules=modules, parameters=parameters)


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
    assert "72% of this layer's values are saturated" in finding.message
    assert "0 of 10 units" in finding.message
    assert judge(saturated(10, 44), SaturatedActivation()) == []


def test_paths_with_slashes_tell_what_comes_after_an_activation_too():
    run = FakeRun(every=10)
    dense = ParameterFacts(
        shape=(4, 4), dtype="float32", requires_grad=True, module="Dense", unit_axis=1
    )
    run.known_facts = [
        ModelInfo(
            step=0,
            modules={"Net": "Net", "enc/a": "Dense", "enc/b": "Dense"},
            kinds={"Dense": "linear", "tanh": "tanh"},
            parameters={"enc/a/kernel": dense, "enc/b/kernel": dense},
        )
    ]
    for step in range(6):
        run.units(step, "enc/a_tanh_output_0", [32] * 10, 64, [64] * 10)
        run.units(step, "enc/b_tanh_output_0", [32] * 10, 64, [64] * 10)
        run.step(step)
    (finding,) = judge(run, SaturatedActivation())
    assert finding.tensor == "enc/a_tanh_output_0"


@pytest.mark.parametrize("model_info", [known("ReLU"), known(last=True), None])
def test_other_modules_and_the_last_activation_are_not_judged(
    model_info: ModelInfo | None,
):
    run = saturated(10)
    run.known_facts = [model_info] if model_info else []
    assert judge(run, SaturatedActivation()) == []


def test_what_is_known_later_is_judged_from_then_on():
    run = saturated(10)
    model_info = known()
    run.known_facts = [
        ModelInfo(step=4, modules=model_info.modules, parameters=model_info.parameters)
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
    ("since", "is_evaluated", "is_the_rate"),
    [(0, False, False), (0, True, False), (4, False, True), (40, False, True)],
)
def test_what_killed_the_units_is_named_first(
    since: int, is_evaluated: bool, is_the_rate: bool
):
    """Before the first update, no learning rate can have killed one."""
    run = FakeRun(every=1)
    if is_evaluated:
        run.step(0, mode=ModeKeys.EVAL)
        run.training_steps_at = lambda steps: [step - 1 for step in steps]  # type: ignore[method-assign]
    for step in range(int(is_evaluated), 60):
        run.units(step, "act_output_0", [0 if step >= since else 32] * 10, 64)
        run.step(step)
    advice = judge(run, DeadRelu())[0].advice
    assert ("the learning rate is not the cause. Initialize" in advice) != is_the_rate
    assert ("Restart with a lower learning rate" in advice) == is_the_rate


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


@pytest.mark.parametrize(
    ("n_dead", "threshold", "severity"),
    [
        # What healthy trainings have: VAEs, images with black borders, wide layers.
        (60, 50.0, Severity.INFO),
        (80, 50.0, Severity.INFO),
        (81, 50.0, Severity.WARNING),
        (89, 82.0, Severity.WARNING),
    ],
)
def test_a_layer_of_which_enough_units_are_left_is_an_info(
    n_dead: int, threshold: float, severity: Severity
):
    run = FakeRun(every=10)
    for step in range(12):
        run.units(step, "act_output_0", [0] * n_dead + [32] * (100 - n_dead), 64)
        run.step(step)
    (finding,) = judge(run, DeadRelu(threshold_layer=threshold))
    assert finding.severity is severity
    assert ("As long as the loss falls" in finding.advice) is (n_dead <= 80)


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


@pytest.mark.parametrize(
    ("n_used", "n_findings"), [(100, 0), (51, 0), (49, 1), (21, 1), (5, 1)]
)
def test_rows_that_are_never_used_are_reported(n_used: int, n_findings: int):
    found = judge(embedded(n_used), DeadEmbedding())
    assert len(found) == n_findings
    if found:
        assert (found[0].tensor, found[0].step) == ("gradient/e.weight", 9)
        assert f"{n_used} of 100 rows" in found[0].message
        # Half a table may be room for words to come.
        is_far = found[0].severity is Severity.WARNING
        assert is_far is (n_used < 20)


def test_rare_rows_are_not_dead():
    rare = embedded(1000, n_rows=1000, share=0.01)
    assert judge(rare, DeadEmbedding()) == []
    # Few rows in use that are rare themselves: nobody knows yet.
    assert judge(embedded(100, n_rows=1000, share=0.02), DeadEmbedding()) == []


def test_where_nearly_all_rows_are_unused_rare_ones_need_not_be_waited_for():
    (finding,) = judge(embedded(100, n_rows=9000, share=0.1), DeadEmbedding())
    assert finding.step == 9
    assert finding.value > 80.0


@pytest.mark.parametrize(
    ("rows", "severity"),
    [(np.arange(40), Severity.WARNING), (np.arange(7, 1000, 25), Severity.INFO)],
)
def test_rows_scattered_over_the_table_are_the_buckets_of_a_hash(
    rows: np.ndarray, severity: Severity
):
    random = np.random.default_rng(0)
    run = FakeRun(every=10)
    for step in range(12):
        used = np.zeros(1000, dtype=np.int64)
        used[rows[random.random(40) < 0.7]] = 8
        run.units(step, "gradient/e.weight", used, 8)
        run.step(step)
    (finding,) = judge(run, DeadEmbedding())
    assert finding.severity is severity
    assert ("hash" in finding.message) is (severity is Severity.INFO)


def test_places_for_longer_texts_are_information():
    run = embedded(5, share=1.1)
    # Of the only embedding of a model they are tokens.
    (finding,) = judge(run, DeadEmbedding())
    assert finding.severity is Severity.WARNING
    both = {"": "Net", "e": "Embedding", "tokens": "Embedding"}
    run.known_facts = [ModelInfo(step=0, modules=both)]
    (places,) = judge(run, DeadEmbedding())
    assert places.severity is Severity.INFO
    assert "5 of this embedding's 100 rows had a gradient. At every" in places.message
    (tokens,) = judge(embedded(5), DeadEmbedding())
    assert tokens.severity is Severity.WARNING


def uses(rows_of: Callable[[int], Iterable[int]], n_rows: int = 64) -> FakeRun:
    """An embedding beside that of the tokens, of which each step uses these rows."""
    run = FakeRun(every=10)
    both = {"": "Net", "e": "Embedding", "tokens": "Embedding"}
    run.known_facts = [ModelInfo(step=0, modules=both)]
    for step in range(25):
        used = np.isin(np.arange(n_rows), list(rows_of(step)))
        run.units(step, "gradient/e.weight", used * 8, 8)
        run.step(step)
    return run


@pytest.mark.parametrize(
    ("rows_of", "severity"),
    [
        # Texts of several lengths; positions that begin behind a padding row.
        (lambda step: range(2, 6 + step % 9), Severity.INFO),
        # Distances in both directions, in buckets.
        (lambda _: [*range(7), *range(17, 23)], Severity.INFO),
        # Tokens: neighbors by chance; all that there are but for one, now and then.
        (lambda step: range(step % 3, 12), Severity.WARNING),
        (lambda step: {*range(12)} - {3 + step % 5}, Severity.WARNING),
    ],
    ids=["positions", "distances", "neighbors", "tokens"],
)
def test_rows_that_are_used_as_places_are_are_information(
    rows_of: Callable[[int], Iterable[int]], severity: Severity
):
    (finding,) = judge(uses(rows_of), DeadEmbedding())
    assert finding.severity is severity


def test_bytes_of_a_text_need_not_be_all_that_there_are():
    text = b"No text has all of them, and the quick brown fox least.\n"
    (finding,) = judge(uses(lambda step: text[step % 7 :], 256), DeadEmbedding())
    assert finding.severity is Severity.INFO
    assert "as for the bytes of a text" in finding.message
    # Of other tokens some are where bytes have control signs.
    others = uses(lambda step: [*text[step % 7 :], 5, 20], 256)
    assert judge(others, DeadEmbedding())[0].severity is Severity.WARNING


def test_summaries_of_gradients_are_not_for_relus():
    assert judge(embedded(5), DeadRelu()) == []


# ---- DeadRelu --------------------------------------------------------------------


def run_with(
    n_dead: int,
    *,
    n_steps: int = 6,
    count: int = 64,
    n_units: int = 10,
    **flags: object,
) -> FakeRun:
    """Steps with a layer of so many dead units; the others are active by half."""
    run = FakeRun(every=10)
    for step in range(n_steps):
        active = [0] * n_dead + [count // 2] * (n_units - n_dead)
        run.units(step, "1_output_0", active, count)
        run.step(step, **flags)
    return run


@pytest.mark.parametrize(
    ("n_dead", "n_units", "severity"),
    [
        (0, 10, None),
        (5, 10, None),
        # So many are dead by chance alone: in 5 to 39 of 100 networks.
        (8, 10, None),
        (14, 20, None),
        (7, 12, None),
        (38, 64, None),
        (4, 4, Severity.ERROR),
        (15, 20, Severity.INFO),
        (17, 20, Severity.WARNING),
        (40, 64, Severity.INFO),
        (9, 10, Severity.WARNING),
        (10, 10, Severity.ERROR),
    ],
)
def test_the_share_of_dead_units_decides(
    n_dead: int, n_units: int, severity: Severity | None
):
    findings = judge(run_with(n_dead, n_units=n_units), DeadRelu())
    assert [finding.severity for finding in findings] == (
        [severity] if severity else []
    )


def test_the_finding_says_how_many_of_how_many_over_how_long():
    (finding,) = judge(run_with(9), DeadRelu())
    assert finding.tensor == "1_output_0"
    assert finding.step == 2
    assert "9 of 10 units (90%)" in finding.message
    assert "last 3 recorded steps" in finding.message
    assert (finding.value, finding.threshold) == (90.0, 80.0)


def test_small_batches_are_taken_together_until_they_say_enough():
    assert judge(run_with(10, count=8, n_steps=12), DeadRelu()) == []
    (finding,) = judge(run_with(10, count=8, n_steps=13), DeadRelu())
    assert finding.step == 12
    assert judge(run_with(10, count=4, n_steps=50), DeadRelu()) == []


def test_a_unit_that_is_active_now_and_then_lives():
    run = FakeRun(every=10)
    for step in range(6):
        run.units(step, "1_output_0", [4 if step % 2 else 0] * 10, 64)
        run.step(step)
    assert judge(run, DeadRelu()) == []


def test_it_becomes_an_error_when_the_rest_die():
    run = FakeRun(every=10)
    for step in range(12):
        n_dead = 17 if step < 6 else 20
        run.units(step, "1_output_0", [0] * n_dead + [9] * (20 - n_dead), 64)
        run.step(step)
    begin, worse = judge(run, DeadRelu())
    assert (begin.phase, begin.severity) == ("begin", Severity.WARNING)
    assert (worse.phase, worse.severity) == ("worse", Severity.ERROR)
    assert worse.first_step == begin.step


@pytest.mark.parametrize("flags", [{"complete": False}, {"lossless": False}])
def test_steps_that_are_not_whole_are_not_judged(flags: dict[str, bool]):
    assert judge(run_with(10, **flags), DeadRelu()) == []


def test_evaluation_is_not_judged():
    assert judge(run_with(10, mode=ModeKeys.EVAL), DeadRelu()) == []


def test_names_choose():
    assert judge(run_with(10), DeadRelu(tensor_regex="^2")) == []
    assert len(judge(run_with(10), DeadRelu(tensor_regex="^1"))) == 1


def test_it_asks_for_unit_summaries_and_no_statistics():
    always, beginning = DeadRelu().needs
    assert always.unit_summaries
    assert not always.statistics
    assert (always.interval, beginning.interval) == (None, 1)


@pytest.mark.parametrize(
    ("first", "last_loss", "severity"),
    [
        (0.2, 0.4, Severity.INFO),
        (0.2, 1.0, Severity.WARNING),
        (0.99, 0.4, Severity.WARNING),
    ],
)
def test_a_layer_that_became_saturated_while_the_loss_fell_is_a_note(
    first: float, last_loss: float, severity: Severity
):
    """One that began so shows a mistake in the setup, even if the rest learns."""
    run = FakeRun()
    run.known_facts = [known()]
    for step in range(60):
        run.units(step, "act_output_0", [32] * 10, 64, [0 if step < 25 else 60] * 10)
        loss = 1.0 if step < 10 else last_loss
        run.step(step, {"act_output_0": [first, -first], "MSELoss_output_0": [loss]})
    found = judge(run, SaturatedActivation())
    assert max(finding.severity for finding in found) is severity
    assert ("the loss has fallen" in found[0].message) is (severity == 1)
