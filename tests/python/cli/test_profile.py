"""``tdbg profile`` asks a training that lives, and says how it went."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import tdbg.pytorch as td
from tdbg.cli import _tdbg
from tdbg.run.profile_requests import request_profile

pytestmark = pytest.mark.torch


def call(*arguments: object) -> Result:
    words = ["profile", *(str(argument) for argument in arguments)]
    return CliRunner().invoke(_tdbg, words)


@pytest.fixture
def living(run_dir: Path) -> Iterator[Path]:
    """A run whose training goes on in another thread."""
    is_over, has_begun = threading.Event(), threading.Event()

    def train() -> None:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with td.Hook(run_dir) as hook:
            hook.register_module(model)
            while not is_over.wait(0.005):
                optimizer.zero_grad()
                model(torch.randn(2, 4)).square().mean().backward()
                optimizer.step()
                has_begun.set()

    thread = threading.Thread(target=train)
    thread.start()
    assert has_begun.wait(60)
    yield run_dir
    is_over.set()
    thread.join()


def test_the_operators_of_a_window_are_shown(living: Path) -> None:
    result = call(living, "--steps", 3, "--kinds", "shapes,cprofile", "--top", 5)
    assert result.exit_code == 0, result.output
    assert "operator (cpu)" in result.stdout
    assert "function (cprofile)" in result.stdout
    assert "shapes" in result.stdout
    assert "started with step" in result.stderr


def test_the_answer_is_json(living: Path) -> None:
    result = call(living, "--steps", 2, "--json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    assert answer["state"] == "ended"
    told = answer["workers"]["worker_0"]
    assert told["last_step"] - told["first_step"] == 1
    (found,) = answer["found"]["worker_0"]
    calls = {row["name"]: row["calls"] for row in found["operators"]}
    assert calls["aten::addmm"] == 2


def test_a_second_request_is_refused(living: Path) -> None:
    request_profile(living, window=td.WindowConfig(start_step=1_000_000))
    result = call(living, "--steps", 2)
    assert result.exit_code == 1
    assert "waits for its window: one at a time" in result.output


def test_settings_are_changed(living: Path) -> None:
    result = call(living, "--set", "system_interval=0.5", "--set", "budget=0.5")
    assert result.exit_code == 0, result.output
    assert "the settings have changed" in result.stderr


def test_what_can_never_work_is_refused_before_anybody_is_asked(living: Path) -> None:
    for arguments, words in (
        (["--steps", 2, "--seconds", 1.0], "by steps or by time, not both"),
        (["--steps", 2, "--seconds", 1.0], "remove --steps, or --seconds"),
        (["--steps", 0], "--steps must be from 1 to 10,000 steps, not 0"),
        (["--kinds", "kernels"], "--kinds: unknown 'kernels'"),
        (["--kinds", "cprofile,pyinstrument"], "not both in one window"),
        (["--set", "system_interval=0.01"], "system_interval must be from 0.05"),
        (["--set", "windows=3"], "cannot change 'windows'"),
        (["--set", "budget=0.1", "--steps", 2], "ask for one at a time"),
    ):
        result = call(living, *arguments)
        assert result.exit_code == 2, result.output
        assert words in result.output
    assert not list((living / "ctl").glob("*.json"))


def test_a_training_that_has_ended_is_not_asked(run_dir: Path) -> None:
    with td.Hook(run_dir) as hook:
        hook.register_module(nn.Linear(2, 2))
    result = call(run_dir)
    assert result.exit_code == 1
    assert "the training has ended" in result.stdout
    assert json.loads(call(run_dir, "--json").stdout)["state"] == "ended"


def test_a_run_that_is_none_is_named(tmp_path: Path) -> None:
    result = call(tmp_path / "nothing")
    assert result.exit_code == 3
    assert "nothing" in result.output


def test_whoever_does_not_wait_is_told_that_it_is_asked(living: Path) -> None:
    result = call(living, "--wait", 0)
    assert result.exit_code == 0
    assert result.stdout.startswith("asked")
