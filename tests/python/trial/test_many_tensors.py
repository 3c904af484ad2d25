"""Runs of many tensors: no question looks at each tensor for each tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg._core import Definition
from tdbg.config import Role
from tdbg.config.collections import Collection
from tdbg.trial import Trial, create_trial, writers
from tdbg.ui import control, documents

N = 300


@pytest.fixture
def trial(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    monkeypatch.setattr(writers, "MOST_KEPT", 16)
    with RunBuilder(run_dir) as run:
        array = np.ones(4, np.float32)
        run.define("tied.weight", array, Role.WEIGHT, aliases=("other.weight",))
        run.save(0, "tied.weight", array, what="statistics")
        for i in range(N):
            name = f"layers.{i}.weight"
            run.define(name, array, Role.WEIGHT)
            run.save(0, name, array, what="statistics")
        run.end_step(0, duration_ns=10**7)
    return create_trial(run_dir)


def listed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the passes over all definitions from now on."""
    passes: list[int] = []
    all_of = writers.Definitions.all

    def counted(self: writers.Definitions) -> dict[int, Definition]:
        found = all_of(self)
        passes.append(len(found))
        return found

    monkeypatch.setattr(writers.Definitions, "all", counted)
    return passes


def test_names_that_no_tensor_has_take_one_pass_over_the_definitions(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = listed(monkeypatch)
    assert not any(trial.has_tensor(f"update/layers.{i}.weight") for i in range(N))
    assert trial.tensor("other.weight").name == "tied.weight"
    assert len(passes) <= 1


@pytest.mark.parametrize(
    "ask",
    [
        documents.described,
        documents.tensors_of,
        Trial.collections,
        lambda trial: control.estimate(
            trial, collections=["weights"], regex=[], interval=1, steps=1, raw=False
        ),
    ],
    ids=["run", "tensors", "collections", "estimate"],
)
def test_a_question_takes_few_passes_and_keeps_few_definitions(
    trial: Trial, ask: Callable[[Trial], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = listed(monkeypatch)
    ask(trial)
    assert len(passes) <= 6
    (writer,) = trial._run.newest
    assert len(writer.definitions._found) <= 16
    assert len(writer.ids._found) <= 16


def test_collections_ask_no_tensor_by_itself_without_an_expression(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    has = Collection.has
    monkeypatch.setattr(
        Collection,
        "has",
        lambda self, name, role: asked.append(name) or has(self, name, role),
    )
    assert len(trial.collections()["weights"].tensor_names) == N + 1
    assert not asked
    only = Collection("mine", r"layers\.1\.")
    assert trial.tensor_names(collection=only) == ["layers.1.weight"]
