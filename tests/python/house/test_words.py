"""The words of docs/glossary.md: names that the code once had of its own stay away."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

#: A name that is gone -> the one that stands in the glossary.
GONE = {
    "Taker": "BatchCapture",
    "CallTaker": "ModuleCallCapture",
    "ParameterList": "ParameterCapture",
    "Occasion": "CaptureContext",
    "StepWants": "StepPlan",
    "RemoteTensors": "DeviceTensors",
    "LateSteps": "PendingSteps",
    "OtherTensors": "fallback",
    "SingleTensors": "fallback",
    "ModuleTap": "ModuleCapture",
    "LossTap": "LossCapture",
    "InsideHooks": "SubmoduleHooks",
    "Parking": "RemovableHooks",
    "Judgement": "Evaluation",
    "look_back": "lookback",
    "Isolated": "SandboxedRule",
    "WriterView": "WriterReader",
    "HEALTHY": "OK",
    "Sink": "writer",
    "UnitQuestion": "UnitSummarySpec",
}
# Words that are plain English elsewhere.
GONE_IN_PYTHON = {"wanted": "requested", "wants": "step_plan, requests, needs"}
FOLDERS = ("cpp", "python", "docs")
SUFFIXES = {".py", ".pyi", ".h", ".cc", ".cu", ".md"}


@pytest.mark.parametrize("word", sorted({**GONE, **GONE_IN_PYTHON}))
def test_a_name_that_was_replaced_does_not_come_back(
    repository: Path, word: str
) -> None:
    pattern = re.compile(rf"\b{word}\b")
    found = [
        f"{path.relative_to(repository)}:{number}"
        for folder in (FOLDERS if word in GONE else ("python",))
        for path in sorted((repository / folder).rglob("*"))
        if path.suffix in SUFFIXES and "node_modules" not in path.parts
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == [], f"use {({**GONE, **GONE_IN_PYTHON})[word]}"
