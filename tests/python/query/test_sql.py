"""SQL over runs: right answers, little that is read, and nothing that is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.errors import ConfigurationError, NotARun, QueryError
from tdbg.modes import ModeKeys
from tdbg.query import Database, found, sql
from tdbg.run.schema import EventKind
from tdbg.trial import create_trial
from tdbg.trial.tables import table as tables

N_STEPS = 40


def save_run(path: Path, scale: float, n_steps: int = N_STEPS) -> None:
    """Weights and gradients of three layers; every fourth step is of evaluation."""
    with RunBuilder(path) as run:
        for step in range(n_steps):
            mode = ModeKeys.EVAL if step % 4 == 3 else ModeKeys.TRAIN
            for i in range(3):
                value = np.full(4, scale * (step + i), np.float32)
                run.save(step, f"layer{i}.weight", value, what="statistics")
                run.save(step, f"gradient/layer{i}.weight", -value, what="statistics")
            loss = np.array(scale / (1 + step), np.float32)
            run.save(step, "loss_output_0", loss, role=Role.LOSS)
            run.scalar(step, "scalar/accuracy", step / N_STEPS)
            run.scalar(step, "scalar/optimizer/lr", scale)
            run.end_step(step, mode)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    for i in range(5):
        save_run(path / f"run{i}", scale=1.0 + i)
    return path


@pytest.fixture(scope="module")
def whole(folder: Path) -> pd.DataFrame:
    """All rows of statistics, as each run gives them by itself."""
    parts = []
    for path in sorted(folder.iterdir()):
        frame = create_trial(path).to_pandas()
        for name in ("tensor", "role", "mode"):
            frame[name] = frame[name].astype(str)
        parts.append(frame.assign(run=path.name))
    return pd.concat(parts, ignore_index=True)


class Reads:
    """The runs that are opened, and the definitions that are gathered, by run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        self.gathered: list[tuple[str, int, int]] = []
        opens, gathers = found.create_trial, tables._of_source

        def create(path: str) -> object:
            self.opened.append(Path(path).name)
            return opens(path)

        def gather(layout: Any, chosen: range, steps: Any, *rest: Any) -> object:
            run = Path(layout.source.writer.directory.path).parents[1].name
            self.gathered.append((run, len(chosen), len(steps)))
            return gathers(layout, chosen, steps, *rest)

        monkeypatch.setattr(found, "create_trial", create)
        monkeypatch.setattr(tables, "_of_source", gather)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


CONDITIONS = [
    "tensor = 'layer1.weight'",
    "tensor in ('layer1.weight', 'nothing', 'loss_output_0')",
    "tensor like 'gradient/%'",
    "tensor <> 'layer1.weight'",
    "run = 'run3' and tensor = 'layer0.weight'",
    "(run = 'run1' and tensor = 'layer0.weight') or (run = 'run2' and step = 5)",
    "run > 'run2' and role = 'gradient'",
    "step = 7",
    "step between 3 and 5 and mode = 'TRAIN'",
    "mode = 'EVAL' and mode_step >= 4",
    "global_step < 9 or global_step >= 35",
    "mode <> 'TRAIN'",
    "l2 > 100 and role = 'weight'",
    "step = 7 and step = 8",
    "tensor is null",
    "role in ('loss', 'gradient') and not (mode = 'EVAL')",
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_filter_changes_no_answer(
    folder: Path, whole: pd.DataFrame, condition: str
) -> None:
    query = "select run, tensor, mode, global_step, l2 from {} where {} order by all"
    with duckdb.connect() as plain:
        plain.register("whole", whole)
        expected = plain.execute(query.format("whole", condition)).fetchall()
    assert list(sql(query.format("statistics", condition), folder)) == expected


def test_one_tensor_of_many_runs_reads_no_other(folder: Path, reads: Reads) -> None:
    answer = sql(
        "select run, max(l2) from statistics where tensor = 'layer1.weight' "
        "group by run order by run",
        folder,
    )
    assert [row[1] for row in answer] == [2 * (1 + i) * N_STEPS for i in range(5)]
    assert sorted(reads.gathered) == [(f"run{i}", 1, N_STEPS) for i in range(5)]


def test_a_run_that_is_not_asked_for_is_not_opened(folder: Path, reads: Reads) -> None:
    query = "select count(*) from statistics where run in ('run1', 'run4')"
    assert list(sql(query, folder)) == [(2 * 7 * N_STEPS,)]
    assert sorted(reads.opened) == ["run1", "run4"]
    query = "select state from runs where run = 'run2'"
    assert list(sql(query, folder)) == [("closed",)]
    assert sorted(reads.opened) == ["run1", "run2", "run4"]


def test_steps_and_modes_that_are_not_asked_for_are_not_read(
    folder: Path, reads: Reads
) -> None:
    sql("select * from statistics where global_step = 20 and run = 'run0'", folder)
    assert reads.gathered == [("run0", 7, 1)]
    reads.gathered.clear()
    sql("select max(l2) from statistics where mode = 'EVAL' and run = 'run0'", folder)
    assert reads.gathered == [("run0", 7, N_STEPS // 4)]


def test_each_run_is_filtered_by_its_own_steps(tmp_path: Path, reads: Reads) -> None:
    for name, every in {"a": 1, "b": 1, "c": 3}.items():
        with RunBuilder(tmp_path / name) as run:
            for step in range(0, 30, every):
                value = np.full(4, step, np.float32)
                run.save(step, "w", value, what="statistics")
                run.end_step(step)
    query = "select run, l2 from statistics where global_step between 3 and 6"
    found = sorted(sql(query, tmp_path))
    all_steps = [(name, 2.0 * step) for name in "ab" for step in (3, 4, 5, 6)]
    assert found == [*all_steps, ("c", 6.0), ("c", 12.0)]
    assert sorted(reads.gathered) == [("a", 1, 4), ("b", 1, 4), ("c", 1, 2)]


def test_tables_join(folder: Path) -> None:
    answer = sql(
        'select r.run, r.settings."optimizer/lr" as lr, max(s.value) as accuracy '
        "from runs r join scalars s using (run) "
        "where s.name = 'scalar/accuracy' and r.settings.\"optimizer/lr\" > 3 "
        "group by all order by lr desc",
        folder,
    )
    assert list(answer) == [("run4", 5.0, 39 / 40), ("run3", 4.0, 39 / 40)]


def test_runs_have_losses_metrics_and_settings(folder: Path) -> None:
    (row,) = sql("select * from runs where run = 'run1'", folder).rows()
    assert row["path"] == str(folder / "run1")
    assert (row["state"], row["verdict"], row["steps"]) == ("closed", "unjudged", 30)
    assert row["loss"] == row["last"]["loss_output_0"] == np.float32(2 / 39)
    assert row["best"]["accuracy (EVAL)"] == 39 / 40
    assert row["created"].tzinfo is not None
    assert row["error"] is None


def test_a_setting_is_a_number_where_all_runs_say_one(tmp_path: Path) -> None:
    for name, settings in {
        "a": {"width": "64", "kind": "1", "only": True},
        "b": {"width": "128", "kind": "two"},
    }.items():
        with RunBuilder(tmp_path / name) as run:
            run.event(EventKind.CONFIGURATION, settings)
            run.step(0, {"w": np.ones(2, np.float32)})
    query = "select settings.width, settings.kind, settings.only from runs order by run"
    assert list(sql(query, tmp_path)) == [(64, "1", "yes"), (128, "two", None)]


def test_findings_and_events_are_asked_too(tmp_path: Path) -> None:
    save_run(tmp_path / "a", 1.0)
    told = {
        "rule": "ExplodingTensor",
        "severity": "error",
        "step": 2,
        "mode": "TRAIN",
        "tensor": "layer0.weight",
        "message": "m",
        "first_step": 2,
        "last_step": 2,
    }
    with RunBuilder(tmp_path / "a", role="engine") as engine:
        engine.event(EventKind.FINDING, told, step=2)
    query = "select run, rule, step, threshold from findings where severity = 'error'"
    assert list(sql(query, tmp_path)) == [("a", "ExplodingTensor", 2, None)]
    query = "select data->>'rule' from events where kind = 'finding'"
    assert list(sql(query, tmp_path)) == [("ExplodingTensor",)]


def test_a_training_is_seen_as_it_is_at_the_query(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "a") as run:
        database = Database(tmp_path)
        for step in range(3):
            run.step(step, {"w": np.ones(2, np.float32)})
            run.flush()
            query = "select count(*), max(step) from statistics"
            assert list(database.sql(query)) == [(step + 1, step)]


@pytest.mark.parametrize(
    "query",
    [
        "copy statistics to '{file}'",
        "copy (select 1) to '{file}'",
        "select * from read_text('{secret}')",
        "select * from '{secret}'",
        "select * from read_csv('{secret}')",
        "select * from glob('{folder}/*')",
        "attach '{file}'",
        "export database '{file}'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "create table t as select * from steps",
        "select 1; copy (select 1) to '{file}'",
        "pragma database_list",
        "select * from secret_frame",
    ],
)
def test_a_query_reads_runs_and_nothing_else(
    folder: Path, tmp_path: Path, query: str
) -> None:
    secret_frame = pd.DataFrame({"password": ["x"]})
    assert len(secret_frame)
    secret = tmp_path / "secret.csv"
    secret.write_text("password\nx\n")
    names = {"file": tmp_path / "new", "secret": secret, "folder": tmp_path}
    with pytest.raises(QueryError):
        sql(query.format(**names), folder)
    assert [*tmp_path.iterdir()] == [secret]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select tensr from statistics", 'Candidate bindings: "tensor"'),
        ("select * from statistic", "no table 'statistic'; did you mean 'statistics'"),
        ("select settings.lrr from runs", 'Could not find key "lrr" in struct'),
        ("selec 1", "syntax error"),
        ("select 1; select 2", "one SELECT at a time, not 2"),
        ("", "one SELECT at a time, not 0"),
        ("delete from runs", "use SELECT, not DELETE"),
    ],
)
def test_a_wrong_query_is_told_what_there_is(
    folder: Path, query: str, message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        sql(query, folder)


def test_values_of_a_query_are_given_apart(folder: Path) -> None:
    query = "select count(*) from statistics where tensor = $name and step < $step"
    answer = sql(query, folder, parameters={"name": "layer0.weight", "step": 3})
    assert list(answer) == [(5 * 3,)]


def test_a_run_that_cannot_be_read_is_told_and_hides_no_other(tmp_path: Path) -> None:
    save_run(tmp_path / "good", 1.0)
    save_run(tmp_path / "bad", 1.0)
    (tmp_path / "bad" / "RUN.json").write_text("{")
    answer = sql("select distinct run from statistics", tmp_path)
    assert list(answer) == [("good",)]
    assert list(answer.unreadable) == ["bad"]
    answer = sql("select run, state, error is null from runs order by run", tmp_path)
    assert list(answer) == [("bad", "unreadable", False), ("good", "closed", True)]


def test_a_place_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match="no run at"):
        sql("select 1", tmp_path / "nothing")


def test_runs_may_be_trials_paths_and_patterns(folder: Path) -> None:
    query = "select run from runs order by run"
    assert list(sql(query, create_trial(folder / "run1"))) == [("run1",)]
    assert list(sql(query, f"{folder}/run[12]")) == [("run1",), ("run2",)]
    paths = [folder / "run3", str(folder / "run0"), folder / "run3"]
    assert list(sql(query, paths)) == [("run0",), ("run3",)]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for sweep in ("a", "b"):
        save_run(tmp_path / sweep / "run0", 1.0, n_steps=1)
    assert list(sql("select run from runs order by 1", tmp_path)) == [
        ("a/run0",),
        ("b/run0",),
    ]


def test_an_answer_converts(folder: Path) -> None:
    answer = sql("select run, sum(count) as n from statistics group by run", folder)
    assert answer.columns == ["run", "n"]
    assert len(answer) == 5
    assert answer.to_arrow().schema.field("n").type == pa.int64()
    assert answer.to_pandas()["n"].dtype == np.int64
    assert answer.to_polars().equals(pl.DataFrame(answer))
    assert repr(answer) == "QueryAnswer(5 rows: run, n)"
    assert len(str(answer).splitlines()) == 6


def test_a_missing_library_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigurationError, match=r"needs duckdb .*: pip install"):
        sql("select 1", folder)
