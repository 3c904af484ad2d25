"""docs/configuration.md: its examples are read, and its tables are complete."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from tdbg.config import (
    CollectionConfig,
    HookConfig,
    SaveConfig,
    SaveConfigMode,
    read_config,
)
from tdbg.config.text_settings import COMMON_KEYS
from tdbg.modes import ModeKeys

PAGE = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TDBG_CONFIG", "TDBG_OUT", "TDBG_BUDGET"):
        monkeypatch.delenv(name, raising=False)


def example(folder: Path, language: str, index: int = 0) -> HookConfig:
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    path = folder / f"hook.{language}"
    path.write_text(blocks[index])
    return read_config(path)


def names(config: HookConfig) -> list[str]:
    return [each.name for each in config.collections]


@pytest.mark.torch
def test_the_example_in_python_says_what_its_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = example(tmp_path, "yaml")
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    content: dict[str, object] = {}
    from tdbg.capture import hook_base

    made = []
    monkeypatch.setattr(
        hook_base, "resolve", lambda given: made.append(_config(given)) or made[0]
    )
    exec(code, content)  # noqa: S102 - ours, from the page
    content["hook"].close()  # type: ignore[attr-defined]
    for field in dataclasses.fields(HookConfig):
        if field.name != "collections":
            assert getattr(made[0], field.name) == getattr(config, field.name)
    assert [each.as_json() for each in made[0].collections] == [
        each.as_json() for each in config.collections
    ]


def _config(given: dict[str, object]) -> HookConfig:
    said = {name: value for name, value in given.items() if value is not None}
    return HookConfig(**said)  # type: ignore[arg-type]


def test_the_longer_example_is_read_as_the_page_says(tmp_path: Path) -> None:
    config = example(tmp_path, "yaml", 1)
    assert config.save_config == SaveConfig(
        {ModeKeys.EVAL: SaveConfigMode(save_interval=1)}, save_interval=100
    )
    assert names(config) == ["attention", "biases"]
    assert config.include_workers == (0, 4)


def test_the_example_for_smdebug_is_read_as_the_page_says(tmp_path: Path) -> None:
    config = example(tmp_path, "json")
    assert names(config) == ["gradients", "relu"]
    assert config.save_config.of(ModeKeys.EVAL).statistics_interval == 1
    (relu,) = (each for each in config.collections if each.name == "relu")
    assert not isinstance(relu, CollectionConfig)
    assert relu.include_regex == ["relu", "tanh{1,2}"]


def test_every_setting_and_variable_has_a_row() -> None:
    rows = set(
        re.findall(
            r"`([A-Za-z_]+)`", "".join(re.findall(r"^\| .*", PAGE, re.MULTILINE))
        )
    )
    assert {field.name for field in dataclasses.fields(HookConfig)} <= rows
    keys = {key for key in COMMON_KEYS if "." not in key}
    assert keys <= set(re.findall(r"`([A-Za-z_]+)`", PAGE))
