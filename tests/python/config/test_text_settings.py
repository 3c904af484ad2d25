"""``CollectionConfig``: parameters of text, as smdebug's configurations have them."""

from __future__ import annotations

import pytest

from tdbg.config import CollectionConfig, SaveConfig, SaveConfigMode
from tdbg.errors import ConfigurationError, InvalidCollectionConfiguration
from tdbg.modes import ModeKeys


def test_all_parameters_mean_what_they_mean_in_smdebug() -> None:
    made = CollectionConfig(
        "custom",
        {
            "include_regex": "relu, tanh",
            "save_histogram": "False",
            "reductions": "mean,abs_max,l2_norm,abs_l1_norm",
            "save_raw_tensor": "true",
            "save_shape": "true",
            "save_interval": "100",
            "save_steps": "1,2,3",
            "start_step": "5",
            "end_step": "1000",
        },
    ).make()
    assert made.name == "custom"
    assert made.include_regex == ["relu", "tanh"]
    assert made.save_histogram is False
    reduction = made.reduction_config
    assert reduction is not None
    assert reduction.reductions == ("mean",)
    assert reduction.abs_reductions == ("max",)
    assert (reduction.norms, reduction.abs_norms) == (("l2",), ("l1",))
    assert reduction.save_raw_tensor
    assert reduction.save_shape
    assert made.save_config is not None
    assert made.save_config.of(ModeKeys.EVAL) == SaveConfigMode(
        save_interval=100,
        statistics_interval=100,
        start_step=5,
        end_step=1000,
        save_steps=frozenset({1, 2, 3}),
    )


def test_parameters_that_are_left_out_follow_the_hook() -> None:
    made = CollectionConfig("weights").make()
    assert made.save_config is None
    assert made.reduction_config is None
    assert made.save_histogram is None


def test_values_may_be_what_json_has_for_them() -> None:
    made = CollectionConfig(
        "custom",
        {
            "include_regex": ["a{1,3}", "b, c"],
            "save_histogram": True,
            "save_interval": 7,
            "save_steps": [1, 2],
        },
    ).make()
    assert made.include_regex == ["a{1,3}", "b, c"]
    assert made.save_histogram is True
    assert made.save_config is not None
    assert made.save_config.base.save_interval == 7
    assert made.save_config.base.save_steps == {1, 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("relu,tanh", ["relu", "tanh"]),
        ("relu{1,3},tanh", ["relu{1,3}", "tanh"]),
        ("(a,b),[,]", ["(a,b)", "[,]"]),
        (r"a\,b,c", [r"a\,b", "c"]),
        (r"a\\,c", [r"a\\", "c"]),
        ("a,,b, ", ["a", "b"]),
    ],
)
def test_commas_of_an_expression_do_not_separate(
    text: str, expected: list[str]
) -> None:
    made = CollectionConfig("custom", {"include_regex": text}).make()
    assert made.include_regex == expected


def test_a_mode_follows_its_own_keys_then_the_others_then_the_hook() -> None:
    hook = SaveConfig(
        {ModeKeys.PREDICT: SaveConfigMode(save_interval=9, end_step=50)},
        save_interval=200,
        start_step=3,
    )
    config = CollectionConfig(
        "weights",
        {"end_step": "70", "train.save_interval": "10", "eval.start_step": "0"},
    )
    made = config.make(hook).save_config
    assert made is not None
    train, evaluation = made.of(ModeKeys.TRAIN), made.of(ModeKeys.EVAL)
    assert (train.save_interval, train.statistics_interval) == (10, 10)
    assert (train.start_step, train.end_step) == (3, 70)
    assert (evaluation.save_interval, evaluation.statistics_interval) == (200, 10)
    assert (evaluation.start_step, evaluation.end_step) == (0, 70)
    predict = made.of(ModeKeys.PREDICT, hook.of(ModeKeys.PREDICT))
    assert (predict.save_interval, predict.end_step) == (9, 70)


def test_statistics_may_have_an_interval_of_their_own() -> None:
    made = CollectionConfig(
        "weights", {"save_interval": "100", "statistics_interval": "5"}
    ).make()
    assert made.save_config is not None
    assert made.save_config.base.statistics_interval == 5


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"save_intervall": "1"}, "unknown key 'save_intervall'; did you mean 'save_i"),
        ({"trian.save_interval": "1"}, "did you mean 'train.save_interval'"),
        ({"reductions": "meen"}, r"reductions: unknown 'meen'; did you mean 'mean'"),
        ({"reductions": "l3_norm"}, "did you mean 'l[12]_norm'"),
        (
            {"include_regex": "a,("},
            r"include_regex: .*'\(' is not a regular expression",
        ),
        ({"include_regex": ["a", 1.5]}, r"include_regex\[1\]: must be text, not 1.5"),
        ({"include_regex": {}}, "include_regex: must be text or a list"),
        ({"save_histogram": "yes"}, "save_histogram: must be .true. or .false."),
        ({"save_interval": "0"}, "save_interval: save_interval must be at least 1"),
        ({"eval.end_step": "x"}, "eval.end_step: end_step must be a whole number"),
        ({"save_steps": "1,b"}, "save_steps: save_steps must be a whole number"),
        ({1: "x"}, "the key 1 must be text"),
        (["save_interval"], "must be a mapping"),
    ],
)
def test_a_bad_parameter_is_refused_by_name(parameters: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        CollectionConfig("weights", parameters)  # type: ignore[arg-type]
    assert "CollectionConfig('weights')" in str(refused.value)


def test_a_custom_one_without_an_expression_selects_nothing() -> None:
    with pytest.raises(InvalidCollectionConfiguration, match="did you mean 'weights'"):
        CollectionConfig("wieghts", {"save_interval": "1"})
