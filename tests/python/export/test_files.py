"""Values and rows of runs as files, read by the libraries that people use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
import zarr
from click.testing import CliRunner
from pyarrow import parquet
from safetensors.torch import load_file

from run_builder import RunBuilder
from tdbg.cli import _tdbg
from tdbg.errors import ConfigurationError, StorageError, TdbgError
from tdbg.export import export_npz, export_parquet, export_safetensors, export_zarr
from tdbg.trial import create_trial

TYPES = {
    "bool": np.array([True, False]),
    **{f"int{n}": np.array([-3, 5], f"int{n}") for n in (8, 16, 32, 64)},
    **{f"uint{n}": np.array([3, 5], f"uint{n}") for n in (8, 16, 32, 64)},
    **{f"float{n}": np.array([0.5, -2, np.nan], f"float{n}") for n in (16, 32, 64)},
    "bfloat16": np.array([1.5, -2.25, np.inf], ml_dtypes.bfloat16),
    "e4m3": np.array([[1.5, -2.25]], ml_dtypes.float8_e4m3fn),
    "e5m2": np.array([1.5, 0.25], ml_dtypes.float8_e5m2),
    "empty": np.zeros((0, 3), np.float32),
    "gradient/fc.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Steps 0 to 9: all types at 0 and 5, and w at each, smaller at the last."""
    path = tmp_path / "run"
    with RunBuilder(path) as run:
        for step in range(10):
            if step % 5 == 0:
                for name, array in TYPES.items():
                    run.save(step, name, array, what="values")
            n = 3 if step == 9 else 4
            run.save(step, "w", np.full(n, step, np.float32))
            run.save(step, "b", np.full(2, step, ml_dtypes.bfloat16))
            run.scalar(step, "lr", 0.1 * step)
            run.end_step(step)
    return path


def as_expected(found: Any, expected: np.ndarray[Any, Any]) -> None:
    assert found.shape == expected.shape
    np.testing.assert_array_equal(
        np.asarray(found, np.float64), expected.astype(np.float64)
    )


def test_safetensors_keeps_every_type(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "step.safetensors"
    report = export_safetensors(run, out, step=5)
    assert report.tensors == len(TYPES) + 3
    assert (report.first_step, report.n_bytes) == (5, out.stat().st_size)
    found = load_file(out)
    for name, array in TYPES.items():
        as_expected(found[name].double().numpy(), array)
    assert found["bfloat16"].dtype == torch.bfloat16
    assert found["e4m3"].dtype == torch.float8_e4m3fn
    assert found["e5m2"].dtype == torch.float8_e5m2
    as_expected(found["w"].numpy(), np.full(4, 5.0))
    with safetensors.safe_open(out, "np") as file:
        assert file.metadata()["tdbg.step"] == "5"


def test_npz_is_what_numpy_loads_without_pickle(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "step.npz"
    export_npz(run, out, step=0)
    with np.load(out) as found:
        for name, array in TYPES.items():
            as_expected(found[name], array)
        assert found["bfloat16"].dtype == np.float32
        assert found["int8"].dtype == np.int8


def test_a_selection_is_of_names_expressions_or_collections(
    run: Path, tmp_path: Path
) -> None:
    for number, (chosen, names) in enumerate(
        (
            ({"names": ["w", "b"]}, {"w", "b"}),
            ({"regex": "^gradient/"}, {"gradient/fc.weight"}),
            ({"collection": "gradients"}, {"gradient/fc.weight"}),
        )
    ):
        out = tmp_path / f"{number}.safetensors"
        export_safetensors(run, out, step=5, **chosen)
        assert set(safetensors.numpy.load_file(out)) == names


def test_without_a_step_it_is_the_last_one_with_values(
    run: Path, tmp_path: Path
) -> None:
    assert export_npz(run, tmp_path / "a.npz", names=["w"]).first_step == 9
    assert export_npz(run, tmp_path / "b.npz", names=["bool"]).first_step == 5


def test_parquet_has_the_columns_of_tables(run: Path, tmp_path: Path) -> None:
    trial = create_trial(run)
    for table in ("statistics", "scalars", "steps", "findings", "events"):
        out = tmp_path / f"{table}.parquet"
        report = export_parquet(run, out, table=table)
        found = parquet.read_table(out)
        assert found.num_rows == report.rows
        assert found.equals(trial.to_arrow(table))
    out = tmp_path / "some.parquet"
    export_parquet(run, out, names=["w"], start=2, end=5)
    found = parquet.read_table(out).to_pandas()
    assert found["tensor"].unique().tolist() == ["w"]
    assert found["global_step"].tolist() == [2, 3, 4]
    assert found["mean"].tolist() == [2.0, 3.0, 4.0]


def test_zarr_has_values_over_steps(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "values.zarr"
    report = export_zarr(run, out, regex="^[wb]$|^gradient/")
    assert report.left_out == {"w": "1 steps whose shape is not (4,)"}
    root = zarr.open_group(out, mode="r")
    assert root["w/step"][:].tolist() == list(range(9))
    np.testing.assert_array_equal(
        root["w/value"][:], np.arange(9, dtype=np.float32)[:, None] * np.ones(4)
    )
    assert root["b/value"].dtype == np.float32
    assert root["b"].attrs["dtype"] == "bfloat16"
    assert root["gradient/fc.weight/value"].shape == (2, 3, 4)
    assert root["gradient/fc.weight/value"].chunks == (1, 3, 4)


def test_what_exists_is_replaced_only_on_request(run: Path, tmp_path: Path) -> None:
    for name, export in (("a.npz", export_npz), ("a.zarr", export_zarr)):
        out = tmp_path / name
        export(run, out, names=["w"])
        with pytest.raises(StorageError, match="--force"):
            export(run, out, names=["w"])
        export(run, out, names=["b"], force=True)
    assert set(np.load(tmp_path / "a.npz").files) == {"b"}
    assert set(zarr.open_group(tmp_path / "a.zarr", mode="r")) == {"b"}
    (tmp_path / "mine").mkdir()
    with pytest.raises(StorageError, match="no earlier export"):
        export_zarr(run, tmp_path / "mine", force=True)
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".tdbg")]


def test_an_export_that_fails_leaves_nothing(run: Path, tmp_path: Path) -> None:
    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    for name, export in (
        ("a.safetensors", export_safetensors),
        ("a.zarr", export_zarr),
    ):
        with pytest.raises(KeyboardInterrupt):
            export(run, tmp_path / name, names=["w"], progress=stop)
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"names": ["ww"]}, "did you mean 'w'"),
        ({"regex": "nothing"}, "no tensor of .* is chosen"),
        ({"collection": "gradient"}, "did you mean 'gradients'"),
        ({"names": ["w"], "step": 77}, "step 77"),
        ({"names": ["bool"], "step": 3}, "nearest step that has one is 5"),
    ],
)
def test_what_is_not_there_is_told(
    run: Path, tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(TdbgError, match=told):
        export_npz(run, tmp_path / "a.npz", **options)
    assert not (tmp_path / "a.npz").exists()


def test_a_table_without_tensors_has_no_selection(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not about tensors"):
        export_parquet(run, tmp_path / "a.parquet", table="steps", names=["w"])


def test_the_verb_lists_and_writes_them(run: Path, tmp_path: Path) -> None:
    listed = CliRunner().invoke(_tdbg, ["export", "--help"]).output
    for name in ("tensorboard", "perfetto", "safetensors", "npz", "parquet", "zarr"):
        assert f"  {name} " in listed
    out = tmp_path / "a.parquet"
    arguments = ["export", "parquet", str(run), "--out", str(out), "--steps", "2:4"]
    result = CliRunner().invoke(_tdbg, [*arguments, "--names", "w", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"] == 3
    again = CliRunner().invoke(_tdbg, arguments)
    assert again.exit_code == 3
    assert "--force" in again.output
    out = tmp_path / "a.safetensors"
    arguments = ["export", "safetensors", str(run), "--out", str(out), "--step", "5"]
    result = CliRunner().invoke(_tdbg, arguments)
    assert result.exit_code == 0, result.output
    assert "tensors at step 5" in result.output
