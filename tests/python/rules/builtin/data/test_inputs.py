"""NotNormalizedData and NLPSequenceRatio: what a model is fed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.modes import ModeKeys
from tdbg.rules import NLPSequenceRatio, NotNormalizedData
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo, ParameterFacts

INPUT, TARGET = "Model_input_0", "MSELoss_input_1"
TOKENS, LABELS = "embedding_input_0", "CrossEntropyLoss_input_1"


def fed(
    make: Any, name: str = INPUT, n_steps: int = 6, dtype: str = "float32"
) -> FakeRun:
    run = FakeRun()
    random = np.random.default_rng(0)
    for step in range(n_steps):
        run.step(step, {name: make(random).astype(dtype)})
        run.tensor_of(name).dtype = dtype
    return run


@pytest.mark.parametrize(
    "make",
    [
        lambda random: random.integers(0, 256, (32, 64)),
        lambda random: random.uniform(0, 1, (32, 64)) / 255,
        lambda random: random.uniform(-4, 1, (32, 64)).clip(0) / 255,
        lambda random: np.full((32, 64), 0.5) + random.normal(0, 1e-3, (32, 64)),
        lambda random: 0 * random.random((32, 64)),
        lambda random: random.normal(10, 1, (32, 64)),
        lambda random: random.normal(0, 1, (32, 13)) * ([1.0] * 12 + [300.0]),
    ],
    ids=[
        "raw pixels",
        "divided twice",
        "black with pixels divided twice",
        "alike",
        "zeros",
        "shifted",
        "a large column",
    ],
)
def test_data_that_were_not_normalized_are_a_warning_at_once(make: Any):
    (finding,) = judge(fed(make, n_steps=9), NotNormalizedData())
    assert finding.tensor == INPUT
    assert finding.step <= 1
    assert "mean" in finding.message


def test_bytes_that_were_divided_twice_are_recognized():
    (finding,) = judge(
        fed(lambda random: random.integers(0, 256, (32, 64)) / 255**2),
        NotNormalizedData(),
    )
    assert "were bytes divided by 255 twice" in finding.message
    assert finding.advice.startswith("Divide bytes by 255 once.")
    (other,) = judge(
        fed(lambda random: random.uniform(-1, 1, (32, 64)) / 255), NotNormalizedData()
    )
    assert "255" not in other.message + other.advice


@pytest.mark.parametrize(
    ("of_layer", "kind", "dtype", "n_findings"),
    [
        (1.0, "Linear", "float32", 1),
        (0.6, "LSTM", "float32", 1),
        (0.01, "Linear", "float32", 0),
        (0.01, "Conv2d", "float32", 0),
        (0.01, "ReLU", "float32", 1),
        (1.0, "Linear", "int64", 1),
        (100.0, "Linear", "float32", 0),
    ],
)
def test_data_that_a_model_normalizes_itself_are_silent(
    of_layer: float, kind: str, dtype: str, n_findings: int
):
    """No layer with weights is given anything of their size."""
    run = fed(lambda random: random.integers(0, 256, (32, 64)))
    layer = np.full((32, 64), of_layer * run.tensors[INPUT].rows[0]["l2"] / 45.25)
    run.step(0, {"fc_input_0": layer})
    run.tensor_of("fc_input_0").dtype = dtype
    run.known_facts = [ModelInfo(step=0, modules={"fc": kind})]
    assert len(judge(run, NotNormalizedData())) == n_findings
    # Beside many small numbers they have another size, and their extremes.
    layer[0, 0] = run.tensors[INPUT].rows[0]["max"]
    run.step(0, {"fc_input_0": layer})
    assert len(judge(run, NotNormalizedData())) == (of_layer < 2)


@pytest.mark.parametrize(
    ("shape", "module", "n_findings"),
    [
        ((), "GP", 0),  # a kernel that compares inputs with each other
        ((1, 3), "ARDKernel", 0),
        ((1, 3), "Linear", 1),
        ((8, 3), "GP", 1),
    ],
)
def test_only_a_matrix_minds_the_scale_of_what_it_multiplies(
    shape: tuple[int, ...], module: str, n_findings: int
):
    run = fed(lambda random: random.normal(20, 1, (32, 64)))
    own = ParameterFacts(
        shape=shape, dtype="float32", requires_grad=True, module=module
    )
    run.known_facts = [ModelInfo(step=0, parameters={"length": own})]
    assert len(judge(run, NotNormalizedData())) == n_findings


def test_zeros_beside_data_are_a_state_and_what_a_model_made_is_no_data():
    run = fed(lambda random: random.normal(0, 1, (32, 64)))
    for step in range(6):
        run.step(step, {"Model_input_1": np.zeros((32, 16))})
        run.step(step, {"Other_input_0": np.full((32, 64), 9.0)})
    for name in ("Model_input_1", "Other_input_0"):
        run.tensor_of(name).role = "model_input"
    assert {each.tensor for each in judge(run, NotNormalizedData())} == {
        "Other_input_0"
    }
    run.known_facts = [ModelInfo(step=0, made_inputs=("Other_input_0",))]
    assert judge(run, NotNormalizedData()) == []


def test_targets_whose_mean_is_near_the_limit_by_chance_are_silent():
    run = fed(lambda random: random.normal(25, 25, (64, 1)), TARGET, n_steps=300)
    run.tensor_of(TARGET).role = "label"
    assert judge(run, NotNormalizedData()) == []


def test_tails_that_make_the_deviation_of_a_few_batches_are_silent():
    run = fed(lambda random: random.normal(0, 1, (8, 16)) ** 3, n_steps=300)
    assert judge(run, NotNormalizedData()) == []
    run = fed(lambda random: 8 * random.standard_t(5, (8, 16)), n_steps=300)
    assert len(judge(run, NotNormalizedData())) == 1


@pytest.mark.parametrize(("begins", "n_findings"), [(0.0, 0), (9.0, 1)])
def test_a_state_that_began_with_zeros_may_grow(begins: float, n_findings: int):
    run = fed(lambda random: random.normal(0, 1, (32, 64)))
    for step in range(6):
        run.step(step, {"Model_input_1": np.full((32, 16), 9.0 if step else begins)})
    run.tensor_of("Model_input_1").role = "model_input"
    assert len(judge(run, NotNormalizedData())) == n_findings


@pytest.mark.parametrize(
    "make",
    [
        lambda random: random.normal(0, 1, (32, 64)),
        lambda random: random.uniform(0, 1, (32, 64)),
        lambda random: random.uniform(-1, 1, (32, 64)),
        lambda random: random.random((32, 64)) < 0.1,
        lambda random: random.standard_t(4, (32, 64)),
        lambda random: np.eye(5000)[random.integers(0, 5000, 32)],
        lambda random: (random.random((99, 900)) < 0.02) / 18,
    ],
    ids=["normal", "unit", "centred", "few ones", "heavy tails", "one-hot", "words"],
)
def test_data_that_train_well_are_silent(make: Any):
    assert judge(fed(make), NotNormalizedData()) == []


def table_of(scales: list[float], n_samples: int = 32) -> FakeRun:
    """Columns of these deviations; the first batch is kept."""
    run = fed(lambda random: random.normal(0, 1, (n_samples, len(scales))) * scales)
    first = np.random.default_rng(0).normal(0, 1, (n_samples, len(scales))) * scales
    run.value(0, INPUT, first.astype(np.float32))
    return run


def test_columns_that_drown_beside_one_are_counted():
    (finding,) = judge(table_of([4.0] + [0.002] * 12 + [0.0]), NotNormalizedData())
    assert "12 of 13 columns vary by less than 1%" in finding.message
    assert "0 (mean " in finding.message
    assert "axis=0" in finding.advice


@pytest.mark.parametrize(
    "scales",
    [
        [4.0] * 6 + [0.002] * 6,
        [4.0] + [0.05] * 12,
        [0.3] + [0.005] * 3,
        [1.0, 0.0, 0.0, 0.0],
    ],
    ids=["half of them", "not narrow", "none is wide", "constant"],
)
def test_columns_that_are_not_alike_are_silent(scales: list[float]):
    assert judge(table_of(scales), NotNormalizedData()) == []


def with_missing(
    value: float | None, *, scaled: bool = True, n_columns: int = 6, share: float = 0.15
) -> FakeRun:
    """A table that has one number in some rows of each column."""
    random = np.random.default_rng(0)
    table = random.normal(50.0, 10.0, (64, 6))
    if value is not None:
        table[:, :n_columns][random.random((64, n_columns)) < share] = value
    if scaled:
        table = (table - table.mean(0)) / table.std(0)
    return given(table)


def given(table: np.ndarray) -> FakeRun:
    run = fed(lambda _: table)
    run.value(0, INPUT, table.astype(np.float32))
    return run


@pytest.mark.parametrize(
    "run",
    [
        with_missing(-999.0),
        with_missing(9999.0),
        with_missing(-999.0, scaled=False, n_columns=1, share=0.2),
    ],
)
def test_a_placeholder_that_is_scaled_like_a_number_is_named(run: FakeRun):
    (finding,) = judge(run, NotNormalizedData())
    assert "Missing values seem to count" in finding.message
    assert "SimpleImputer" in finding.advice


@pytest.mark.parametrize(
    "run",
    [
        with_missing(None),
        with_missing(50.0),
        # Few columns; numbers among the others; codes.
        with_missing(-999.0, n_columns=2),
        with_missing(20.0),
        with_missing(-999.0, share=0.8),
    ],
)
def test_numbers_among_others_are_no_placeholders(run: FakeRun):
    assert judge(run, NotNormalizedData()) == []


def test_numbers_that_a_program_means_are_no_placeholders():
    random = np.random.default_rng(0)
    table = random.random((64, 6)) * 0.5
    table[random.random((64, 6)) < 0.2] = -1.0
    assert judge(given(table), NotNormalizedData()) == []


def test_columns_that_are_not_finite_have_no_placeholder():
    table = np.random.default_rng(0).normal(0.0, 1.0, (64, 6))
    table[:, 0], table[:, 1], table[:8, 2] = np.inf, np.nan, -np.inf
    found = judge(given(table), NotNormalizedData())
    assert not any("Missing values" in each.message for each in found)


def test_a_few_samples_say_nothing_of_columns():
    assert judge(table_of([4.0] + [0.002] * 12, 7), NotNormalizedData()) == []


def test_integers_are_not_judged():
    run = fed(lambda random: random.integers(0, 500, (32, 64)), dtype="int64")
    assert judge(run, NotNormalizedData()) == []


def test_tokens_that_are_something_else_in_evaluation_are_not_judged():
    """What generates text is given other arguments, of another type, in their place."""
    run = fed(lambda random: random.integers(0, 500, (32, 64)))
    run.value(0, INPUT, np.random.default_rng(0).integers(0, 500, (32, 64)))
    run.tensor_of(INPUT).dtype = "float32"
    assert judge(run, NotNormalizedData()) == []


def test_one_whole_number_a_sample_is_no_measurement():
    """Times of a diffusion, lengths: a model makes of them what it needs."""

    def given(make: Any) -> list[Any]:
        run = fed(make, n_steps=40)
        run.value(0, INPUT, make(np.random.default_rng(0)).astype(np.float32))
        run.tensor_of(INPUT).dtype = "float32"
        return judge(run, NotNormalizedData(num_steps=10))

    assert given(lambda random: random.integers(0, 100, 64)) == []
    assert given(lambda random: random.uniform(0, 100, 64))
    assert given(lambda random: random.integers(0, 100, (64, 2)))


def test_a_single_column_is_not_said_to_be_the_largest():
    run = fed(lambda random: random.normal(70, 1, (99, 1)), n_steps=9)
    run.value(0, INPUT, np.random.default_rng(0).normal(70, 1, (99, 1)))
    run.tensor_of(INPUT).dtype = "float32"
    (finding,) = judge(run, NotNormalizedData())
    assert "columns" not in finding.message


def test_a_model_that_begins_with_a_normalization_is_not_judged():
    run = fed(lambda random: random.integers(0, 256, (32, 64)))
    modules = {"Net": "Net", "0": "Flatten", "1": "BatchNorm1d", "2": "Linear"}
    run.known_facts = [ModelInfo(step=0, modules=modules, models=("Net",))]
    assert judge(run, NotNormalizedData()) == []
    modules["1"], modules["2"] = modules["2"], modules["1"]
    assert judge(run, NotNormalizedData())


def test_targets_of_a_regression_have_wider_limits():
    def at(mean: float, loss: str) -> list[Any]:
        run = fed(lambda random: random.normal(mean, 5, 600), f"{loss}_input_1")
        return judge(run, NotNormalizedData())

    assert at(150.0, "MSELoss")
    assert "target" in at(150.0, "L1Loss")[0].advice
    assert at(20.0, "MSELoss") == []
    assert at(150.0, "PoissonNLLLoss") == []


def targets(mean: Callable[[int], float], n_steps: int = 80) -> FakeRun:
    """Targets of which the mean is that of their step."""
    run = FakeRun()
    random = np.random.default_rng(0)
    for step in range(n_steps):
        run.step(step, {TARGET: random.normal(mean(step), 8.0, 64)})
    return run


def test_targets_that_a_model_makes_itself_need_no_scale():
    """The values of states grow from nothing to what a policy earns."""
    run, rule = targets(lambda step: -min(90.0, 1.5 * step)), NotNormalizedData()
    assert judge(run, rule) == []
    assert judge_in_parts(run, range(0, 80, 7), rule) == []
    # As a budget keeps the rows: one, late, is all that is known of now.
    sparse = targets(lambda step: -5.0 if step < 25 else -90.0, 26)
    assert judge(sparse, rule) == []
    still = targets(lambda _: -90.0)
    (finding,) = judge(still, rule)
    assert finding.step == 1
    assert judge_in_parts(still, range(0, 80, 7), rule) == [finding]


@pytest.mark.parametrize(("given", "n_findings"), [(1.0, 0), (0.9, 0), (99.0, 1)])
def test_targets_may_be_the_word_of_an_adversary(given: float, n_findings: int):
    run = fed(lambda random: given + 0 * random.random((64, 1)), TARGET)
    assert len(judge(run, NotNormalizedData())) == n_findings


def test_the_columns_that_are_largest_are_named():
    run = fed(lambda random: random.normal(0, 1, (99, 4)) * [1.0, 1.0, 700.0, 1.0])
    run.value(0, INPUT, np.random.default_rng(0).normal(0, 1, (99, 4)) * [1, 1, 700, 1])
    run.tensor_of(INPUT).dtype = "float32"
    (finding,) = judge(run, NotNormalizedData())
    assert "The largest of 4 columns are 2 (" in finding.message


def test_small_batches_are_taken_together():
    run = fed(lambda random: random.normal(50, 1, 100), n_steps=9)
    (finding,) = judge(run, NotNormalizedData())
    assert finding.step == 4


def test_what_is_not_finite_is_left_out():
    run = fed(lambda _: np.concatenate((np.full(600, np.nan), np.zeros(10))))
    assert judge(run, NotNormalizedData()) == []


def test_evaluation_and_lossy_steps_are_not_judged():
    run = FakeRun()
    for step in range(5):
        run.step(step, {INPUT: np.full(600, 99.0)}, mode=ModeKeys.EVAL)
        run.step(step + 5, {INPUT: np.full(600, 99.0)}, lossless=False)
    assert judge(run, NotNormalizedData()) == []


def sequences(
    make: Any, n_steps: int = 8, rows: int = 100, module: str = "Embedding"
) -> FakeRun:
    run = FakeRun()
    random = np.random.default_rng(0)
    for step in range(n_steps):
        tokens = make(random).astype(np.int64)
        run.step(step, {TOKENS: tokens})
        run.value(step, TOKENS, tokens)
    weight = ParameterFacts(
        shape=(rows, 8), dtype="float32", requires_grad=True, module=module
    )
    run.known_facts = [
        ModelInfo(
            step=0,
            modules={"embedding": module},
            parameters={"embedding.weight": weight},
        )
    ]
    return run


def padded(random: np.random.Generator) -> np.ndarray:
    tokens = random.integers(1, 100, (16, 40))
    tokens[:, 12:] = 0
    return tokens


def test_padding_that_makes_up_most_is_a_warning():
    (finding,) = judge(sequences(padded), NLPSequenceRatio())
    assert finding.value == 70.0
    assert finding.threshold == 60.0
    assert finding.step == 1
    assert "token 0" in finding.message


@pytest.mark.parametrize(
    ("ignored", "severity"), [(-100, Severity.INFO), (0, Severity.WARNING)]
)
def test_padding_that_the_loss_ignores_only_costs_time(
    ignored: int, severity: Severity
):
    run = sequences(padded)
    for step in range(8):
        tokens = padded(np.random.default_rng(step))
        labels = np.where(tokens == 0, ignored, 7)
        run.step(step, {TOKENS: tokens, LABELS: labels})
    run.tensor_of(LABELS).dtype = "int64"
    (finding,) = judge(run, NLPSequenceRatio())
    assert finding.severity is severity
    assert ("save that time" in finding.advice) == (severity is Severity.INFO)


def test_labels_of_whole_texts_say_nothing_about_their_padding():
    run = sequences(padded)
    for step in range(8):
        run.step(step, {TOKENS: padded(np.random.default_rng(step)), LABELS: [7] * 16})
    run.tensor_of(LABELS).dtype = "int64"
    (finding,) = judge(run, NLPSequenceRatio())
    assert finding.severity is Severity.WARNING


def test_rows_between_the_steps_that_are_kept_take_no_place():
    run = sequences(lambda random: padded(random)[:4], n_steps=80)
    for step in range(80):
        if step % 10:
            del run.tensor_of(TOKENS).values[step]
    (finding,) = judge(run, NLPSequenceRatio(min_tokens=1000))
    assert finding.step == 60
    assert judge_in_parts(run, range(80), NLPSequenceRatio()) == [finding]


def test_any_token_can_be_too_frequent():
    run = sequences(lambda random: np.where(random.random((16, 40)) < 0.9, 7, 3))
    (finding,) = judge(run, NLPSequenceRatio())
    assert "token 7" in finding.message
    assert finding.threshold == 60.0


def test_unknown_words_are_counted_among_what_is_not_padding():
    def text(known: float, padding: int):
        def make(random: np.random.Generator) -> np.ndarray:
            tokens = random.integers(2, 100, (16, 40))
            tokens[random.random((16, 40)) > known] = 1
            tokens[:, 40 - padding :] = 0
            return tokens

        return make

    (finding,) = judge(sequences(text(0.2, 18)), NLPSequenceRatio())
    assert finding.value == pytest.approx(80.0, abs=4.0)
    assert "tokens that are not padding are token 1" in finding.message
    assert "unknown words" in finding.message
    assert "small letters" in finding.advice
    assert judge(sequences(text(0.5, 18)), NLPSequenceRatio()) == []
    # Too few are left to tell: that it is padding is said.
    (finding,) = judge(sequences(text(0.0, 38)), NLPSequenceRatio())
    assert "token 0" in finding.message


def test_text_is_silent():
    zipf = 1.0 / np.arange(1, 100)
    run = sequences(
        lambda random: random.choice(99, (16, 40), p=zipf / zipf.sum()), n_steps=30
    )
    assert judge(run, NLPSequenceRatio()) == []


def test_tokens_have_thresholds_of_their_own():
    rule = NLPSequenceRatio(token_values=(0, 3), token_thresholds_percent=(95.0, 5.0))
    run = sequences(lambda random: np.where(random.random((16, 80)) < 0.1, 3, 0))
    (finding,) = judge(run, rule)
    assert "token 3" in finding.message


@pytest.mark.parametrize(("rows", "module"), [(7, "Embedding"), (100, "Linear")])
def test_what_is_no_vocabulary_is_not_judged(rows: int, module: str):
    run = sequences(padded, rows=rows, module=module)
    assert judge(run, NLPSequenceRatio()) == []


@pytest.mark.parametrize("rule", [NLPSequenceRatio(max_steps=3), NotNormalizedData()])
def test_the_cut_into_windows_changes_nothing(rule: NLPSequenceRatio):
    random = np.random.default_rng(1)
    run = sequences(lambda random: padded(random)[: int(random.integers(5, 16))], 40)
    for step in range(40):
        mean = 100.0 if step % 9 < 4 else 0.0
        rows = {INPUT: random.normal(mean, 1, 100 + 20 * (step % 7))}
        lossless = bool(random.random() > 0.1)
        run.step(step, rows, lossless=lossless)
    assert judge(run, rule)
    assert judge_in_parts(run, range(40), rule) == judge(run, rule)


def test_few_targets_are_enough():
    """Twenty batches of sixteen, as in many regressions on tables."""
    run = FakeRun(every=1)
    generator = np.random.default_rng(0)
    for step in range(20):
        run.step(step, {"MSELoss_input_1": generator.normal(152.0, 77.0, 16)})
    (finding,) = judge(run, NotNormalizedData())
    assert finding.step == 6
    assert "training set's mean from each target" in finding.advice


def test_half_padding_is_what_batches_of_sentences_have():
    """Of lengths from one word to the longest, each as often."""

    def text(longest: int) -> Callable[[np.random.Generator], np.ndarray]:
        def make(random: np.random.Generator) -> np.ndarray:
            rows = random.integers(2, 50, (16, 20))
            lengths = random.integers(1, longest + 1, (16, 1))
            return np.where(np.arange(20) < lengths, rows, 0)

        return make

    assert judge(sequences(text(20)), NLPSequenceRatio()) == []
    assert len(judge(sequences(text(10)), NLPSequenceRatio())) == 1
