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
    "LossTap": "CapturedLoss",
    "LossCapture": "CapturedLoss",
    "LossWatch": "FirstLosses",
    "InsideHooks": "SubmoduleHooks",
    "Parking": "RemovableHooks",
    "Judgement": "Evaluation",
    "look_back": "lookback",
    "Isolated": "SandboxedRule",
    "WriterView": "WriterReader",
    "HEALTHY": "OK",
    "Sink": "writer",
    "UnitQuestion": "UnitSummarySpec",
    "RunLosses": "LostRecords",
    "WriterLosses": "WriterLostRecords",
    "print_losses": "print_lost_records",
    "Parting": "DivergencePoint",
    "TrackedParameter": "WatchedParameter",
    "BoosterModel": "XGBoostModel, LightGBMModel",
    "judgement_of": "diagnosis_of",
    "untold": "unreported",
}
# Words that are plain English elsewhere.
GONE_IN_PYTHON = {"wanted": "requested", "wants": "step_plan, requests, needs"}
FOLDERS = ("cpp", "python", "docs")
SUFFIXES = {".py", ".pyi", ".h", ".cc", ".cu", ".md"}


@pytest.fixture(scope="module")
def found(repository: Path) -> dict[str, list[str]]:
    """The places of each word, all found in one pass."""
    words = {**GONE, **GONE_IN_PYTHON}
    pattern = re.compile(rf"\b({'|'.join(words)})\b")
    places: dict[str, list[str]] = {word: [] for word in words}
    for folder in FOLDERS:
        for path in sorted((repository / folder).rglob("*")):
            if path.suffix not in SUFFIXES or "node_modules" in path.parts:
                continue
            text = path.read_text("utf-8")
            for match in pattern.finditer(text):
                if match[1] in GONE or folder == "python":
                    line = text.count("\n", 0, match.start()) + 1
                    name = path.relative_to(repository)
                    places[match[1]].append(f"{name}:{line}")
    return places


@pytest.mark.parametrize("word", sorted({**GONE, **GONE_IN_PYTHON}))
def test_a_name_that_was_replaced_does_not_come_back(
    found: dict[str, list[str]], word: str
) -> None:
    assert found[word] == [], f"use {({**GONE, **GONE_IN_PYTHON})[word]}"
