"""The example of a training that waits: the advised change gives what it promised."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from examples import loader_bound
from examples.loader_bound import __main__ as program

assert loader_bound.__doc__

pytestmark = pytest.mark.torch


# It measures time: on a machine that others load, the promise is no matter of tdbg.
@pytest.mark.nightly
@pytest.mark.serial
@pytest.mark.slow
def test_the_promised_gain_is_met_and_the_training_costs_less(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = program.main([f"--out={tmp_path}", "--steps=450"])
    printed = capfd.readouterr().out
    assert code == 0, printed
    assert "[NOT SO]" not in printed
    assert re.search(r"DataLoaderBound: Set num_workers=[3-8]:", printed)
    saved = re.search(r"the same 450 steps cost (\d+) % less", printed)
    assert saved is not None
    assert int(saved[1]) >= 50


def test_a_rule_that_is_silent_fails_the_example(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "train", Mock())
    monkeypatch.setattr(program, "advice_on", Mock(return_value=None))
    assert program.main([f"--out={tmp_path}"]) == 1
    assert "[NOT SO] DataLoaderBound says nothing" in capsys.readouterr().out
