"""Files of settings: what they say, and how faults in them are told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdbg.capture.policy import Policy
from tdbg.config import (
    Collection,
    HookConfig,
    ProfilerConfig,
    ReductionConfig,
    SaveConfig,
    SaveConfigMode,
    WindowConfig,
    read_config,
)
from tdbg.config.documents import MAX_BYTES
from tdbg.config.retention import Retention
from tdbg.errors import ConfigurationError, InvalidCollectionConfiguration
from tdbg.modes import ModeKeys

OWN: dict[str, Any] = {
    "out_dir": "runs/digits",
    "include_collections": ["weights", "gradients"],
    "include_regex": "relu{1,3}_output",
    "save_all": False,
    "save_config": {
        "save_interval": 100,
        "save_steps": [7],
        "modes": {"eval": {"statistics_interval": 1}},
    },
    "reduction_config": {"reductions": ["mean"], "save_raw_tensor": True},
    "collections": {
        "first": {
            "include_regex": ["^conv1,", "^fc"],
            "save_config": {"save_interval": 5},
            "reduction_config": {"save_raw_tensor": False},
            "save_histogram": True,
        },
        "biases": None,
    },
    "rules": ["ExplodingTensor"],
    "include_workers": [2, 0],
    "export_tensorboard": True,
    "tensorboard_dir": "tb",
    "dry_run": True,
    "on_stop": "flag",
    "overflow": "sample",
    "queue_bytes": 1 << 20,
    "min_free_bytes": 0,
    "spool_bytes": 1 << 24,
    "codec": "max",
    "save_histogram": False,
    "precise": True,
    "threads": 2,
    "budget": 0.02,
    "probes": False,
    "retention": {"values": "last 1000", "max_bytes": "50GB"},
    "profiler": {"system_interval": 0.1, "windows": [{"start_step": 9, "every": 50}]},
}

SMDEBUG: dict[str, Any] = {
    "LocalPath": "/opt/ml/output/tensors",
    "S3Path": "s3://bucket/prefix",
    "HookParameters": {
        "save_all": "false",
        "include_regex": "relu,tanh",
        "include_workers": "all",
        "reductions": "mean,abs_max,l2_norm",
        "save_raw_tensor": "true",
        "save_interval": "100",
        "save_steps": "1,2,3",
        "start_step": "0",
        "end_step": "1000",
        "eval.save_interval": "1",
    },
    "CollectionConfigurations": [
        {
            "CollectionName": "custom",
            "CollectionParameters": {
                "include_regex": "conv{1,2}.weight",
                "save_histogram": "false",
                "train.save_interval": "10",
            },
        },
        {"CollectionName": "losses", "CollectionParameters": None},
        {"CollectionName": "weights"},
    ],
}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TDBG_CONFIG", "TDBG_OUT", "TDBG_BUDGET", "SMDEBUG_CONFIG_FILE_PATH"):
        monkeypatch.delenv(name, raising=False)


def written(folder: Path, content: object, name: str = "hook.json") -> Path:
    path = folder / name
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text)
    return path


def collection(config: HookConfig, name: str) -> Collection:
    (found,) = (each for each in config.collections if each.name == name)
    assert isinstance(found, Collection)
    return found


@pytest.mark.parametrize("name", ["hook.json", "hook.yaml", "hook.yml", "hook.conf"])
def test_every_setting_of_the_hook_can_stand_in_a_file(
    tmp_path: Path, name: str
) -> None:
    config = read_config(written(tmp_path, OWN, name))
    assert config.out_dir == Path("runs/digits")
    assert config.include_collections == ("weights", "gradients")
    assert config.include_regex == ("relu{1,3}_output",)  # One, in spite of its comma.
    mode = SaveConfigMode(save_interval=100, save_steps=frozenset({7}))
    assert config.save_config.of(ModeKeys.TRAIN) == mode
    # What a mode leaves out is what stands beside the modes.
    assert config.save_config.of(ModeKeys.EVAL) == SaveConfigMode(
        save_interval=100, statistics_interval=1, save_steps=frozenset({7})
    )
    assert config.reduction_config == ReductionConfig(
        reductions=("mean",), save_raw_tensor=True
    )
    first = collection(config, "first")
    assert first.include_regex == ["^conv1,", "^fc"]
    assert first.save_config == SaveConfig(save_interval=5)
    assert first.reduction_config == ReductionConfig()
    assert first.save_histogram is True
    assert collection(config, "biases").save_config is None
    assert [(rule.value, rule.place.path) for rule in config.rules] == [
        ("ExplodingTensor", "rules[0]")
    ]
    assert config.include_workers == (0, 2)
    plain: tuple[str, ...]
    plain = ("dry_run", "on_stop", "overflow", "queue_bytes", "min_free_bytes")
    for key in (
        *plain,
        "spool_bytes",
        "codec",
        "save_histogram",
        "precise",
        "threads",
        "budget",
    ):
        assert getattr(config, key) == OWN[key], key
    window = WindowConfig(start_step=9, every=50)
    assert config.profiler == ProfilerConfig(system_interval=0.1, windows=(window,))
    assert config.retention == Retention(values="last 1000", max_bytes=50_000_000_000)
    assert config.export_tensorboard
    assert config.tensorboard_dir == Path("tb")
    assert set(OWN) == {*HookConfig.__slots__}


def test_yaml_reads_as_people_write_it(tmp_path: Path) -> None:
    config = read_config(
        written(
            tmp_path,
            """
            # What the nightly training captures.
            out_dir: ~/nightly
            include_collections: weights
            save_config:
              statistics_interval: 5
              modes: {EVAL: {save_interval: 1}}
            collections:
              attention:
                include_regex: 'attn\\.(q|k){1,2}_output'
            rules:        # all that is left out is as if it were not there
            """,
            "hook.yaml",
        )
    )
    assert config.out_dir == Path.home() / "nightly"
    assert config.include_collections == ("weights",)
    assert config.save_config.of(ModeKeys.EVAL).statistics_interval == 5
    found = collection(config, "attention")
    assert found.include_regex == [r"attn\.(q|k){1,2}_output"]
    assert found.save_config is None
    assert config.rules == ()


def test_a_file_written_for_smdebug_means_what_it_meant(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, SMDEBUG))
    assert config.out_dir == Path("/opt/ml/output/tensors")
    assert config.include_regex == ("relu", "tanh")
    assert config.include_workers == "all"
    assert config.reduction_config == ReductionConfig(
        reductions=("mean",),
        abs_reductions=("max",),
        norms=("l2",),
        save_raw_tensor=True,
    )
    train = SaveConfigMode(
        save_interval=100,
        statistics_interval=100,
        end_step=1000,
        save_steps=frozenset({1, 2, 3}),
    )
    assert config.save_config.of(ModeKeys.TRAIN) == train
    evaluation = config.save_config.of(ModeKeys.EVAL)
    assert (evaluation.save_interval, evaluation.end_step) == (1, 1000)
    custom = collection(config, "custom")
    assert custom.include_regex == ["conv{1,2}.weight"]
    assert custom.save_histogram is False
    assert custom.save_config is not None
    # It has its own interval in training, and the hook's everywhere else.
    own = custom.save_config.of(ModeKeys.TRAIN)
    assert (own.save_interval, own.end_step) == (10, 1000)
    assert custom.save_config.of(ModeKeys.EVAL) == evaluation
    # Not configured: it follows the hook, and losses stay at every step.
    assert collection(config, "losses").save_config is None
    assert not config.export_tensorboard


def test_in_a_file_for_smdebug_both_schedules_are_the_one_it_knows(
    tmp_path: Path,
) -> None:
    config = read_config(written(tmp_path, {"HookParameters": None}))
    assert config.save_config == SaveConfig(statistics_interval=500)
    assert config.out_dir is None


def test_a_dry_run_and_ranks_in_a_file_for_smdebug(tmp_path: Path) -> None:
    parameters = {"dry_run": "True", "include_workers": "2,0"}
    config = read_config(written(tmp_path, {"HookParameters": parameters}))
    assert config.dry_run
    assert config.include_workers == (0, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"save_al": True}, "unknown key 'save_al'; did you mean 'save_all'"),
        ({"save_all": "true"}, "save_all must be True or False, not 'true'"),
        ({"include_collections": ["wieghts"]}, "did you mean 'weights'"),
        ({"include_collections": 3}, "include_collections: must be text or a list"),
        ({"include_regex": ["("]}, r"include_regex: '\(' is not a regular expression"),
        ({"include_regex": [1]}, r"include_regex\[0\]: must be text, not 1"),
        ({"save_config": {"savee_interval": 1}}, "save_config: unknown key 'savee_int"),
        ({"save_config": {"save_interval": 0}}, "save_config: save_interval must be"),
        ({"save_config": {"modes": {"evl": {}}}}, "save_config.modes: unknown mode"),
        (
            {"save_config": {"modes": {"eval": {"x": 1}}}},
            "save_config.modes.eval: unknown key 'x'",
        ),
        (
            {"save_config": {"modes": {"eval": {"end_step": -1}}}},
            "save_config.modes.eval: end_step must be at least 0",
        ),
        (
            {"reduction_config": {"reductions": ["meen"]}},
            "reduction_config: reductions: unknown 'meen'; did you mean 'mean'",
        ),
        (
            {"reduction_config": {"save_raw_tensor": "yes"}},
            "reduction_config.save_raw_tensor: must be true or false",
        ),
        ({"collections": ["relu"]}, "collections: must be a mapping"),
        (
            {"collections": {"a": {"include_regexp": "x"}}},
            "collections.a: unknown key 'include_regexp'; did you mean 'include_regex'",
        ),
        (
            {"collections": {"a": {"include_regex": "["}}},
            r"collections.a.include_regex: .*'\[' is not a regular expression",
        ),
        (
            {"collections": {"a": {"include_regex": "x", "save_histogram": "no"}}},
            "collections.a: save_histogram must be",
        ),
        ({"include_workers": "al"}, "unknown 'al'; did you mean 'all'"),
        ({"include_workers": []}, "include_workers: an empty list"),
        ({"include_workers": [-1]}, "include_workers: there is no rank -1"),
        ({"overflow": "smple"}, "overflow: unknown 'smple'; did you mean 'sample'"),
        ({"tensorboard_dir": "s3://bucket/x"}, "must be a directory of this machine"),
        ({"out_dir": 3}, "out_dir must be the path of a directory, not 3"),
        ({"budget": 2}, "budget must be a share"),
        ({"threads": 0}, "threads must be from 1"),
        ({"HookParameters": {}}, "unknown key"),
    ],
)
def test_a_fault_is_told_by_file_key_and_nearest(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, {**OWN, **change})
    with pytest.raises(ConfigurationError, match=message) as refused:
        read_config(path)
    assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"HookParameter": {}, "LocalPath": "x"}, "did you mean 'HookParameters'"),
        ({"LocalPath": 3}, "LocalPath: must be text, not 3"),
        ({"HookParameters": {"save_intrval": "1"}}, "HookParameters: unknown key 'sav"),
        ({"HookParameters": {"save_all": "si"}}, "HookParameters.save_all: must be"),
        (
            {"HookParameters": {"include_regex": "a,*"}},
            r"HookParameters: include_regex: '\*' is not a regular expression",
        ),
        (
            {"HookParameters": {"reductions": "mean,sdt"}},
            "HookParameters.reductions: unknown 'sdt'; did you mean 'std'",
        ),
        (
            {"HookParameters": {"export_tensorboard": "si"}},
            "HookParameters.export_tensorboard: must be",
        ),
        ({"HookParameters": {"include_workers": "al"}}, "did you mean 'all'"),
        ({"CollectionConfigurations": {}}, "CollectionConfigurations: must be a list"),
        (
            {"CollectionConfigurations": [{"CollectionNam": "x"}]},
            r"CollectionConfigurations\[0\]: unknown key 'CollectionNam'",
        ),
        ({"CollectionConfigurations": [{}]}, "must have a 'CollectionName'"),
        (
            {
                "CollectionConfigurations": [
                    {"CollectionName": "weights"},
                    {
                        "CollectionName": "biases",
                        "CollectionParameters": {"end_stp": "1"},
                    },
                ]
            },
            r"\[1\].CollectionParameters: .* 'end_stp'; did you mean 'end_step'",
        ),
        (
            {"CollectionConfigurations": [{"CollectionName": "weights"}] * 2},
            r"CollectionConfigurations\[1\].CollectionName: 'weights' appears twice",
        ),
    ],
)
def test_a_fault_of_a_file_for_smdebug_is_told_likewise(
    tmp_path: Path, content: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ConfigurationError, match=message) as refused:
        read_config(path)
    assert str(refused.value).startswith(f"{path}: ")


def test_a_collection_that_selects_nothing_is_that_error_in_files_too(
    tmp_path: Path,
) -> None:
    nothing = {"CollectionConfigurations": [{"CollectionName": "relu"}]}
    for content in ({"collections": {"relu": {}}}, nothing):
        with pytest.raises(InvalidCollectionConfiguration, match="selects nothing"):
            read_config(written(tmp_path, content))


# ---- hostile, damaged, or no files at all ----------------------------------------


KEYS = [
    *HookConfig.__slots__,
    "LocalPath",
    "S3Path",
    "HookParameters",
    "CollectionConfigurations",
]

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(97 + i)}: &{chr(97 + i)} [{','.join([f'*{chr(96 + i)}'] * 9)}]\n"
    for i in range(1, 20)
)


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "out_dir: !!python/object/apply:os.getcwd []", "not usable YAML"),
        ("a.yaml", BOMB, "line 2: aliases .* are not supported"),
        ("a.yaml", "a: &a [*a]", "aliases"),
        ("a.yaml", "save_all: true\nsave_all: false", "'save_all' appears twice"),
        ("a.yaml", "[" * 100_000, "nested too deeply"),
        ("a.yaml", "a: !!timestamp x", "not usable YAML"),
        ("a.yaml", "a: !!bool x", "not usable YAML"),
        ("a.yaml", "a: !!int ''", "not usable YAML"),
        ("a.yaml", "{[1]: 2}", "not usable YAML"),
        ("a.yaml", "a: \x01", "not usable YAML"),
        ("a.yaml", "a: [", "not usable YAML"),
        ("a.yaml", "- save_all", "must be a mapping of keys to values"),
        ("a.yaml", "on: x", "the key True must be text: quote it"),
        ("a.json", '{"save_all": true, "save_all": false}', "'save_all' appears twice"),
        ("a.json", '{"budget": NaN}', "NaN is not valid JSON"),
        ("a.json", "[" * 100_000, "JSON"),
        ("a.json", '{"queue_bytes": ' + "1" * 5000 + "}", "JSON"),
        ("a.json", "{'save_all': true}", "JSON"),
        ("a.json", "", "JSON"),
        ("a.json", " " * (MAX_BYTES + 1), "larger than 256 KiB"),
    ],
)
def test_a_hostile_file_is_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    path = _written(tmp_path / name, text)
    with pytest.raises(ConfigurationError, match=message) as refused:
        read_config(path)
    assert len(str(refused.value)) < 10_000


def test_what_is_no_text_file_is_refused_and_nothing_waits(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, message in (
        (pipe, "not a regular file"),
        (tmp_path, "cannot be read"),
        (binary, "not UTF-8 text"),
        (tmp_path / "missing", "cannot be read: No such file"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            read_config(path)


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    config = read_config(_written(tmp_path / "a.yaml", "# later\n"))
    assert config == HookConfig()


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
@given(text=st.text(max_size=60))
def test_any_text_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_text(text, errors="surrogatepass", encoding="utf-8")
    _read_or_refuse(path)


_leaf = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=4)
_values = st.recursive(
    _leaf,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["include_regex", "save_interval", "CollectionName", "modes", "x"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@given(content=st.dictionaries(st.sampled_from(KEYS), _values, max_size=3))
def test_any_values_are_taken_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(content))
    _read_or_refuse(path)


def _read_or_refuse(path: Path) -> None:
    told = ""
    try:
        config = read_config(path)
        Policy.of_config(config)
        config.options()
    except ConfigurationError as error:
        told = str(error)
    assert not told or told.startswith(f"{path}: ")
