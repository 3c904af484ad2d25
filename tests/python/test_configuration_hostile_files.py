"""Files of settings that are hostile, damaged, or no files at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdbg.errors import ConfigurationError
from tdbg.settings import HookConfig, read_config
from tdbg.settings.documents import MAX_BYTES

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


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TDBG_CONFIG", "TDBG_OUT", "TDBG_BUDGET"):
        monkeypatch.delenv(name, raising=False)


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "out_dir: !!python/object/apply:os.getcwd []", "no YAML that can"),
        ("a.yaml", BOMB, "line 2: aliases .* are not supported"),
        ("a.yaml", "a: &a [*a]", "aliases"),
        ("a.yaml", "save_all: true\nsave_all: false", "'save_all' stands twice"),
        ("a.yaml", "[" * 100_000, "nested too deeply"),
        ("a.yaml", "a: !!timestamp x", "no YAML"),
        ("a.yaml", "a: !!bool x", "no YAML"),
        ("a.yaml", "a: !!int ''", "no YAML"),
        ("a.yaml", "{[1]: 2}", "no YAML"),
        ("a.yaml", "a: \x01", "no YAML"),
        ("a.yaml", "a: [", "no YAML"),
        ("a.yaml", "- save_all", "must be a mapping of keys to values"),
        ("a.yaml", "on: x", "the key True must be text: quote it"),
        ("a.json", '{"save_all": true, "save_all": false}', "'save_all' stands twice"),
        ("a.json", '{"budget": NaN}', "NaN is no JSON"),
        ("a.json", "[" * 100_000, "no JSON"),
        ("a.json", '{"queue_bytes": ' + "1" * 5000 + "}", "no JSON"),
        ("a.json", "{'save_all': true}", "no JSON"),
        ("a.json", "", "no JSON"),
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
        (binary, "no text in UTF-8"),
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
        config.policy()
        config.options()
    except ConfigurationError as error:
        told = str(error)
    assert not told or told.startswith(f"{path}: ")
