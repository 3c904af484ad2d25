"""Tables of a run in pandas, Arrow, polars and xarray."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from run_builder import RunBuilder, simple_run
from tdbg.config import Role
from tdbg.errors import (
    ConfigurationError,
    NoMoreData,
    QueryError,
    ShapeUnavailableForStep,
    StepUnavailable,
)
from tdbg.modes import ModeKeys
from tdbg.run.schema import EventKind
from tdbg.trial import TABLES, Trial, create_trial


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    """Training steps 0, 1, 2, evaluation after each, and an engine's finding."""
    path = tmp_path / "a"
    with RunBuilder(path) as run:
        for step in range(6):
            mode = (ModeKeys.TRAIN, ModeKeys.EVAL)[step % 2]
            if mode is ModeKeys.TRAIN:
                weight = np.full((2, 3), step, ml_dtypes.bfloat16)
                run.save(step, "fc.weight", weight)
            loss = np.array(step / 2, np.float32)
            run.save(step, "loss_output_0", loss, role=Role.LOSS)
            run.scalar(step, "scalar/accuracy", step / 10, wall_ns=10**18 + step)
            run.end_step(step, mode, duration_ns=2_000_000)
    told = {
        "rule": "ExplodingTensor",
        "severity": "error",
        "step": 2,
        "mode": "TRAIN",
        "tensor": "fc.weight",
        "message": "m",
        "first_step": 2,
        "last_step": 2,
        "value": 7.5,
    }
    with RunBuilder(path, role="engine") as engine:
        engine.event(EventKind.FINDING, told)
    return create_trial(path)


@pytest.mark.parametrize("table", [each for each in TABLES if each != "runs"])
def test_every_table_has_its_columns_and_types(trial: Trial, table: str) -> None:
    columns = TABLES[table]
    frame, arrow, polars = (
        trial.to_pandas(table),
        trial.to_arrow(table),
        trial.to_polars(table),
    )
    assert len(frame) == arrow.num_rows == len(polars) > 0
    assert [*frame.columns] == arrow.column_names == polars.columns == [*columns.names]
    for column in columns:
        kind = str(frame[column.name].dtype)
        expected = {
            "word": "category",
            "text": "str",
            "time": "datetime64[ns, UTC]",
            "int64": "Int64" if column.nullable else "int64",
        }
        assert kind == expected.get(column.kind, column.kind), column.name
        field = arrow.schema.field(column.name)
        assert field.metadata[b"meaning"].decode() == column.meaning
    assert polars.equals(pl.from_arrow(arrow))


def test_steps_are_told_in_all_counts(trial: Trial) -> None:
    frame = trial.to_pandas(names="loss_output_0")
    assert frame["global_step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert frame["step"].tolist() == trial.training_steps_at(range(6))
    assert frame["mode"].tolist() == ["TRAIN", "EVAL"] * 3
    assert frame["mode_step"].tolist() == [0, 0, 1, 1, 2, 2]
    assert set(frame["role"]) == {"loss"}


def test_scalars_have_value_and_time(trial: Trial) -> None:
    frame = trial.to_pandas("scalars", mode="EVAL")
    assert frame["value"].tolist() == [0.1, 0.3, 0.5]
    assert frame["time"][0] == pd.Timestamp(10**18 + 1, tz="UTC")
    with pytest.raises(QueryError, match="no scalar 'scalar/acuracy'; did you mean"):
        trial.to_pandas("scalars", "scalar/acuracy")


def test_times_of_steps_are_in_seconds(trial: Trial) -> None:
    assert trial.to_pandas("steps")["duration"].tolist() == [0.002] * 6


def test_what_a_finding_lacks_is_null(trial: Trial) -> None:
    (finding,) = trial.to_arrow("findings").to_pylist()
    assert (finding["value"], finding["threshold"]) == (7.5, None)
    assert (finding["step"], finding["global_step"]) == (1, 2)
    frame = trial.to_pandas("findings")
    assert np.isnan(frame["threshold"][0])
    assert trial.to_pandas("findings", "fc.bias").empty


def test_an_event_without_a_step_has_none(trial: Trial) -> None:
    frame = trial.to_pandas("events", columns=["kind", "global_step", "data"])
    assert frame["kind"].tolist() == ["finding"]
    assert frame["global_step"].isna().all()
    assert '"rule": "ExplodingTensor"' in frame["data"][0]


def test_a_wide_table_has_a_column_for_each_tensor(trial: Trial) -> None:
    frame = trial.to_pandas(wide=True)
    assert [*frame.columns] == ["fc.weight", "loss_output_0"]
    assert frame.index.names == ["mode", "step"]
    assert frame.loc["TRAIN"]["loss_output_0"].tolist() == [0, 1, 2]
    assert frame.loc["EVAL"]["fc.weight"].isna().all()
    frame = trial.to_pandas(wide=True, columns=["mean", "zero"])
    assert frame[("zero", "fc.weight")].tolist()[::2] == [6, 0, 0]
    table = trial.to_arrow("scalars", wide=True)
    assert table.column_names[:4] == ["step", "mode", "mode_step", "global_step"]
    assert table["scalar/accuracy"].to_pylist() == [0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert trial.to_polars(wide=True, columns=["mean", "max"]).columns[4:] == [
        *("mean/fc.weight", "mean/loss_output_0"),
        *("max/fc.weight", "max/loss_output_0"),
    ]


def test_only_numbers_are_spread(trial: Trial) -> None:
    with pytest.raises(QueryError, match="'findings' cannot be wide"):
        trial.to_pandas("findings", wide=True)
    with pytest.raises(QueryError, match="'role' cannot be spread"):
        trial.to_pandas(wide=True, columns="role")


def test_a_lazy_frame_reads_the_columns_of_its_query(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tdbg.trial.tables import table as tables

    asked, read = [], tables._statistics_batches

    def spy(run: object, columns: list[str], scope: object) -> object:
        asked.append(columns)
        return read(run, columns, scope)  # type: ignore[arg-type]

    lazy = trial.to_polars(lazy=True)
    assert isinstance(lazy, pl.LazyFrame)
    monkeypatch.setattr(tables, "_statistics_batches", spy)
    query = lazy.filter(pl.col("role") == "loss").group_by("tensor")
    found = query.agg(pl.col("mean").max()).collect()
    assert found.rows() == [("loss_output_0", 2.5)]
    assert sorted(asked[0]) == ["mean", "role", "tensor"]
    assert lazy.head(2).collect().height == 2
    with pytest.raises(ConfigurationError, match="wide"):
        trial.to_polars(lazy=True, wide=True)


def test_a_reader_yields_batches(trial: Trial) -> None:
    reader = trial.to_arrow_reader(columns=["tensor", "l2"])
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.read_all().num_rows == 9


def test_statistics_convert_by_themselves(trial: Trial) -> None:
    statistics = trial.statistics()
    frame = pd.DataFrame(statistics)
    whole = trial.to_pandas(columns=[*frame.columns])
    assert [*frame.columns][:3] == ["tensor", "global_step", "count"]
    pd.testing.assert_frame_equal(
        frame, whole, check_dtype=False, check_categorical=False
    )
    table = pa.table(statistics)
    assert table["l2"].to_pylist() == whole["l2"].tolist()
    assert pl.DataFrame(statistics)["tensor"].to_list() == whole["tensor"].tolist()


def test_values_over_steps_are_a_dataset(trial: Trial) -> None:
    found = trial.to_xarray("fc.weight")
    assert found["fc.weight"].dims == ("step", "fc.weight_0", "fc.weight_1")
    assert found["fc.weight"].dtype == ml_dtypes.bfloat16
    assert found["step"].values.tolist() == [0, 1, 2]
    assert found["global_step"].values.tolist() == [0, 2, 4]
    assert found["mode"].values.tolist() == ["TRAIN"] * 3
    as_float = trial.to_xarray(["fc.weight"], [1, 2], dtype="float32")["fc.weight"]
    assert as_float.dtype == np.float32
    assert as_float.mean(("fc.weight_0", "fc.weight_1")).values.tolist() == [2, 4]


def test_values_are_read_when_somebody_looks_at_them(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tdbg.trial import TensorHandle

    read, asked = TensorHandle.value, []

    def spy(self: TensorHandle, step: int, *rest: object) -> object:
        asked.append(step)
        return read(self, step, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(TensorHandle, "value", spy)
    found = trial.to_xarray(["fc.weight", "loss_output_0"])
    assert asked == []
    assert float(found["fc.weight"].isel(step=-1)[0, 1].values) == 4
    assert asked == [4]
    assert found["fc.weight"][1:, 0, ::2].shape == (2, 2)
    assert found["fc.weight"][1:, 0, ::2].values.tolist() == [[2, 2], [4, 4]]


def test_steps_and_shapes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "a") as run:
        for step, n in ((0, 4), (1, 4), (2, 2), (6, 4)):
            run.step(step, {"fc_output_0": np.ones(n, np.float32)})
    trial = create_trial(tmp_path / "a")
    with pytest.raises(
        ShapeUnavailableForStep, match="global step 2, and \\(4,\\) at 0"
    ):
        trial.to_xarray("fc_output_0")
    assert trial.to_xarray("fc_output_0", [0, 1])["fc_output_0"].shape == (2, 4)
    with pytest.raises(NoMoreData, match=r"step 9 will not come: .* its last is 6"):
        trial.to_xarray("fc_output_0", [9])
    with pytest.raises(
        StepUnavailable, match=r"4 was not saved; the nearest .* 2 or 6"
    ):
        trial.to_xarray("fc_output_0", [4])


@pytest.mark.parametrize(
    ("library", "convert"),
    [
        ("pandas", "to_pandas"),
        ("pyarrow", "to_arrow"),
        ("pyarrow", "to_arrow_reader"),
        ("polars", "to_polars"),
    ],
)
def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, convert: str
) -> None:
    simple_run(tmp_path / "a")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigurationError, match=f"needs {library} .*pip install"):
        getattr(create_trial(tmp_path / "a"), convert)()
