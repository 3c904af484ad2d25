"""The example of boosted trees finds what its page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import boosted_trees
from examples.boosted_trees import __main__ as program

assert boosted_trees.__doc__


def test_each_fault_is_found_and_the_healthy_training_is_not_blamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main([f"--out={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert "[NOT SO]" not in printed
    healthy, leak = printed.splitlines()[:2]
    assert healthy.startswith("healthy: AUC 0.9")
    assert leak.startswith("leak: AUC 0.9")
    assert "f30, one of 31 features, has 97% of the gain of all splits" in printed


def test_a_rule_that_is_silent_fails_the_example(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "default_rules", lambda: ("TreeDepth",))
    leak = {"leak": program.cases()["leak"]}
    monkeypatch.setattr(program, "cases", lambda: leak)
    assert program.main([f"--out={tmp_path}"]) == 1
    assert "[NOT SO]" in capsys.readouterr().out
