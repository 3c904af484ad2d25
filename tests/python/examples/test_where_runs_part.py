"""The example of `tdbg diff`: each fault is named at its module."""

from __future__ import annotations

from pathlib import Path

import pytest

import tdbg
from examples.where_runs_part import __main__ as example


@pytest.mark.torch
def test_each_fault_is_named_at_its_module(tmp_path: Path) -> None:
    found = example.main(tmp_path)
    assert found.keys() == example.FAULTS.keys()
    for name, fault in example.FAULTS.items():
        first = found[name].first
        assert first is not None
        assert (first.module, first.step) == (fault.module, 0)
    assert "transposed" in str(found["transposed"].first)


@pytest.mark.torch
def test_a_training_that_is_the_same_is_no_difference(tmp_path: Path) -> None:
    example.train(tmp_path / "one", example.Model)
    example.train(tmp_path / "other", example.Model)
    assert tdbg.diff(tmp_path / "one", tmp_path / "other").is_same
