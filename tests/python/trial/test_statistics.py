"""Statistics tables: merged over calls, micro-batches and workers, and as columns."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from reference_reader import masked_crc
from run_builder import RunBuilder
from tdbg import _core
from tdbg.cli import _tdbg
from tdbg.config import Role
from tdbg.errors import TensorUnavailable
from tdbg.stats.row_fields import COUNTS, FIELDS
from tdbg.trial import Statistics, Trial, create_trial, layout, opening
from tdbg.trial.shards import FLOAT64, INT64, UINT64, group
from tdbg.trial.writers import Source

DEFINITION, ROWS, INDEX = 2, 3, 11
EXACT = (*COUNTS, "abs_min")


def assert_row(got: dict[str, Any], array: NDArray[Any], scale: float) -> None:
    """*got* are the statistics of *array*, as float64 on its flattened form."""
    values = array.astype(np.float64).ravel()
    finite = values[np.isfinite(values)]
    assert got["count"] == values.size
    assert got["nan"] == np.isnan(values).sum()
    assert got["positive_infinity"] == (values == np.inf).sum()
    assert got["negative_infinity"] == (values == -np.inf).sum()
    assert got["zero"] == (values == 0).sum()
    if finite.size:
        assert got["min"] == finite.min()
        assert got["max"] == finite.max()
        assert got["abs_min"] == np.abs(finite).min()
        tolerance = 1e-12 * scale
        mean = finite.mean()
        assert got["mean"] == pytest.approx(mean, rel=1e-12, abs=tolerance)
        m2 = ((finite - mean) ** 2).sum()
        # A square of rounding errors of the mean is the least there is.
        least = 1e-12 * scale * scale * finite.size
        assert got["m2"] == pytest.approx(m2, rel=1e-12, abs=least)
        assert got["l1"] == pytest.approx(np.abs(finite).sum(), rel=1e-12)
        l2 = np.sqrt((finite**2).sum())
        assert got["l2"] == pytest.approx(l2, rel=1e-12)


def entry(table: Statistics, name: str, step: int) -> dict[str, Any]:
    """One entry of *table*, by field."""
    i, j = table.names.index(name), table.steps.tolist().index(step)
    assert table.present[i, j]
    return {field: getattr(table, field)[i, j] for field in FIELDS}


def test_micro_batches_and_calls_merge_as_if_they_were_one(run_dir: Path) -> None:
    random = np.random.default_rng(3)
    parts: dict[int, list[NDArray[np.float64]]] = {}
    with RunBuilder(run_dir) as run:
        for step in range(4):
            for micro_batch in range(step + 1):
                for call in range(2):
                    part = random.normal(size=(3, micro_batch + 1)) * 10.0**step
                    part.flat[0] = [np.nan, np.inf, -np.inf, 0.0][step]
                    run.save(
                        *(step, "net_output_0", part),
                        what="statistics",
                        call=call,
                        micro_batch=micro_batch,
                    )
                    parts.setdefault(step, []).append(part)
            run.end_step(step, micro_batches=step + 1)
    trial = create_trial(run_dir)
    table = trial.statistics()
    for step, arrays in parts.items():
        whole = np.concatenate([array.ravel() for array in arrays])
        assert_row(entry(table, "net_output_0", step), whole, 10.0**step)
        single = trial.tensor("net_output_0").stats(step)
        for field in FIELDS:
            assert getattr(single, field) == entry(table, "net_output_0", step)[field]


def test_activations_merge_over_workers_and_parameters_do_not(run_dir: Path) -> None:
    random = np.random.default_rng(4)
    outputs, weights = random.normal(size=(2, 5)), random.normal(size=(2, 5))
    for rank in range(2):
        with RunBuilder(run_dir, rank=rank, world_size=2) as run:
            run.save(0, "net_output_0", outputs[rank])
            run.save(0, "w", weights[rank])
            run.end_step(0)
    trial = create_trial(run_dir)
    table = trial.statistics()
    assert_row(entry(table, "net_output_0", 0), outputs, 1.0)
    assert_row(entry(table, "w", 0), weights[0], 1.0)
    tensor = trial.tensor("net_output_0")
    assert tensor.stats(0).count == 10
    assert tensor.stats(0, worker="worker_1").count == 5
    np.testing.assert_array_equal(tensor.value(0, worker="worker_1"), outputs[1])
    np.testing.assert_array_equal(tensor.value(0), outputs.ravel())
    mean = tensor.reduction_value(0, "mean")
    assert mean == pytest.approx(outputs.mean(), rel=1e-12)
    assert trial.tensor("w").stats(0, worker="worker_1").max == weights[1].max()
    np.testing.assert_array_equal(trial.tensor("w").value(0), weights[0])


def test_shards_merge_and_a_shard_held_twice_counts_once(run_dir: Path) -> None:
    """Four ranks: two shards, each on two ranks."""
    whole = np.random.default_rng(5).normal(size=(4, 3))
    for rank in range(4):
        shard = rank % 2
        with RunBuilder(run_dir, rank=rank, world_size=4) as run:
            run.save(
                0,
                "w",
                np.ascontiguousarray(whole[2 * shard : 2 * shard + 2]),
                global_shape=(4, 3),
                global_offset=(2 * shard, 0),
                placements=[(2, 0, 0, 2, rank // 2), (1, 0, 0, 2, shard)],
            )
            run.end_step(0)
    trial = create_trial(run_dir)
    assert_row(entry(trial.statistics(), "w", 0), whole, 1.0)
    assert trial.tensor("w").stats(0).count == 12


def test_rows_of_a_name_merge_when_its_dtype_changes(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        run.save(0, "x", np.array([1.5, 2.5], np.float32), role=Role.OUTPUT)
        integers = np.array([-7, 9], np.int64)
        run.save(0, "x", integers, role=Role.OUTPUT, micro_batch=1)
        run.end_step(0)
        run.save(1, "x", integers, role=Role.OUTPUT)
        run.end_step(1)
    trial = create_trial(run_dir)
    got = entry(trial.statistics(), "x", 0)
    assert (got["min"], got["max"], got["mean"]) == (-7.0, 9.0, 1.5)
    assert trial.statistics().max[0].tolist() == [9.0, 9.0]
    assert trial.tensor("x").stats(0).min == -7


def test_what_is_not_there_is_not_present_and_nan(run_dir: Path) -> None:
    ones = np.ones(2, np.float32)
    with RunBuilder(run_dir) as run:
        run.step(0, {"a": ones})
        run.step(1, {"b": ones})
        run.step(2, {"a": ones}, what="values")
        run.step(3, {"a": ones, "b": ones})
    table = create_trial(run_dir).statistics(["b", "a"])
    assert table.names == ["b", "a"]
    assert table.steps.tolist() == [0, 1, 3]
    assert table.present.tolist() == [[False, True, True], [True, False, True]]
    for field in FIELDS:
        absent = getattr(table, field)[~table.present]
        assert np.all(absent == 0 if field in COUNTS else np.isnan(absent))
    assert np.isnan(table.std[0, 0])


def test_start_end_and_mode_bound_the_steps(run_dir: Path) -> None:
    ones = np.ones(2, np.float32)
    with RunBuilder(run_dir) as run:
        for step in range(10):
            mode = ["TRAIN", "EVAL"][step % 2]
            run.step(step, {"a": ones * step}, mode=_mode(mode))
    trial = create_trial(run_dir)
    assert trial.statistics(start=3, end=6).steps.tolist() == [3, 4, 5]
    assert trial.statistics(mode="eval").steps.tolist() == [1, 3, 5, 7, 9]
    assert trial.statistics(start=4, mode="eval").mean.tolist() == [[5, 7, 9]]
    assert trial.statistics(start=100).mean.shape == (0, 0)
    assert trial.statistics(["a"], start=100).mean.shape == (1, 0)


def test_one_name_of_many_reads_the_same_as_in_the_whole_table(run_dir: Path) -> None:
    random = np.random.default_rng(6)
    with RunBuilder(run_dir, shard_bytes=1 << 16) as run:
        for step in range(50):
            arrays = {f"w{i:02}": random.normal(size=3) for i in range(40)}
            run.step(step, arrays, what="statistics")
    trial = create_trial(run_dir)
    table = trial.statistics()
    assert table.present.shape == (40, 50)
    assert table.present.all()
    for name in ("w00", "w17", "w39"):
        single = trial.statistics([name], start=10, end=20)
        i = table.names.index(name)
        for field in FIELDS:
            whole = getattr(table, field)[i, 10:20]
            np.testing.assert_array_equal(getattr(single, field)[0], whole)
        single_step = trial.tensor(name).stats(33)
        assert single_step.m2 == table.m2[i, 33]


def test_following_reads_only_what_is_new(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = CountingReader.rows_read = []
    monkeypatch.setattr(opening, "RunReader", CountingReader)
    ones = np.ones(2, np.float32)
    run = RunBuilder(run_dir)
    trial: Trial | None = None
    for step in range(400):
        run.step(step, {f"w{i}": ones for i in range(10)}, what="statistics")
        if step % 40 == 39:
            run.flush()
            trial = trial or create_trial(run_dir)
            table = trial.statistics(start=step - 39)
            assert table.present.shape == (10, 40)
    run.close()
    # Each row once, for the table.
    assert sum(counted) == 4000


class CountingReader(_core.RunReader):
    rows_read: list[int]

    def rows(self, start: int = 0, stop: int | None = None) -> NDArray[np.void]:
        found = super().rows(start, stop)
        self.rows_read.append(len(found))
        return found

    def column(
        self,
        definitions: Sequence[int],
        start: int | None = None,
        stop: int | None = None,
    ) -> NDArray[np.void]:
        found = super().column(definitions, start, stop)
        self.rows_read.append(len(found))
        return found


def _mode(name: str) -> Any:
    from tdbg.modes import ModeKeys

    return ModeKeys[name]


# --- The merge itself -----------------------------------------------------

PIECES = st.lists(
    hnp.arrays(
        np.float32,
        st.integers(0, 6),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    ),
    min_size=1,
    max_size=8,
)


def rows_of(arrays: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    table = np.array([_core.reduce(array)[()] for array in arrays], _core.ROW_DTYPE)
    return {field: table[field] for field in FIELDS}


@given(PIECES, st.data())
def test_any_grouping_merges_to_the_statistics_of_the_whole(
    arrays: list[NDArray[np.float32]], data: st.DataObject
) -> None:
    drawn = st.lists(st.integers(0, 3), min_size=len(arrays), max_size=len(arrays))
    keys = np.array(data.draw(drawn), np.int64)
    classes = np.full(len(keys), FLOAT64, np.uint8)
    found, merged, _ = group(keys, rows_of(arrays), classes)
    assert found.tolist() == sorted(set(keys.tolist()))
    for i, key in enumerate(found):
        whole = np.concatenate([arrays[j] for j in np.flatnonzero(keys == key)])
        got = {field: merged[field][i] for field in FIELDS}
        for field in ("min", "max"):
            got[field] = merged[field].view(np.float64)[i]
        finite = np.abs(whole[np.isfinite(whole)].astype(np.float64))
        assert_row(got, whole, max(finite.max(initial=0.0), 1e-300))


@given(PIECES)
def test_the_order_of_merging_makes_no_difference_that_matters(
    arrays: list[NDArray[np.float32]],
) -> None:
    keys = np.zeros(len(arrays), np.int64)
    classes = np.full(len(arrays), FLOAT64, np.uint8)
    _, there, _ = group(keys, rows_of(arrays), classes)
    _, back, _ = group(keys, rows_of(arrays[::-1]), classes)
    for field in (*EXACT, "min", "max"):
        if field in ("min", "max"):
            first, second = (r[field].view(np.float64) for r in (there, back))
        else:
            first, second = there[field], back[field]
        assert first[0] == second[0]
    for field in ("l1", "l2"):
        assert there[field][0] == pytest.approx(back[field][0], rel=1e-12)


@pytest.mark.parametrize(("dtype", "number"), [(np.int64, INT64), (np.uint64, UINT64)])
def test_extremes_of_integers_merge_exactly(dtype: type, number: int) -> None:
    info = np.iinfo(dtype)
    arrays: list[NDArray[Any]] = [
        np.array([info.max - 1], dtype),
        np.array([info.min + 1, 5], dtype),
        np.array([info.max, info.min], dtype),
    ]
    classes = np.full(3, number, np.uint8)
    _, merged, _ = group(np.array([0, 0, 1]), rows_of(arrays), classes)
    assert merged["min"].view(dtype).tolist() == [info.min + 1, info.min]
    assert merged["max"].view(dtype).tolist() == [info.max - 1, info.max]


def test_merging_does_not_overflow_where_the_result_does_not() -> None:
    arrays = [np.full(3, 1e308), np.full(5, 1e308)]
    keys, classes = np.zeros(2, np.int64), np.zeros(2, np.uint8)
    _, merged, _ = group(keys, rows_of(arrays), classes)
    assert merged["mean"][0] == pytest.approx(1e308)
    assert merged["m2"][0] == pytest.approx(0.0, abs=1e280)
    small = [np.full(3, 1e200), np.full(5, 1e200)]
    _, merged, _ = group(keys, rows_of(small), classes)
    assert merged["l2"][0] == pytest.approx(np.sqrt(8) * 1e200)


def test_reductions_of_a_table_are_those_of_its_tensors(run_dir: Path) -> None:
    random = np.random.default_rng(8)
    with RunBuilder(run_dir) as run:
        for step in range(3):
            array = random.normal(size=7)
            array[0] = [1.0, np.nan, np.inf][step]
            integers = random.integers(-5, 5, size=4)
            run.step(step, {"a": array, "b": integers} if step else {"a": array})
    trial = create_trial(run_dir)
    table = trial.statistics()
    for name in ("min", "max", "mean", "std", "variance", "sum", "l1", "l2"):
        for absolute in (False, True):
            column = table.reduction(name, absolute)
            for i, tensor in enumerate(table.names):
                for j, step in enumerate(table.steps.tolist()):
                    if table.present[i, j]:
                        expected = trial.tensor(tensor).reduction_value(
                            step, name, abs=absolute
                        )
                        np.testing.assert_equal(column[i, j], expected)
                    else:
                        assert np.isnan(column[i, j])
    assert not table.present.all()


# ---- columns ---------------------------------------------------------------------


NAMES = ["a.weight", "gradient/a.weight", "b.weight", "ids", "x_output_0", "nowhere"]


def write(path: Path, *, calls: int = 1, ranks: int = 1, every: int = 1) -> None:
    """A run in which some tensors come now and then."""
    for rank in range(ranks):
        random = np.random.default_rng(rank)
        with RunBuilder(path, rank=rank, world_size=ranks) as run:
            for step in range(40):
                values = {"a.weight": random.normal(size=5).astype(np.float32)}
                if step % every == 0:
                    values["gradient/a.weight"] = random.normal(size=4)
                    values["ids"] = random.integers(-9, 2**60, 7)
                if step % 7 == 3:
                    values["b.weight"] = np.array([np.nan, np.inf, 1.0])
                if step == 20:
                    values["ids"] = np.array([0.5])
                for name, value in values.items():
                    run.save(step, name, value, what="statistics")
                for call in range(calls):
                    value = random.normal(size=3)
                    run.save(step, "x_output_0", value, what="statistics", call=call)
                run.end_step(step)
                if step == 25:
                    run.flush()


def same(trial: Trial, names: list[str], steps: list[int]) -> bool:
    """Compares, and says whether nothing had to be merged."""
    columns = trial.columns(names, np.array(steps, dtype=np.int64))
    known = [name for name in names if trial.has_tensor(name)]
    table = trial.statistics(known, start=min(steps), end=max(steps) + 1)
    rows = [names.index(name) for name in known]
    assert columns.names == names
    assert columns.steps.tolist() == steps
    # Not every step that is asked for has a row, nor the other way round.
    common, here, there = np.intersect1d(steps, table.steps, return_indices=True)
    present = table.present[:, there]
    assert (columns.present[rows][:, here] == present).all()
    assert columns.present.sum() == present.sum()
    assert len(common) or not columns.present.any()
    for i, field in enumerate(FIELDS):
        expected = np.full((len(names), len(steps)), np.nan)
        values = np.where(present, getattr(table, field)[:, there], np.nan)
        expected[np.ix_(rows, here)] = values
        np.testing.assert_array_equal(columns.fields[i], expected)
        np.testing.assert_array_equal(columns.column(field), expected)
    return not columns.is_merged


@pytest.mark.parametrize("every", [1, 3])
def test_rows_of_one_worker_are_read_as_they_are(tmp_path: Path, every: int):
    write(tmp_path / "run", every=every)
    trial = create_trial(tmp_path / "run")
    assert same(trial, NAMES, [*range(40)])
    assert same(trial, NAMES, [*range(5, 6)])
    assert same(trial, NAMES[::-1], [*range(10, 30)])
    assert same(trial, NAMES, [3, 4, 9, 20, 21, 33])
    assert same(trial, NAMES, [*range(1000)])
    assert not same(trial, NAMES, [*range(100, 200)])
    # Where most rows would be read for nothing, only those that are wanted are.
    assert not same(trial, ["b.weight"], [*range(40)])


@pytest.mark.parametrize("options", [{"calls": 2}, {"ranks": 2}])
def test_what_must_be_merged_is(tmp_path: Path, options: dict[str, int]):
    write(tmp_path / "run", **options)
    trial = create_trial(tmp_path / "run")
    assert not same(trial, NAMES, [*range(40)])
    assert not same(trial, NAMES, [*range(7, 9)])


def test_new_tensors_are_seen(tmp_path: Path):
    path = tmp_path / "run"
    with RunBuilder(path) as run:
        run.step(0, {"a.weight": np.ones(3)})
        run.flush()
        trial = create_trial(path)
        assert same(trial, ["a.weight", "b.weight"], [*range(9)])
        run.step(1, {"a.weight": np.ones(3), "b.weight": np.zeros(2)})
        run.flush()
        assert same(trial, ["a.weight", "b.weight"], [*range(9)])
        assert trial.columns(["b.weight"], np.arange(9)).present.any()


def with_other_ids(run: Path, ids: dict[int, int]) -> None:
    """Give the definitions of the one shard of *run* other ids; all checksums hold."""
    (shard,) = run.glob("w/*/*.tds")
    content = bytearray(shard.read_bytes())
    at = 128
    while at < len(content):
        kind, length = (
            content[at + 4],
            int.from_bytes(content[at + 32 : at + 40], "little"),
        )
        if kind == INDEX:
            break
        places = {DEFINITION: [at + 64]}.get(kind, [])
        if kind == ROWS:
            size, n = struct.unpack_from("<II", content, at + 64)
            places = [at + 80 + i * size for i in range(n)]
        for place in places:
            (old,) = struct.unpack_from("<I", content, place)
            struct.pack_into("<I", content, place, ids[old])
        if kind == DEFINITION:
            content[at + 48 : at + 52] = content[at + 64 : at + 68]
        payload = bytes(content[at + 64 : at + 64 + length])
        struct.pack_into("<I", content, at + 52, masked_crc(payload))
        struct.pack_into(
            "<I", content, at + 60, masked_crc(bytes(content[at : at + 60]))
        )
        at = (at + 64 + length + 63) // 64 * 64
    shard.write_bytes(content[:at])
    shard.with_suffix(".tdi").unlink()
    (shard.parent / "COMMIT").unlink()


def test_an_id_costs_nothing_however_large_it_is(run_dir: Path) -> None:
    arrays = {"a": np.arange(4.0), "b": np.arange(5.0), "c": np.arange(6.0)}
    with RunBuilder(run_dir) as run:
        for step in range(3):
            run.step(step, arrays, what="statistics")
    with_other_ids(run_dir, {1: 1 << 26, 2: 7, 3: (1 << 32) - 1})
    trial = create_trial(run_dir)
    tracemalloc.start()
    try:
        table = trial.statistics()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    for name, array in arrays.items():
        assert_row(entry(table, name, 2), array, 1.0)
        assert trial.tensor(name).stats(1).count == len(array)
    assert CliRunner().invoke(_tdbg, ["show", str(run_dir)]).exit_code == 0


def test_names_asked_for_again_show_what_has_come_since(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        run.step(0, {"a": np.ones(2, np.float32)}, what="statistics")
        run.capture.flush()
        trial = create_trial(run_dir)
        assert trial.statistics(["a"]).count.tolist() == [[2]]
        with pytest.raises(TensorUnavailable, match="no tensor 'b'"):
            trial.statistics(["a", "b"])
        # Another definition of the one, and the first of the other.
        tensors = {"a": np.ones(3, np.float64), "b": np.ones(4, np.int64)}
        run.step(1, tensors, what="statistics")
        run.capture.flush()
        assert trial.statistics(["a"]).count.tolist() == [[2, 3]]
        assert trial.statistics(["a", "b"]).count.tolist() == [[2, 3], [0, 4]]


def test_who_asks_again_for_the_same_names_asks_no_definition_again(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunBuilder(run_dir) as run:
        for step in range(3):
            run.step(step, {"a": np.ones(2, np.float32)}, what="statistics")
    trial = create_trial(run_dir)
    calls: list[Sequence[str]] = []
    real = layout.layout_of

    def counted(sources: Sequence[Source], names: Sequence[str]) -> layout.Layout:
        calls.append(names)
        return real(sources, names)

    monkeypatch.setattr(layout, "layout_of", counted)
    for step in range(3):
        assert trial.statistics(["a"], start=step, end=step + 1).present.all()
    assert len(calls) == 1
    for i in range(layout.MAX_LAYOUTS):
        trial.statistics(["a"] * (i + 2))
    trial.statistics(["a"])
    assert len(calls) == 2 + layout.MAX_LAYOUTS
