"""Public bugs are named by what healthy twins teach; reruns of twins are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tdbg
from benchmarks.learnt.__main__ import BUGGY, GOOD, RERUNS, check
from benchmarks.learnt.programs import PROGRAMS

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("SO-60335387", "training", "Gradients are not cleared between steps."),
        ("MM-702", "fc1.weight", "It requires a gradient."),
        ("LT-725", "fc1_output_0", "Its element type is float32, and bfloat16"),
        ("SO-67180955", "Classifier_input_0", "It no longer changes"),
    ],
)
def test_a_bug_is_named_and_a_rerun_is_not(
    name: str, tensor: str, said: str, tmp_path: Path
) -> None:
    program, out = PROGRAMS[name], str(tmp_path / "invariants.json")
    for folder, settings, buggy in (
        ("good", GOOD, False),
        ("buggy", BUGGY, True),
        ("rerun", RERUNS[1], False),
    ):
        torch.manual_seed(settings.seed)
        program.train(str(tmp_path / folder), settings, buggy)
    tdbg.learn(tmp_path / "good", out=out)
    first, *_ = check(str(tmp_path / "buggy"), out)
    assert first.tensor == tensor
    assert first.message.startswith(said)
    assert not check(str(tmp_path / "rerun"), out)
