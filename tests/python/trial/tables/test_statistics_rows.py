"""Rows as tables are the rows of ``Trial.statistics``, merged or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder, new_attempt, simple_run
from tdbg.config import Role
from tdbg.errors import QueryError, TensorUnavailable
from tdbg.modes import ModeKeys
from tdbg.stats.row_fields import FIELDS
from tdbg.trial import TABLES, Trial, create_trial
from tdbg.trial.tables.batch import Batch, Scope, Words, joined
from tdbg.trial.tables.derived_fields import DERIVED
from tdbg.trial.tables.table import table_of


def rows_of(trial: Trial, columns: list[str] | None = None, **scope: object) -> Batch:
    with trial._run.fresh() as run:
        table = table_of(run, "statistics", columns, Scope(**scope))  # type: ignore[arg-type]
    return joined(table.batches(), table.columns)


def check(trial: Trial) -> Batch:
    """Check that all rows are those of the arrays, each once."""
    rows, arrays = rows_of(trial), trial.statistics()
    tensors = rows["tensor"]
    assert isinstance(tensors, Words)
    names = [tensors.words[i] for i in tensors.codes]
    assert len(set(zip(names, rows["global_step"].tolist(), strict=True))) == len(names)
    assert len(names) == np.count_nonzero(arrays.present)
    at = np.array([arrays.names.index(name) for name in names], int)
    steps = np.searchsorted(arrays.steps, rows["global_step"])
    for name in (*FIELDS, "std"):
        expected = getattr(arrays, name)[at, steps]
        np.testing.assert_array_equal(rows[name], expected, err_msg=name)
    return rows


def save_alike(path: Path) -> None:
    simple_run(path, range(20))


def save_calls(path: Path) -> None:
    with RunBuilder(path) as run:
        for step in range(6):
            for call in range(3):
                value = np.full(4, step + call, np.float32)
                run.save(step, "fc_output_0", value, what="statistics", call=call)
            run.save(step, "fc.weight", np.ones(3, np.float32))
            run.end_step(step)


def save_redefined(path: Path) -> None:
    """The last batch is smaller, and a counter becomes a float."""
    with RunBuilder(path) as run:
        for step in range(6):
            n = 2 if step == 5 else 4
            run.save(step, "fc_output_0", np.arange(n, dtype=np.float32))
            dtype = np.int64 if step < 3 else np.float32
            run.save(step, "buffer/n", np.array([step, -7], dtype))
            run.end_step(step)


def save_integers(path: Path) -> None:
    with RunBuilder(path) as run:
        for step in range(4):
            run.save(step, "buffer/n", np.array([step, -7], np.int32))
            run.save(step, "buffer/u", np.array([step, 2**63], np.uint64))
            run.save(step, "fc.weight", np.array([np.nan, np.inf], np.float32))
            run.save(step, "empty", np.empty(0, np.float32))
            run.end_step(step)


def save_ranks(path: Path) -> None:
    attempt = new_attempt()
    for rank in range(2):
        with RunBuilder(path, rank=rank, world_size=2, attempt=attempt) as run:
            for step in range(5):
                run.save(step, "fc.weight", np.full(3, rank, np.float32))
                loss = np.array(rank + step, np.float32)
                run.save(step, "loss_output_0", loss, role=Role.LOSS)
                run.end_step(step)


def save_parts(path: Path) -> None:
    attempt = new_attempt()
    for rank in range(2):
        with RunBuilder(path, rank=rank, world_size=2, attempt=attempt) as run:
            for step in range(5):
                run.save(
                    step,
                    "fc.weight",
                    np.full(3, rank, np.float32),
                    global_shape=(6,),
                    global_offset=(3 * rank,),
                    placements=[(1, 0, 0, 2, rank)],
                )
                run.end_step(step)


def save_again(path: Path) -> None:
    """A training that is started again from step 3."""
    for ordinal, (first, stop) in enumerate(((0, 6), (3, 8))):
        with RunBuilder(path, attempt=new_attempt(), ordinal=ordinal) as run:
            for step in range(first, stop):
                run.save(step, "fc.weight", np.full(3, 10 * ordinal + step, np.float32))
                run.end_step(step, mode_step=step)


def save_many_shards(path: Path) -> None:
    with RunBuilder(path, shard_bytes=1 << 16) as run:
        for step in range(300):
            for i in range(4):
                run.save(step, f"w{i}", np.full(900, step + i, np.float32))
            run.end_step(step)


@pytest.mark.parametrize(
    "save",
    [
        *(save_alike, save_calls, save_redefined, save_integers, save_ranks),
        *(save_parts, save_again, save_many_shards),
    ],
)
def test_every_row_is_there_once_and_merged(
    tmp_path: Path, save: Callable[[Path], None]
) -> None:
    save(tmp_path / "a")
    assert len(check(create_trial(tmp_path / "a"))["l2"])


def test_rows_of_a_training_that_goes_on_are_there(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "a") as run:
        trial = create_trial(tmp_path / "a")
        for step in range(3):
            run.step(step, {"fc.weight": np.full(3, step, np.float32)})
        run.save(3, "fc.weight", np.ones(3, np.float32))  # Not ended.
        run.flush()
        assert check(trial)["global_step"].tolist() == [0, 1, 2]


def test_rows_are_read_without_an_index_too(tmp_path: Path) -> None:
    save_many_shards(tmp_path / "a")
    whole = check(create_trial(tmp_path / "a"))
    for index in (tmp_path / "a").rglob("*.tdi"):
        index.unlink()
    again = check(create_trial(tmp_path / "a"))
    assert sorted(whole["l2"].tolist()) == sorted(again["l2"].tolist())


def test_a_damaged_index_changes_no_row(tmp_path: Path) -> None:
    save_many_shards(tmp_path / "a")
    for index in (tmp_path / "a").rglob("*.tdi"):
        content = bytearray(index.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 64] = bytes(64)
        index.write_bytes(content)
    check(create_trial(tmp_path / "a"))


def test_a_scope_has_its_rows_only(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "a") as run:
        for step in range(8):
            mode = ModeKeys.EVAL if step % 4 == 3 else ModeKeys.TRAIN
            run.step(step, {n: np.ones(2, np.float32) for n in ("a", "b")}, mode)
    trial = create_trial(tmp_path / "a")
    rows = rows_of(trial, ["tensor", "global_step"], names=("b",), start=2, end=6)
    assert rows["tensor"].words == ["b"]
    assert rows["global_step"].tolist() == [2, 3, 4, 5]
    rows = rows_of(trial, names=("a",), mode=ModeKeys.EVAL)
    assert rows["global_step"].tolist() == [3, 7]
    assert rows["step"].tolist() == [3, 6]
    assert rows["mode_step"].tolist() == [0, 1]
    assert {rows["mode"].words[i] for i in rows["mode"].codes} == {"EVAL"}


def test_only_the_fields_that_columns_need_are_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simple_run(tmp_path / "a")
    trial = create_trial(tmp_path / "a")
    with trial._run.fresh() as run:
        (source,) = run.sources_of(None)
    reader, asked = source.writer.reader, []

    class Spy:
        def __getattr__(self, name: str) -> object:
            return getattr(reader, name)

        def gather_rows(self, ids: object, steps: object, fields: list[int]) -> object:
            asked.append([FIELDS[i] for i in fields])
            return reader.gather_rows(ids, steps, fields)

    monkeypatch.setattr(source.writer, "reader", Spy())
    rows_of(trial, ["tensor", "l2"])
    rows_of(trial, ["zero_share"])
    rows_of(trial, ["step"])
    assert asked == [["l2"], ["count", "zero"], []]


def test_derived_columns_are_what_their_meaning_says(tmp_path: Path) -> None:
    value = np.array([0.0, -3.0, 1.0, np.nan], np.float32)
    with RunBuilder(tmp_path / "a") as run:
        run.step(0, {"w": value, "nothing": np.array([np.nan], np.float32)})
    rows = rows_of(create_trial(tmp_path / "a"), list(DERIVED), names=("w",))
    finite = value[:3].astype(np.float64)
    assert rows["std"][0] == pytest.approx(finite.std())
    assert rows["rms"][0] == pytest.approx(np.sqrt((finite**2).mean()))
    assert rows["abs_max"][0] == 3.0
    assert rows["zero_share"][0] == 0.25
    rows = rows_of(create_trial(tmp_path / "a"), list(DERIVED), names=("nothing",))
    assert np.isnan([rows[name][0] for name in ("std", "rms", "abs_max")]).all()


def test_what_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    simple_run(tmp_path / "a")
    trial = create_trial(tmp_path / "a")
    with pytest.raises(TensorUnavailable, match=r"'fc.wieght'; did you mean"):
        trial.to_pandas(names="fc.wieght")
    with pytest.raises(QueryError, match="no column 'meen'; did you mean 'mean'"):
        trial.to_pandas(columns=["meen"])
    with pytest.raises(QueryError, match="no table 'statistic'; did you mean"):
        trial.to_pandas("statistic")
    with pytest.raises(QueryError, match="'steps' has no names"):
        trial.to_pandas("steps", "fc.weight")


def test_a_run_without_rows_has_an_empty_table(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "a"):
        pass
    rows = rows_of(create_trial(tmp_path / "a"))
    assert set(rows) == set(TABLES["statistics"].names)
    assert not len(rows["l2"])
