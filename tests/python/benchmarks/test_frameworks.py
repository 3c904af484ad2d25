"""The same training in every framework: it is the same, and the verdict is a verdict.

What rules say of all of them takes minutes and is what
``python -m benchmarks.frameworks`` is for.
"""

from __future__ import annotations

import json
from importlib.util import find_spec

import numpy as np
import pytest

from benchmarks.frameworks import __main__ as program
from benchmarks.frameworks.trainings import TRAININGS, Training, by_name
from tdbg.modes import TRAIN
from tdbg.rules import resolve
from tdbg.run.findings import Finding, Severity

HEALTHY = by_name("healthy")


def finding(rule: str, step: int) -> Finding:
    return Finding(
        rule=rule,
        severity=Severity.WARNING,
        step=step,
        mode=TRAIN,
        tensor="fc",
        message="bad",
        value=1.0,
        threshold=0.0,
        first_step=step,
        last_step=step,
    )


@pytest.mark.parametrize("training", TRAININGS, ids=lambda each: each.name)
def test_a_training_is_the_same_each_time(training: Training):
    again = by_name(training.name)
    for one, other in zip(training.layers(), again.layers(), strict=True):
        np.testing.assert_array_equal(one.kernel, other.kernel)
    batches = list(zip(training.batches(), again.batches(), strict=True))
    assert batches
    for (x, y), (same_x, same_y) in batches:
        np.testing.assert_array_equal(x, same_x)
        np.testing.assert_array_equal(y, same_y)
        assert len(x) == len(y) == training.batch_size


@pytest.mark.parametrize("training", TRAININGS, ids=lambda each: each.name)
def test_its_fault_may_be_named_by_rules_that_there_are(training: Training):
    known = {rule.name for rule in resolve("default")}
    assert set(training.named_by) <= known
    assert bool(training.named_by) == (training is not HEALTHY)


def test_each_fault_is_in_the_training():
    assert by_name("deep sigmoids").activation == "sigmoid"
    assert all((layer.bias < 0).all() for layer in by_name("dead ReLUs").layers()[:-1])
    assert by_name("exploding rate").rate > 10 * HEALTHY.rate
    frozen = by_name("frozen layers").layers()
    assert not frozen[0].is_trained
    assert frozen[-1].is_trained
    _, labels = by_name("class imbalance").data()
    assert (labels == 0).mean() > 0.5
    few, _ = by_name("overfit").data()
    assert len(few) < len(HEALTHY.data()[0])


def test_every_framework_has_a_program():
    for name, (module, _) in program.PROGRAMS.items():
        assert find_spec(f"benchmarks.frameworks.programs.{module}"), name


def test_a_fault_is_found_if_one_of_its_rules_says_so():
    training = by_name("dead ReLUs")
    named, other = finding("DeadRelu", 7), finding("Underfitting", 2)
    right = program._outcome("flax", training, [other, named])
    assert (right.is_right, right.said) == (True, "DeadRelu 7")
    wrong = program._outcome("flax", training, [other])
    assert (wrong.is_right, wrong.said) == (False, "Underfitting 2")
    assert program._outcome("flax", training, []).said == "nothing"


def test_the_healthy_training_is_right_if_nothing_is_said():
    assert program._outcome("flax", HEALTHY, []).is_right
    assert not program._outcome("flax", HEALTHY, [finding("DeadRelu", 7)]).is_right


def test_a_program_trains_and_its_run_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(program, "TRAININGS", (by_name("exploding rate"),))
    monkeypatch.setattr("sys.argv", ["frameworks", "--only", "flax", "--json"])
    assert program.main() == 0
    (outcome,) = json.loads(capsys.readouterr().out)
    assert outcome["framework"] == "flax"
    assert outcome["is_right"] is True


def test_what_is_no_framework_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.argv", ["frameworks", "--only", "theano"])
    with pytest.raises(SystemExit) as refused:
        program.main()
    assert refused.value.code == 2
    assert "no such framework: theano" in capsys.readouterr().err
