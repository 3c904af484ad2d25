"""Runs of many tensors: no question looks at each tensor for each tensor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from run_builder import RunBuilder
from tdbg._core import Definition
from tdbg.cli import _tdbg
from tdbg.config import Role
from tdbg.config.collections import Collection
from tdbg.trial import Trial, create_trial, layout, writers
from tdbg.trial.row_index import RowBlocks
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
def test_a_question_about_all_tensors_makes_an_object_of_none(
    trial: Trial, ask: Callable[[Trial], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, asked = listed(monkeypatch), asked_one_by_one(monkeypatch)
    ask(trial)
    assert not passes
    assert len(asked) <= 8
    # What was put together for the answer is gone.
    assert trial._run._tensors is None
    (writer,) = trial._run.newest
    assert len(writer.definitions._found) <= 8
    assert len(writer.ids._found) <= 8


def asked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """List the definitions and the names that are looked up from now on."""
    asked: list[object] = []
    for mapping in (writers.Definitions, writers.Ids):
        find = mapping.__getitem__

        def counted(self: Any, key: Any, find: Any = find) -> Any:
            asked.append(key)
            return find(self, key)

        monkeypatch.setattr(mapping, "__getitem__", counted)
    return asked


def test_the_layout_of_all_tensors_asks_none_by_itself(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MAX_NAMES", N // 2)
    passes, asked = listed(monkeypatch), asked_one_by_one(monkeypatch)
    found = trial.statistics()
    assert len(found.names) == N + 1
    assert not passes
    assert not asked
    assert not trial._layouts._kept  # Of so many it would take megabytes.


def test_an_estimate_reads_no_row(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> None:
        pytest.fail("rows were read")

    monkeypatch.setattr(RowBlocks, "read", none)
    found = control.estimate(
        trial, collections=["weights"], regex=[], interval=1, steps=1, raw=True
    )
    assert (found.tensors, found.bytes) == (N + 1, (N + 1) * (240 + 4 * 4))
    assert found.seconds is not None


OPEN = """
import sys
from pathlib import Path
from tdbg._core import RunReader
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
before = resident()
readers = [RunReader(sys.argv[1]) for _ in range(10)]
print((resident() - before) / sum(each.n_definitions for each in readers))
"""


def test_a_tensor_takes_few_bytes_of_a_reader(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        array = np.ones(4, np.float32)
        for i in range(2000):
            run.define(f"model.layers.{i}.self_attn.q_proj.weight", array, Role.WEIGHT)
            run.save(0, f"model.layers.{i}.self_attn.q_proj.weight", array)
        run.end_step(0)
    (writer,) = (run_dir / "w").iterdir()
    command = [sys.executable, "-c", OPEN, str(writer)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert float(done.stdout) < 400  # As objects and in two maps, it takes 600.


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


def test_the_list_of_tensors_asks_for_all_steps_at_once(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    place = Trial.training_steps_at

    def counted(self: Trial, global_steps: Sequence[int]) -> list[int]:
        asked.append(len(global_steps))
        return place(self, global_steps)

    monkeypatch.setattr(Trial, "training_steps_at", counted)
    done = CliRunner().invoke(_tdbg, ["ls", trial.path], catch_exceptions=False)
    assert done.stdout.count("layers.") == N
    assert len(asked) < 16
