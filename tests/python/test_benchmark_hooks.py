"""The benchmark of idle hooks verifies what it measures."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks._harness import WrongAnswer
from benchmarks.hooks import idle

pytestmark = pytest.mark.torch


def test_every_contender_is_measured_and_verified(tmp_path: Path) -> None:
    given = argparse.Namespace(modules=3, rounds=1, quick=True, seed=1, seconds=60.0)
    report = idle.measure(given, tmp_path)
    names = [row[0] for row in report.tables[0].rows]
    assert names == [*idle.HOOKED, idle.BESIDE, "plain / plain"]


def test_a_step_that_was_captured_is_noticed(tmp_path: Path) -> None:
    contender = idle.Contender(3, ("outputs",), tmp_path)
    contender.block(2)()
    assert contender.hook is not None
    contender.hook.get_collection("outputs").save_config = idle.td.SaveConfig(
        statistics_interval=3
    )
    contender.block(3)()
    with pytest.raises(WrongAnswer, match="steps of"):
        contender.check()


def test_a_training_that_differs_is_noticed() -> None:
    with pytest.raises(WrongAnswer, match="losses of losses"):
        idle.check_losses({"plain": [1.0], "losses": [1.5]})
