"""The stores that the writer's benchmarks compare give back what they were given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.writer import storing, write_path
from benchmarks.writer.contenders import CONTENDERS, make


@pytest.mark.parametrize("name", CONTENDERS)
def test_a_store_gives_back_each_step(name: str, tmp_path: Path) -> None:
    for package in CONTENDERS[name][1]:
        pytest.importorskip(package)
    dice = np.random.default_rng(1)
    arrays = {
        f"layer{i}.weight": dice.standard_normal((3, i + 1), dtype=np.float32)
        for i in range(5)
    }
    store = make(name, tmp_path, arrays)
    for step in range(3):
        arrays["layer0.weight"] += 1  # What a training does.
        store.write(step)
        found = store.read(step)
        assert sorted(found) == sorted(arrays)
        for tensor, array in arrays.items():
            np.testing.assert_array_equal(found[tensor], array)
        store.forget(step)
    store.close()


def test_the_workloads_are_those_they_say() -> None:
    shapes = list(storing.resnet())
    assert len(shapes) == 161
    assert sum(4 * int(np.prod(shape)) for _, shape in shapes) == 102_228_128
    assert len(dict(storing.small())) == 2000


def test_the_producer_writes_what_it_verifies(tmp_path: Path) -> None:
    source = write_path.memory(2 * write_path.STEP)
    source[:] = np.random.default_rng(2).integers(0, 256, source.size, np.uint8)
    producer = write_path.Producer(4 << 20, write_path.STEP, tmp_path, source)
    producer.round()
    producer.round()
    producer.remove_sealed()
    producer.close_and_verify()
    source[7] ^= 1  # Of the first tensor of a step.
    other = tmp_path / "other"
    other.mkdir()
    changed = write_path.Producer(4 << 20, write_path.STEP, other, source)
    changed.round()
    source[7] ^= 1
    with pytest.raises(Exception, match="tensor of step"):
        changed.close_and_verify()
