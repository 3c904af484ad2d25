"""MirroredStrategy: each replica is a worker, and all together are the batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_programs import run_program
from tdbg.hooks.keras.replicas import strategy_problem
from tdbg.modes import EVAL, TRAIN
from tdbg.rules import ExplodingTensor, Rule
from tdbg.rules.testing import judge
from tdbg.run.findings import Finding
from tdbg.trial import TensorStatistics, Trial, create_trial

pytestmark = pytest.mark.nightly

# The data of the programs.
X = np.random.default_rng(0).normal(size=(70, 8)).astype("float32")
LOSS = "SparseCategoricalCrossentropy_output_0"
PAIRS = [("one", "two"), ("one", "two by function"), ("fit one", "fit two")]


class Ran:
    """A program that has run."""

    def __init__(self, out: Path) -> None:
        self.report = run_program("replicas", out)
        self._out = out

    def trial(self, name: str) -> Trial:
        """The run of this name."""
        return create_trial(self._out / name)

    def judge(self, name: str, rule: Rule) -> list[Finding]:
        """What a rule finds in the run."""
        return judge(self._out / name, rule)


def assert_is_of(row: TensorStatistics, array: Any) -> None:
    """It is the row of this array."""
    exact = np.asarray(array, np.float64)
    assert row.count == exact.size
    assert (row.min, row.max) == (exact.min(), exact.max())
    assert row.mean == pytest.approx(exact.mean(), rel=1e-6)
    assert row.l2 == pytest.approx(np.linalg.norm(exact), rel=1e-6)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: Any) -> Ran:
    return Ran(tmp_path_factory.mktemp("replicas"))


def test_tdbg_meets_no_error_of_its_own(ran: Ran) -> None:
    for name, found in ran.report.items():
        if "counters" in found:
            assert found["counters"]["internal_errors"] == 0, name
            assert found["counters"]["repeated_rows"] == 0, name


@pytest.mark.parametrize(
    ("watched", "plain"),
    [
        ("two", "plain"),
        ("two by function", "plain"),
        ("two eagerly", "plain"),
        ("fit two", "fit plain"),
    ],
)
def test_a_training_with_a_hook_is_the_training_without(
    ran: Ran, watched: str, plain: str
) -> None:
    expected = ran.report[plain]["losses"]
    assert ran.report[watched]["losses"] == pytest.approx(expected, rel=1e-5)
    assert not any(ran.report[watched].get("patched", ()))


@pytest.mark.parametrize(("one", "two"), PAIRS)
def test_two_replicas_show_what_one_device_shows(ran: Ran, one: str, two: str) -> None:
    alone, together = ran.trial(one), ran.trial(two)
    names = set(alone.tensor_names()) & set(together.tensor_names()) - {LOSS}
    assert {"gradient/d1/kernel", "update/d2/bias", "d1_relu_output_0"} <= names
    assert {"buffer/bn/moving_mean", "optimizer/momentum/d1/kernel"} <= names
    for name in names:
        expected, found = alone.tensor(name), together.tensor(name)
        assert found.steps(mode=TRAIN) == expected.steps(mode=TRAIN), name
        for step in expected.steps(mode=TRAIN)[:3]:
            ours = found.stats(step, mode=TRAIN)
            theirs = expected.stats(step, mode=TRAIN)
            assert ours.count == theirs.count, name
            for what in ("min", "max", "mean"):
                assert getattr(ours, what) == pytest.approx(
                    getattr(theirs, what), rel=2e-3, abs=2e-5
                ), (name, what)


@pytest.mark.parametrize("name", ["two", "two by function", "fit two"])
def test_the_gradient_is_the_one_that_the_optimizer_has_reduced(
    ran: Ran, name: str
) -> None:
    # Adam's first momentum is a tenth of the first gradient.
    trial = ran.trial(name)
    for parameter in ("d1/kernel", "d2/bias"):
        momentum = trial.tensor(f"optimizer/momentum/{parameter}").value(0)
        gradient = trial.tensor(f"gradient/{parameter}").value(0)
        assert momentum == pytest.approx(0.1 * gradient, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", ["two", "two by function", "fit two"])
def test_each_replica_is_a_worker_with_its_share_of_the_batch(
    ran: Ran, name: str
) -> None:
    trial = ran.trial(name)
    assert trial.workers() == ["worker_0", "worker_1"]
    assert trial.attempts()[-1].world_size == 2
    given = trial.tensor("Sequential_input_0")
    for step in (0, 3):
        batch = X[16 * step : 16 * step + 16]
        assert given.workers(step, mode=TRAIN) == trial.workers()
        for i, worker in enumerate(trial.workers()):
            share = batch[8 * i : 8 * i + 8]
            found = given.value(step, mode=TRAIN, worker=worker)
            assert np.array_equal(found, share)
            assert_is_of(given.stats(step, mode=TRAIN, worker=worker), share)
        assert_is_of(given.stats(step, mode=TRAIN), batch)
    assert trial.step_table()["complete"].all()
    assert trial.step_table()["micro_batches"].max() == 1


@pytest.mark.parametrize("name", ["two", "two by function", "fit two"])
def test_what_all_replicas_hold_alike_is_written_once(ran: Ran, name: str) -> None:
    trial = ran.trial(name)
    for tensor in ("d1/kernel", "gradient/d1/kernel", "update/d1/kernel"):
        assert trial.tensor(tensor).workers(0, mode=TRAIN) == ["worker_0"], tensor


@pytest.mark.parametrize(
    ("one", "two", "n_sums"), [("one", "two", 2), ("fit one", "fit two", 1)]
)
def test_each_replica_has_its_own_loss(
    ran: Ran, one: str, two: str, n_sums: int
) -> None:
    # In the loop a loss is a share of the sum; in `fit` it is the mean of the share.
    loss, alone = ran.trial(two).tensor(LOSS), ran.trial(one).tensor(LOSS)
    for step in (0, 3):
        own = [
            float(loss.value(step, mode=TRAIN, worker=f"worker_{i}")) for i in (0, 1)
        ]
        assert own[0] != own[1]
        together = loss.stats(step, mode=TRAIN)
        assert (together.count, together.min, together.max) == (2, min(own), max(own))
        expected = float(alone.value(step, mode=TRAIN))
        assert together.mean * n_sums == pytest.approx(expected, rel=1e-3)


def test_each_replica_has_its_own_gradient_and_the_optimizer_their_sum(
    ran: Ran,
) -> None:
    trial = ran.trial("uneven")
    local, whole = (
        trial.tensor(f"{kind}/d1/kernel") for kind in ("gradient_local", "gradient")
    )
    for step in (0, 1, 2):
        own = [local.value(step, worker=worker) for worker in trial.workers()]
        for i, worker in enumerate(trial.workers()):
            x = trial.tensor("Sequential_input_0").value(step, worker=worker)
            logits = trial.tensor("Sequential_output_0").value(step, worker=worker)
            labels = trial.tensor("SparseCategoricalCrossentropy_input_1").value(
                step, worker=worker
            )
            shown = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            expected = x.T @ (shown - np.eye(3)[labels.reshape(-1)])
            assert own[i] == pytest.approx(expected, abs=1e-5)
            assert_is_of(local.stats(step, worker=worker), own[i])
        assert_is_of(local.stats(step), np.stack(own))
        assert np.array_equal(whole.value(step), own[0] + own[1])
        assert whole.workers(step) == ["worker_0"]
    found = trial.tensor_names(collection="local_gradients")
    assert found == ["gradient_local/d1/bias", "gradient_local/d1/kernel"]


def test_gradients_of_replicas_are_captured_if_they_are_asked_for(ran: Ran) -> None:
    assert not ran.trial("two").tensor_names(regex="gradient_local")


def test_an_uneven_batch_is_whole_when_all_replicas_are(ran: Ran) -> None:
    given = ran.trial("uneven").tensor("Sequential_input_0")
    counts = [given.stats(2, worker=f"worker_{i}").count for i in (0, 1)]
    assert sorted(counts) == [0, 8]  # One sample: nothing is left for the other.
    assert_is_of(given.stats(2), X[32:33])
    assert_is_of(given.stats(1), X[16:32])


def test_a_replica_whose_data_is_not_a_number_is_named(ran: Ran) -> None:
    trial = ran.trial("poisoned")
    assert "Sequential_input_0" not in trial.tensor_names(step=1)  # Losses only.
    loss = trial.tensor(LOSS)
    assert [loss.stats(1, worker=f"worker_{i}").nan for i in (0, 1)] == [0, 1]
    first = next(iter(ran.judge("poisoned", ExplodingTensor())))
    assert (first.tensor, first.step) == (LOSS, 1)
    assert "on worker_1 of 2 workers" in first.message


def test_each_replica_has_its_own_loss_where_nothing_else_is_captured(
    ran: Ran,
) -> None:
    trial = ran.trial("fit seldom")
    loss, tapped = trial.tensor(LOSS), ran.trial("fit often").tensor(LOSS)
    assert trial.tensor("Sequential_input_0").steps(mode=TRAIN) == [0]
    for worker in trial.workers():
        for step in (0, 1):
            expected = float(tapped.value(step, mode=TRAIN, worker=worker))
            found = float(loss.value(step, mode=TRAIN, worker=worker))
            assert found == pytest.approx(expected, rel=1e-5)
    at = [loss.stats(2, mode=TRAIN, worker=worker).nan for worker in trial.workers()]
    assert at == [0, 1]
    assert loss.workers(3, mode=TRAIN) == ["worker_0"]  # The other share is empty.
    first = next(iter(ran.judge("fit seldom", ExplodingTensor())))
    assert (first.tensor, first.step) == (LOSS, 2)
    assert "on worker_1 of 2 workers" in first.message


def test_a_replica_whose_gradient_is_not_a_number_is_named(ran: Ran) -> None:
    rule = ExplodingTensor(collections=("local_gradients",))
    first = next(iter(ran.judge("broken", rule)))
    assert (first.tensor, first.step) == ("gradient_local/d1/kernel", 1)
    assert "on worker_1 of 2 workers" in first.message


def test_validation_under_a_strategy_is_evaluation(ran: Ran) -> None:
    loss = ran.trial("fit two").tensor(LOSS)
    assert loss.steps(mode=EVAL) == list(range(4))
    assert np.isfinite(loss.stats(0, mode=EVAL).mean)


def test_replicas_that_run_eagerly_are_refused_in_one_line(ran: Ran) -> None:
    told = [each for each in ran.report["messages"] if "outside tf.function" in each]
    assert len(told) == 1
    assert ran.trial("two eagerly").tensor_names() == []


def test_a_strategy_is_refused_by_the_name_that_users_know() -> None:
    strategy = type("CollectiveAllReduceStrategy", (), {})()
    problem = strategy_problem(SimpleNamespace(distribute_strategy=strategy))
    assert problem is not None
    assert "tf.distribute.MultiWorkerMirroredStrategy" in problem


def test_a_strategy_of_several_processes_is_refused(ran: Ran) -> None:
    assert ran.report["elsewhere"] == "ConfigurationError"
