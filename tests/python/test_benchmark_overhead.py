"""The benchmark of the overhead must notice a wrong capture and a changed training."""

from __future__ import annotations

import argparse
import math

import numpy as np
import pytest

from benchmarks import run as driver
from benchmarks._harness import CONTROL, Ratio, Samples, WrongAnswer
from benchmarks.overhead import matrix
from benchmarks.overhead.contenders import Capture, load
from benchmarks.overhead.models import MODELS, recipe
from benchmarks.overhead.run import Run, longer_intervals
from benchmarks.overhead.training import Training

pytestmark = pytest.mark.torch

GIVEN = argparse.Namespace(rounds=2, quick=True, seed=1, seconds=60.0)


def tiny_run(contender, what, folder):
    run = Run("tiny", contender, Capture(what, 1), folder)
    run.block = 3
    return run


@pytest.mark.parametrize(
    ("model", "n_tensors", "n_elements"),
    [
        # torchvision's ResNet18 with a head of ten classes.
        ("resnet", 62, 11_181_642),
        ("lm", 54, 4_218_320),
        ("many", 2000, 272_000),
    ],
)
def test_the_models_are_those_that_are_named(model, n_tensors, n_elements):
    sizes = [p.numel() for p in MODELS[model].make().parameters()]
    assert (len(sizes), sum(sizes)) == (n_tensors, n_elements)


@pytest.mark.parametrize("name", ["tiny", "many", "layers-2", "bytes-4096"])
def test_two_trainings_compute_the_same_losses(name):
    one, other = Training(name), Training(name)
    losses = [one.step() for _ in range(4)]
    assert losses[:3] == [other.step() for _ in range(3)]
    # A snapshot is a step like any other.
    assert other.step_with_snapshot().loss == losses[3]
    assert len(set(losses)) == 4


def test_a_size_is_that_of_the_tensor():
    assert [p.nbytes for p in Training("bytes-4096").model.parameters()] == [4096]
    with pytest.raises(KeyError):
        recipe("bytes-many")


def test_distinct_bytes_count_memory_once_unless_it_changed():
    training = Training("bytes-4096")
    # Parameter, gradient and output of 4 KiB; input, target and loss of one element.
    # The input of the criterion is the output of the module.
    assert training.distinct_bytes() == 3 * 4096 + 4 + 8 + 4


@pytest.mark.parametrize("what", sorted(load("tdbg").captures))
def test_what_tdbg_captured_is_verified(what, tmp_path):
    run = tiny_run("tdbg", what, tmp_path)
    samples = run.measure(GIVEN)
    assert len(samples.seconds["watched"]) == 2
    assert run.megabytes_a_save() > 0
    (first, _) = run._snapshots
    if what == "nothing":
        return
    first.loss += 1.0
    for arrays in (first.before, first.gradients, first.outputs):
        for name in arrays:
            arrays[name] = arrays[name] + 1
    with pytest.raises(WrongAnswer):
        run.watcher.verify(first)


def test_statistics_are_verified_tensor_by_tensor(tmp_path):
    run = tiny_run("tdbg", "statistics", tmp_path)
    run.measure(GIVEN)
    (name,) = list(run._snapshots[0].gradients)[:1]
    run._snapshots[0].gradients[name].flat[0] = 10.0
    with pytest.raises(WrongAnswer, match=f"of gradient/{name}"):
        run.watcher.verify(run._snapshots[0])


def test_a_contender_that_changes_the_training_is_found(tmp_path):
    run = tiny_run("plain", "nothing", tmp_path)
    watched = run.watched.model.get_parameter("0.bias")
    run.watcher.after_step = lambda *_: watched.data.add_(1e-3)
    with pytest.raises(WrongAnswer, match="losses of watched"):
        run.measure(GIVEN)


def test_blocks_hold_whole_intervals(tmp_path):
    for interval, block, halves in ((1, 50, False), (20, 40, False), (100, 100, True)):
        run = Run("tiny", "plain", Capture("nothing", interval), tmp_path)
        assert (run.block, run.halves) == (block, halves)


def test_longer_intervals_follow_from_blocks_with_and_without_a_save(tmp_path):
    # Five steps with a save take 15, five without 6, and five plain ones 5.
    names = {"plain": (5.0, 5.0), CONTROL: (5.0, 5.0), "watched": (15.0, 6.0)}
    also = {k: {"first": [a] * 6, "second": [b] * 6} for k, (a, b) in names.items()}
    seconds = {k: [a + b] * 6 for k, (a, b) in names.items()}
    samples = Samples("plain", 1, 0.005, seconds, also)
    run = Run("resnet", "plain", Capture("nothing", 10), tmp_path)
    assert run.halves
    found = longer_intervals(samples, run)
    assert found[20] == Ratio((15 + 3 * 6) / 20, 1.65, 1.65, 6)
    assert math.isclose(found[500].median, (15 + 99 * 6) / 500)
    assert list(found) == [20, 50, 100, 200, 500]


def test_programs_are_chosen_by_beginning_or_whole_name():
    every = list(driver.programs(full=False))
    names = [one[0] for one in every]
    assert len(names) == len(set(names))
    assert "reader/open_run" in names
    begun = driver.select(every, ("overhead/lm/tdbg-all",))
    assert [one[0][-2:] for one in begun] == ["@1", "10"]
    (whole,) = driver.select(every, ("overhead/lm/tdbg-all@1",))
    assert whole[1:3] == ("tdbg", "benchmarks.overhead.slowdown")
    both = driver.select(every, ("reader/open_run", "overhead/lm/tdbg-all", "reader"))
    assert [one[0] for one in both[:2]] == ["reader/open_run", "overhead/lm/tdbg-all@1"]
    assert len(both) == len({one[0] for one in both}) > 3
    assert driver.select(every, ()) == every
    assert driver.select(every, ("none/",)) == []


def test_a_quick_run_is_a_part_with_every_kind_of_benchmark():
    names = [one[0] for one in driver.programs(full=False)]
    quick = [name for name in names if matrix.in_quick(name)]
    assert len(quick) < len(names) / 2
    assert {name.split("/")[0] for name in names} - {"save_interval"} == {
        name.split("/")[0] for name in quick
    }
    assert {"overhead/lm/smdebug-all@1", "overhead/resnet/wandb-histograms@10"} < set(
        quick
    )


def test_every_configuration_is_one_that_its_contender_knows():
    for _, environment, _, arguments in matrix.slowdown():
        if environment == "tdbg":
            _, contender, what, interval = arguments
            assert what in load(contender).captures
            assert int(interval) >= 1
    with pytest.raises(ValueError, match="no 'histograms' here"):
        load("tdbg")(None, Capture("histograms", 1), None)


def test_a_raw_value_that_differs_in_one_bit_is_found(tmp_path):
    run = tiny_run("tdbg", "weights", tmp_path)
    run.measure(GIVEN)
    snapshot = run._snapshots[1]
    array = snapshot.before[next(iter(snapshot.before))]
    array.view(np.uint32).flat[-1] ^= 1
    with pytest.raises(WrongAnswer, match="other values"):
        run.watcher.verify(snapshot)
