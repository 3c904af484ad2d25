"""Each benchmark verifies what it measures, and notices what is wrong."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import run as driver
from benchmarks._harness import CONTROL, Ratio, Samples, Table, WrongAnswer
from benchmarks.hooks import idle, stop_latency
from benchmarks.overhead import matrix
from benchmarks.overhead.contenders import Capture, load
from benchmarks.overhead.models import MODELS, recipe
from benchmarks.overhead.run import Run, longer_intervals
from benchmarks.overhead.training import Training
from benchmarks.reader import envelope, long_runs
from benchmarks.rules import engine
from benchmarks.rules._plan import Plan
from benchmarks.rules._run import build
from benchmarks.save_interval import _measure as save_interval
from benchmarks.save_interval import _torch as save_interval_torch
from benchmarks.writer import storing, write_path
from benchmarks.writer.contenders import CONTENDERS, make
from tdbg.capture.ranks import READ_SECONDS, Consensus
from tdbg.rules import Engine, default_rules
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.trial import create_trial

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


# ---- make gpu-check, on the CPU --------------------------------------------------


def check(repository: Path, results: Path, *arguments: str) -> int:
    settings = {
        "PYTHONPATH": os.pathsep.join([str(repository), str(repository / "python")]),
        "TDBG_BENCH_RESULTS": str(results),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.gpu.check"),
            *("--device", "cpu", "--small", "--seconds", "120", *arguments),
        ],
        cwd=repository,
        env={**os.environ, **settings},
        timeout=200,
        check=False,
    )
    return done.returncode


@pytest.mark.nightly
@pytest.mark.slow
def test_all_stages_but_the_build(repository: Path, tmp_path: Path) -> None:
    stages = "tests,bandwidth,table,training"
    assert check(repository, tmp_path, "--stages", stages) == 0
    document = json.loads((tmp_path / "gpu" / "check.json").read_text())
    (table,) = document["tables"]
    measured = [line[0] for line in table["rows"]]
    for what in ("statistics of bfloat16", "weights and gradients", "smdebug style"):
        assert any(what in line for line in measured), what
    verdicts = {line[3] for line in table["rows"]}
    assert verdicts == {""}, "a figure of the CPU was judged"
    training = document["data"]["stages"]["training"]["data"]
    assert training["device"]["name"] == "none: the CPU stood in"
    assert training["rows"]["bytes_read_a_step"] > 0


def test_a_stage_that_fails_is_named(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "gpu" / "table.json").mkdir(parents=True)
    assert check(repository, tmp_path, "--stages", "table") == 8
    document = json.loads((tmp_path / "gpu" / "check.json").read_text())
    assert "table" in document["data"]["failed"]


# ---- idle hooks ------------------------------------------------------------------


def test_every_contender_is_measured_and_verified(tmp_path: Path) -> None:
    given = argparse.Namespace(modules=3, rounds=1, quick=True, seed=1, seconds=60.0)
    report = idle.measure(given, tmp_path)
    names = [row[0] for row in report.tables[0].rows]
    assert names == [*idle.HOOKED, idle.BESIDE, "plain / plain"]


def test_a_step_that_was_captured_is_noticed(tmp_path: Path) -> None:
    contender = idle.Contender(3, ("outputs",), tmp_path)
    contender.block(2)()
    assert contender.hook is not None
    contender.hook.get_collection("outputs").save_config = idle.td.SaveConfig(
        statistics_interval=3
    )
    contender.block(3)()
    with pytest.raises(WrongAnswer, match="steps of"):
        contender.check()


def test_a_training_that_differs_is_noticed() -> None:
    with pytest.raises(WrongAnswer, match="losses of losses"):
        idle.check_losses({"plain": [1.0], "losses": [1.5]})


# ---- rules -----------------------------------------------------------------------


N_TENSORS, N_STEPS = 100, 200


def test_every_default_rule_finds_what_is_planted_and_nothing_else(tmp_path: Path):
    plan = Plan(N_TENSORS, N_STEPS)
    n_steps = build(tmp_path / "run", N_TENSORS, N_STEPS)
    judging = Engine(tmp_path / "run", record=False)
    judging.poll()
    report, judged = judging.report(), judging.judged()
    engine.verify(report, judged, plan)
    assert report.n_steps + report.n_evaluated == n_steps
    # The faults of classes leave RepeatedData nothing; nothing here makes the others
    # speak: a clock, an end, a tree library, what a hook saw.
    without_fault = {"StalledTraining", "SlowSchedule", "RepeatedData", "TreeSettings"}
    without_fault |= engine.of_time()
    observed = (each for each in default_rules() if isinstance(each, ObservedRule))
    without_fault |= {rule.name for rule in observed}
    planted = {rule for rule, _ in plan.faults()}
    assert planted | without_fault == {rule.name for rule in default_rules()}
    with pytest.raises(WrongAnswer, match="no verdict"):
        engine.verify(report, judged | {"AllZero": 0}, plan)
    with pytest.raises(WrongAnswer, match="missed"):
        engine.verify(report, judged, Plan(2 * N_TENSORS, N_STEPS))


def test_without_values_the_rules_that_go_by_rows_find_the_same(tmp_path: Path):
    plan = Plan(N_TENSORS, N_STEPS)
    build(tmp_path / "run", N_TENSORS, N_STEPS, rows_only=True)
    judging = Engine(tmp_path / "run", record=False)
    judging.poll()
    sure = engine.of_rows()
    assert {"AllZero", "VanishingGradient", "LossSpike"} <= sure
    assert not {"Confusion", "DeadRelu", "TreeDepth"} & sure
    engine.verify(judging.report(), judging.judged(), plan, sure)
    with pytest.raises(WrongAnswer, match="missed"):
        engine.verify(judging.report(), judging.judged(), plan)


# ---- stop latency ----------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.0005, 0.002, 0.05, 0.3, 1.0])
def test_ranks_leave_within_two_steps_or_a_fraction_of_a_second(
    seconds: float,
) -> None:
    """No clock but the simulated one: the figures are the same on any machine."""
    chance = random.Random(2)
    latencies = sorted(
        stop_latency.simulate(3, seconds, chance).latency for _ in range(100)
    )
    # A step may be longer than it should, by ranks that begin it later.
    listening = stop_latency.LISTENS_EVERY
    assert latencies[-1] <= 2.8 * seconds + listening + 1.5 * READ_SECONDS
    assert latencies[98] <= seconds + 1.0 or seconds >= 1.0


def test_a_rank_that_stays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    read_from = Consensus._first_read_from
    monkeypatch.setattr(
        Consensus,
        "_first_read_from",
        lambda self, n: read_from(self, max(0, n - 2)),
    )

    def simulate_some() -> None:
        for seed in range(20):
            stop_latency.simulate(2, 0.3, random.Random(seed))

    with pytest.raises(WrongAnswer, match="ranks that leave"):
        simulate_some()


# ---- the writer ------------------------------------------------------------------


# What only the environments of the benchmarks have.
NOT_INSTALLED = {"zarr"}


@pytest.fixture(scope="module")
def tensorboard() -> None:
    """Import it before a test looks around: TensorFlow may come with it, and stays."""
    importlib.import_module("torch.utils.tensorboard")


@pytest.mark.usefixtures("tensorboard")
@pytest.mark.parametrize("name", sorted(CONTENDERS.keys() - NOT_INSTALLED))
def test_a_store_gives_back_each_step(name: str, tmp_path: Path) -> None:
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


@pytest.mark.nightly
def test_long_runs_are_asked_and_followed(tmp_path):
    python = [sys.executable]
    table = Table("long runs", ("run", "what", "processor, s", "memory, MB"))
    long_runs.measure_steps(tmp_path / "steps", 60, python, table)
    long_runs.measure_names(tmp_path / "names", 1200, python, table)
    long_runs.measure_writers(tmp_path / "writers", 3, python, table)
    assert len(table.rows) == 8
    for how in ("trial", "engine"):
        assert long_runs.grow(tmp_path / how, how, 500, python) > -1e6


def test_a_wrong_answer_about_a_long_run_is_noticed(tmp_path, monkeypatch):
    asked = long_runs.ask

    def wrong(*arguments):
        out, seconds, memory = asked(*arguments)
        return out.replace("..59", "..58"), seconds, memory

    monkeypatch.setattr(long_runs, "ask", wrong)
    table = Table("long runs", ("run", "what", "processor, s", "memory, MB"))
    with pytest.raises(WrongAnswer, match=r"ls: fc\.weight"):
        long_runs.measure_steps(tmp_path / "steps", 60, [sys.executable], table)


def test_every_zoom_of_an_envelope_is_looked_at_for_all_that_was_planted(tmp_path):
    spikes, bad = envelope.build(tmp_path / "run", 20, 300, seed=1)
    trial = create_trial(tmp_path / "run")
    assert envelope.look_everywhere(trial, 300, spikes, bad) > 50
    found = trial.envelope(trial.tensor_names(), columns=7)
    for marks in ((spikes[1:], bad), (spikes, []), ([*spikes, (0, 299)], bad)):
        with pytest.raises(WrongAnswer, match="is missing, or elsewhere"):
            envelope.find(found, *marks)


def test_any_save_interval_follows_from_a_save_and_a_step_without():
    also = {
        name: {f"{what} wall": [seconds] * 7 for what, seconds in each.items()}
        for name, each in {
            "plain": {"save": 2.0, "other": 2.0},
            CONTROL: {"save": 2.0, "other": 2.0},
            "watched": {"save": 6.0, "other": 2.2},
        }.items()
    }
    samples = Samples("plain", 1, 0.01, {}, also)
    found = {k: save_interval.at_interval(samples, k, "wall") for k in (1, 2, 500)}
    assert found[1].median == pytest.approx(3.0)
    assert found[2].median == pytest.approx(2.05)
    assert found[500].median == pytest.approx(1.1 + 1.9 / 500)


def test_the_save_interval_of_a_training_is_measured_and_verified(monkeypatch):
    given = argparse.Namespace(**{**vars(GIVEN), "figure": "tiny", "device": "cpu"})
    for what in ("all", "weights, inputs and outputs"):
        line = save_interval_torch.line_of(given, what)
        assert line.megabytes > 0
        for interval in save_interval.INTERVALS:
            assert save_interval.at_interval(line.samples, interval, "processor").n == 2
    # Another loss than that of the plain training is noticed.
    step = Training.step
    monkeypatch.setattr(
        Training,
        "step",
        lambda self: step(self) + self.model.training * random.random(),
    )
    with pytest.raises(WrongAnswer):
        save_interval_torch.line_of(given, "weights")
