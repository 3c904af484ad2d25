"""MirroredStrategy: replicas are micro-batches of one step, merged exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_programs import run_program
from tdbg.modes import EVAL, TRAIN
from tdbg.trial import Trial, create_trial

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


def test_each_replica_is_a_micro_batch(ran: Ran) -> None:
    outputs = ran.trial("two").tensor("Sequential_input_0")
    labels = ran.trial("two").tensor("SparseCategoricalCrossentropy_input_1")
    for tensor, whole in ((outputs, 16 * 8), (labels, 16)):
        assert tensor.stats(0).count == whole
    losses = ran.trial("two").tensor(LOSS).stats(0)
    alone = float(ran.trial("one").tensor(LOSS).value(0))
    assert losses.count == 2
    assert losses.mean * 2 == pytest.approx(alone, rel=1e-4)  # They are sums.


def test_validation_under_a_strategy_is_evaluation(ran: Ran) -> None:
    loss = ran.trial("fit two").tensor(LOSS)
    assert loss.steps(mode=EVAL) == list(range(4))
    assert np.isfinite(loss.stats(0, mode=EVAL).mean)


def test_replicas_that_run_eagerly_are_refused_in_one_line(ran: Ran) -> None:
    told = [each for each in ran.report["messages"] if "outside of tf.function" in each]
    assert len(told) == 1
    assert ran.trial("two eagerly").tensor_names() == []


def test_a_strategy_of_several_processes_is_refused(ran: Ran) -> None:
    assert ran.report["elsewhere"] == "ConfigurationError"
