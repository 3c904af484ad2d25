"""Tensors that several workers hold: rows that merge, values that are put together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from run_builder import RunBuilder, new_attempt
from tdbg.config import Role
from tdbg.errors import TensorUnavailableForStep
from tdbg.trial import create_trial

SHARD, REPLICATE = 1, 2
_Place = tuple[int, int, int, int, int]


def shard(dimension: int, size: int, at: int) -> _Place:
    return (SHARD, 0, dimension, size, at)


def replica(size: int, at: int) -> _Place:
    return (REPLICATE, 0, 0, size, at)


class Worker(RunBuilder):
    """A rank that saves its part of tensors."""

    def save_part(
        self,
        whole: NDArray[Any],
        rows: tuple[int, int],
        placements: Sequence[_Place],
        *,
        step: int = 0,
        name: str = "gradient/w",
        role: Role = Role.GRADIENT,
        **options: Any,
    ) -> None:
        part = np.ascontiguousarray(whole[slice(*rows)])
        self.save(
            step,
            name,
            part,
            role=role,
            global_shape=whole.shape,
            global_offset=(rows[0], *([0] * (whole.ndim - 1))),
            placements=list(placements),
            **options,
        )


def whole_tensor(n: int = 7) -> NDArray[np.float32]:
    return np.random.default_rng(5).normal(size=(n, 3)).astype(np.float32)


def save_all(
    run_dir: Path,
    whole: NDArray[Any],
    parts: Sequence[tuple[tuple[int, int], Sequence[_Place]]],
    **options: Any,
) -> None:
    """A finished run: a worker for each part."""
    for rank, (rows, placements) in enumerate(parts):
        with Worker(run_dir, rank=rank, world_size=len(parts)) as run:
            run.save_part(whole, rows, placements, **options)
            run.end_step(0)


# Uneven parts, one of them empty.
UNEVEN = [
    ((0, 4), [shard(0, 3, 0)]),
    ((4, 7), [shard(0, 3, 1)]),
    ((7, 7), [shard(0, 3, 2)]),
]
# Each half on two ranks: hybrid sharding.
HYBRID = [
    ((0, 4), [replica(2, 0), shard(0, 2, 0)]),
    ((4, 7), [replica(2, 0), shard(0, 2, 1)]),
    ((0, 4), [replica(2, 1), shard(0, 2, 0)]),
    ((4, 7), [replica(2, 1), shard(0, 2, 1)]),
]


@pytest.mark.parametrize("parts", [UNEVEN, HYBRID], ids=["uneven", "hybrid"])
def test_rows_of_shards_merge_to_the_row_of_the_whole(
    run_dir: Path, parts: Any
) -> None:
    whole = whole_tensor()
    save_all(run_dir, whole, parts)
    trial = create_trial(run_dir)
    handle = trial.tensor("gradient/w")
    found = handle.stats(0)
    expected = whole.astype(np.float64)
    assert found.count == whole.size
    assert found.l2 == pytest.approx(np.linalg.norm(expected), rel=1e-12)
    assert found.mean == pytest.approx(expected.mean(), rel=1e-9)
    assert found.std == pytest.approx(expected.std(), rel=1e-9)
    assert (found.min, found.max) == (whole.min(), whole.max())
    column = trial.statistics(["gradient/w"])
    assert column.count.tolist() == [[whole.size]]
    assert column.l2[0, 0] == found.l2
    assert handle.stats(0, worker="worker_1").count == 9
    assert handle.reduction_value(0, "sum") == pytest.approx(expected.sum(), rel=1e-6)


@pytest.mark.parametrize("parts", [UNEVEN, HYBRID], ids=["uneven", "hybrid"])
def test_values_of_shards_are_put_together(run_dir: Path, parts: Any) -> None:
    whole = whole_tensor()
    save_all(run_dir, whole, parts)
    handle = create_trial(run_dir).tensor("gradient/w")
    value = handle.value(0)
    assert np.array_equal(value, whole)
    assert value.dtype == np.float32
    assert not value.flags.writeable
    assert handle.shape(0) == (7, 3)
    assert handle.shape(0, worker="worker_1") == (3, 3)
    assert np.array_equal(handle.value(0, worker="worker_1"), whole[4:7])
    assert np.array_equal(handle.values()[0], whole)
    assert np.array_equal(handle.values_between(0, 1)[0], whole)


def test_two_dimensions_of_a_mesh_cut_two_dimensions_of_a_tensor(run_dir: Path) -> None:
    whole = np.arange(24, dtype=np.int64).reshape(4, 6)
    for rank in range(4):
        i, j = divmod(rank, 2)
        part = np.ascontiguousarray(whole[2 * i : 2 * i + 2, 3 * j : 3 * j + 3])
        with RunBuilder(run_dir, rank=rank, world_size=4) as run:
            run.save(
                0,
                "w",
                part,
                global_shape=(4, 6),
                global_offset=(2 * i, 3 * j),
                placements=[shard(0, 2, i), shard(1, 2, j)],
            )
            run.end_step(0)
    handle = create_trial(run_dir).tensor("w")
    assert np.array_equal(handle.value(0), whole)
    assert handle.stats(0).max == 23


def test_a_missing_shard_is_told_of_and_not_guessed(run_dir: Path) -> None:
    whole = whole_tensor()
    for rank, (rows, placements) in enumerate(UNEVEN[:2]):
        with Worker(run_dir, rank=rank, world_size=2) as run:
            if rank == 0:
                run.save_part(whole, rows, placements)
            else:
                run.save(0, "other", np.ones(2, np.float32))
            run.end_step(0)
    trial = create_trial(run_dir)
    handle = trial.tensor("gradient/w")
    message = (
        r"1 of 3 parts saved, by worker_0; missing: that of mesh coordinate 1, 2; "
        r"nothing from worker_1"
    )
    for question in (handle.value, handle.stats):
        with pytest.raises(TensorUnavailableForStep, match=message):
            question(0)
    with pytest.raises(TensorUnavailableForStep, match="worker_0"):
        handle.reduction_value(0, "l2")
    assert handle.stats(0, worker="worker_0").count == 12
    column = trial.statistics(["gradient/w", "other"])
    assert column.present.tolist() == [[False], [True]]
    assert column.count.tolist() == [[0], [2]]
    assert np.isnan(column.l2[0, 0])


def test_parts_that_interleave_are_not_put_together(run_dir: Path) -> None:
    """As strided sharding may have it: rows 0, 2 here and 1, 3 there."""
    whole = whole_tensor(4)
    for rank in range(2):
        part = np.ascontiguousarray(whole[rank::2])
        with RunBuilder(run_dir, rank=rank, world_size=2) as run:
            run.save(
                0,
                "w",
                part,
                global_shape=(4, 3),
                global_offset=(rank, 0),
                placements=[shard(0, 2, rank)],
            )
            run.end_step(0)
    handle = create_trial(run_dir).tensor("w")
    with pytest.raises(
        TensorUnavailableForStep, match="they are not blocks of the whole"
    ):
        handle.value(0)
    assert handle.stats(0).count == 12, "rows do not care where elements lie"


def test_replicated_parameters_count_once(run_dir: Path) -> None:
    whole = whole_tensor()
    parts = [((0, 7), [replica(2, at)]) for at in range(2)]
    save_all(run_dir, whole, parts)
    assert create_trial(run_dir).tensor("gradient/w").stats(0).count == whole.size


@pytest.mark.parametrize("inner", [True, False])
def test_activations_of_a_mesh_count_once_for_each_part_of_the_batch(
    run_dir: Path, inner: bool
) -> None:
    """Two groups of two ranks, either neighbors or not; each group has its batch."""
    role = Role.OUTPUT
    for rank in range(4):
        at = rank % 2 if inner else rank // 2
        batch = np.full((4, 3), rank // 2 if inner else rank % 2, np.float32)
        with Worker(run_dir, rank=rank, world_size=4) as run:
            run.save_part(batch, (0, 4), [replica(2, at)], name="a_output_0", role=role)
            rows = (2 * at, 2 * at + 2)
            places = [shard(0, 2, at)]
            run.save_part(batch, rows, places, name="b_output_0", role=role)
            run.end_step(0)
    trial = create_trial(run_dir)
    for name in ("a_output_0", "b_output_0"):
        found = trial.tensor(name).stats(0)
        assert found.count == 24, name
        assert found.mean == 0.5, name
    assert np.array_equal(trial.tensor("b_output_0").value(0), np.zeros((4, 3)))


def test_attempts_may_divide_a_tensor_differently(run_dir: Path) -> None:
    whole = whole_tensor(8)
    for ordinal, n_ranks in enumerate((2, 4)):
        attempt, each = new_attempt(), 8 // n_ranks
        for rank in range(n_ranks):
            options: dict[str, Any] = {"ordinal": ordinal, "attempt": attempt}
            with Worker(run_dir, rank=rank, world_size=n_ranks, **options) as run:
                rows = (rank * each, rank * each + each)
                places = [shard(0, n_ranks, rank)]
                for step in range(2 * ordinal, 2 * ordinal + 2):
                    run.save_part(whole, rows, places, step=step)
                    run.end_step(step)
    trial = create_trial(run_dir)
    column = trial.statistics(["gradient/w"])
    assert column.steps.tolist() == [0, 1, 2, 3]
    assert column.count.tolist() == [[24] * 4]
    for step in range(4):
        assert np.array_equal(trial.tensor("gradient/w").value(step), whole)


def test_histograms_of_shards_merge(run_dir: Path) -> None:
    whole = whole_tensor()
    for rank, (rows, placements) in enumerate(HYBRID):
        with Worker(run_dir, rank=rank, world_size=4) as run:
            run.histogram(
                0,
                "w",
                np.ascontiguousarray(whole[slice(*rows)]),
                global_shape=whole.shape,
                global_offset=(rows[0], 0),
                placements=placements,
            )
            run.end_step(0)
    histogram = create_trial(run_dir).tensor("w").histogram(0)
    assert histogram.count == whole.size
