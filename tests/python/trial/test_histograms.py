"""Histograms from the training to the reader: merged, by step, or a clear no."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.errors import (
    ConfigurationError,
    CorruptionError,
    InvalidWorker,
    NoMoreData,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailableForStep,
)
from tdbg.modes import ModeKeys
from tdbg.stats.histogram import Histogram
from tdbg.trial import create_trial
from tdbg.trial.row_index import HistogramIndex

RNG = np.random.default_rng(0)


def draw(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    return RNG.normal(size=shape).astype(dtype)


def test_a_histogram_comes_back_as_it_was_counted(run_dir: Path) -> None:
    x = draw(7, 11)
    with RunBuilder(run_dir) as run:
        for step in range(3):
            run.save(step, "w", x, what="statistics")
            run.save(step, "other", x)
            if step != 1:
                run.histogram(step, "w", (x + step)[::2].T)
            run.end_step(step)
        run.save(3, "w", x, what="statistics")
        run.histogram(3, "w", x[::2].T)
        run.end_step(3, ModeKeys.EVAL)
    trial = create_trial(run_dir)
    w = trial.tensor("w")
    assert w.histogram(2) == Histogram.of((x + 2)[::2])
    assert w.steps(what="histograms") == [0, 2]
    assert w.steps("global", what="histograms") == [0, 2, 3]
    assert w.steps(ModeKeys.EVAL, what="histograms") == [0]
    assert trial.steps("global", what="histograms") == [0, 2, 3]
    assert trial.tensor("other").steps(what="histograms") == []
    assert w.histogram(0, mode="EVAL") == Histogram.of(x[::2])
    assert list(w.histograms()) == [0, 2]
    assert list(w.histograms("global")) == [0, 2, 3]
    assert w.histograms(ModeKeys.TRAIN)[2] == w.histogram(2)
    with pytest.raises(ConfigurationError, match="histograms"):
        w.steps(what="quantiles")


def test_calls_micro_batches_and_workers_merge_as_rows_do(run_dir: Path) -> None:
    parts = {
        (rank, micro_batch, call): draw(5)
        for rank in range(2)
        for micro_batch in range(2)
        for call in range(2)
    }
    for rank in range(2):
        with RunBuilder(run_dir, rank=rank, world_size=2) as run:
            for (of, micro_batch, call), x in parts.items():
                if of == rank:
                    site = {"micro_batch": micro_batch, "call": call}
                    run.histogram(0, "relu_output_0", x, **site)
                    run.save(0, "relu_output_0", x, what="statistics", **site)
            run.save(0, "w", draw(3), what="statistics")
            run.histogram(0, "w", draw(3) + rank)
            run.end_step(0)
    trial = create_trial(run_dir)
    output = trial.tensor("relu_output_0")
    whole = np.concatenate(list(parts.values()))
    assert output.histogram(0) == Histogram.of(whole)
    assert output.histogram(0).count == output.stats(0).count
    first = np.concatenate([x for (rank, _, _), x in parts.items() if rank == 0])
    assert output.histogram(0, worker="worker_0") == Histogram.of(first)
    one = output.histogram(0, worker="worker_1", call=1, micro_batch=0)
    assert one == Histogram.of(parts[1, 0, 1])
    # Of a parameter, which all workers hold alike, the first one's is taken.
    assert trial.tensor("w").histogram(0).count == 3
    with pytest.raises(InvalidWorker, match="worker_9"):
        output.histogram(0, worker="worker_9")
    with pytest.raises(TensorUnavailableForStep, match="no histogram"):
        output.histogram(0, call=5)


def test_each_part_of_a_sharded_tensor_counts_once(run_dir: Path) -> None:
    halves = [draw(2, 3), draw(2, 3)]
    for rank in range(4):
        with RunBuilder(run_dir, rank=rank, world_size=4) as run:
            run.histogram(
                0,
                "w",
                halves[rank % 2],
                global_shape=(4, 3),
                global_offset=(rank % 2 * 2, 0),
                placements=[(1, 0, 0, 2, rank % 2)],
            )
            run.save(0, "other", draw(1))
            run.end_step(0)
    found = create_trial(run_dir).tensor("w").histogram(0)
    assert found == Histogram.of(np.concatenate(halves))


def test_a_sharded_tensor_without_a_part_has_no_merged_histogram(
    run_dir: Path,
) -> None:
    """As it has no merged row: quantiles of a part are not those of the whole."""
    whole = draw(5, 3)
    parts = [whole[:2], whole[2:4], whole[4:]]
    for rank, part in enumerate(parts):
        with RunBuilder(run_dir, rank=rank, world_size=3) as run:
            place = {
                "global_shape": whole.shape,
                "global_offset": (2 * rank, 0),
                "placements": [(1, 0, 0, 3, rank)],
            }
            for step in range(3):
                if (rank, step) != (1, 1):
                    run.histogram(step, "w", part, **place)
                run.save(step, "w", part, what="statistics", **place)
                # Of an activation nobody knows how many parts there are.
                if (rank, step) != (1, 1):
                    site = {**place, "role": Role.OUTPUT}
                    run.histogram(step, "relu_output_0", part, **site)
                run.end_step(step)
    w = create_trial(run_dir).tensor("w")
    assert w.histogram(0) == w.histogram(2) == Histogram.of(whole)
    with pytest.raises(TensorUnavailableForStep, match=r"2 of 3 parts .* coordinate 1"):
        w.histogram(1)
    assert w.stats(1).count == whole.size
    assert w.histogram(1, worker="worker_2") == Histogram.of(parts[2])
    output = create_trial(run_dir).tensor("relu_output_0")
    assert output.histogram(1).count == 3 * 3


def test_what_is_not_there_is_told_apart(run_dir: Path) -> None:
    run = RunBuilder(run_dir)
    run.save(0, "w", draw(3))
    run.save(0, "row", draw(3), what="statistics")
    run.end_step(0)
    run.save(1, "w", draw(3))
    run.histogram(1, "w", draw(3))
    run.end_step(1)
    run.end_step(2)
    run.flush()
    trial = create_trial(run_dir)
    w = trial.tensor("w")
    with pytest.raises(TensorUnavailableForStep, match=r"nearest step .* is 1"):
        w.histogram(0)
    with pytest.raises(TensorUnavailableForStep, match="save_histogram=True"):
        trial.tensor("row").histogram(0)
    with pytest.raises(StepUnavailable):
        w.histogram(2)
    with pytest.raises(StepNotYetAvailable):
        w.histogram(3)
    run.close()
    with pytest.raises(NoMoreData):
        w.histogram(3)
    with RunBuilder(run_dir.parent / "second") as second:
        second.step(0, {"w": draw(3)})
    w = create_trial(run_dir.parent / "second").tensor("w")
    with pytest.raises(TensorUnavailableForStep, match=r"Histogram\.of"):
        w.histogram(0)


def test_histograms_that_come_while_one_reads(run_dir: Path) -> None:
    run = RunBuilder(run_dir)
    trial = None
    for step in range(3):
        x = draw(4)
        run.save(step, "w", x, what="statistics")
        run.histogram(step, "w", x)
        run.end_step(step)
        run.flush()
        trial = trial or create_trial(run_dir)
        assert trial.tensor("w").histogram(step) == Histogram.of(x)
    run.close()


def own_memory() -> int:
    """Bytes of this process that no file backs."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


@pytest.mark.parametrize("sealed", [True, False])
def test_a_reader_holds_places_and_not_histograms(run_dir: Path, sealed: bool) -> None:
    keys = np.arange(2500, dtype=np.uint16)
    run = RunBuilder(run_dir, queue_bytes=1 << 20)
    number = run.define("w", draw(3))
    for step in range(2000):
        counts = np.full(keys.size, step + 1, np.uint64)
        assert run.capture.histogram(step, number, keys, counts)
        run.end_step(step)
    run.close() if sealed else run.flush()
    assert sum(path.stat().st_size for path in run.directory.iterdir()) > 50e6
    before = own_memory()
    trial = create_trial(run_dir)
    w = trial.tensor("w")
    assert w.steps(what="histograms") == list(range(2000))
    for step in range(2000):
        assert w.histogram(step).counts[7] == step + 1
    assert w.histogram(3) == w.histogram(3)
    assert own_memory() - before < 12e6
    run.close()


def test_a_damaged_histogram_fails_alone(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        for step in range(3):
            run.histogram(step, "w", draw(50) + step)
            run.save(step, "w", draw(50), what="statistics")
            run.end_step(step)
    expected = [create_trial(run_dir).tensor("w").histogram(step) for step in range(3)]
    shard = run.directory / "000001.tds"
    content = bytearray(shard.read_bytes())
    at = content.find(expected[1].counts.tobytes())
    assert at > 0
    content[at] ^= 1
    shard.write_bytes(content)
    w = create_trial(run_dir).tensor("w")
    assert w.steps(what="histograms") == [0, 1, 2]
    with pytest.raises(CorruptionError, match=r"000001\.tds: record at .*checksum"):
        w.histogram(1)
    assert [w.histogram(0), w.histogram(2)] == [expected[0], expected[2]]
    # Without its index the shard is walked, and the record is not taken in.
    (run.directory / "000001.tdi").unlink()
    trial = create_trial(run_dir)
    assert trial.tensor("w").steps(what="histograms") == [0, 2]
    assert trial.tensor("w").histogram(2) == expected[2]
    assert [p.kind for p in trial.problems()] == ["damage"]


def test_places_are_found_however_they_arrived() -> None:
    class Reader:
        """Histograms that come a few at a time; a number is its own bins."""

        def __init__(self) -> None:
            fields = ["step", "definition", "call", "micro_batch"]
            self.dtype = np.dtype([(name, np.int64) for name in fields])
            self.saved: list[tuple[int, int, int, int]] = []

        def histograms(self, start: int) -> NDArray[Any]:
            return np.array(self.saved[start:], self.dtype)

        def read_histogram(self, index: int) -> Any:
            return np.full(1, index, np.uint16), np.ones(1, np.uint64)

    reader = Reader()
    index = HistogramIndex(reader)  # type: ignore[arg-type]
    for n in (1, 5, 0, 2, 40, 1, 1, 1, 30, 200, 7):
        for _ in range(n):
            step, definition, call = RNG.integers(0, (20, 4, 3)).tolist()
            reader.saved.append((step, definition, call, len(reader.saved)))
        index.take_in()
        for definition in range(5):
            of_it = [one for one in reader.saved if one[1] == definition]
            steps = sorted({one[0] for one in of_it if 3 <= one[0] < 18})
            assert index.steps([definition], 3, 18).tolist() == steps
            for step in range(20):
                found = index.at(definition, step)
                right = [(c, m, m) for s, _, c, m in of_it if s == step]
                assert [tuple(place) for place in found] == right
                for place in found:
                    assert index.read(place)[0].item() == place.number
    everything = sorted({one[0] for one in reader.saved})
    assert index.steps(None, 0, 20).tolist() == everything


@pytest.mark.parametrize(
    ("role", "dtype", "scale", "expected"),
    [
        (Role.WEIGHT, ml_dtypes.bfloat16, 1.0, True),
        (Role.WEIGHT, np.float32, 1.0, False),
        (Role.GRADIENT, ml_dtypes.bfloat16, 1.0, True),
        (Role.GRADIENT, ml_dtypes.bfloat16, 0.3, False),
    ],
)
def test_elements_that_are_edges_are_known(
    run_dir: Path, role: Role, dtype: Any, scale: float, expected: bool
) -> None:
    x = draw(100, dtype=dtype)
    with RunBuilder(run_dir) as run:
        number = run.define("t", x, role)
        run.capture.statistics(0, [number], [x.ctypes.data], [x.strides], scale=scale)
        run.histogram(0, "t", x, role=role, scale=scale)
        run.end_step(0)
    found = create_trial(run_dir).tensor("t").histogram(0)
    assert found == Histogram.of(x, scale)
    assert found.on_edges is expected


def test_a_gradient_without_a_row_may_have_been_scaled(run_dir: Path) -> None:
    x = draw(9, dtype=ml_dtypes.bfloat16)
    with RunBuilder(run_dir) as run:
        run.histogram(0, "gradient/w", x)
        run.end_step(0)
    assert not create_trial(run_dir).tensor("gradient/w").histogram(0).on_edges


def test_a_tensor_of_no_elements_has_an_empty_histogram(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        run.histogram(0, "w", np.zeros((0, 3), np.float32))
        run.save(0, "w", np.zeros((0, 3), np.float32), what="statistics")
        run.end_step(0)
    assert create_trial(run_dir).tensor("w").histogram(0).count == 0


def test_what_has_no_statistics_is_refused_and_counted(run_dir: Path) -> None:
    x = np.zeros(3, np.complex64)
    with RunBuilder(run_dir) as run:
        number = run.define("z", x)
        assert not run.capture.count_histogram(0, number, x.ctypes.data, x.strides)
        run.end_step(0)
    trial = create_trial(run_dir)
    assert trial.counters()["dropped"] == 1
