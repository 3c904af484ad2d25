"""smdebug's way of reading a run, and its rules, on tdbg's runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdbg.compat.smdebug.pytorch as smd
from run_builder import RunBuilder
from tdbg.compat.smdebug import exceptions
from tdbg.compat.smdebug.analysis.utils import no_refresh, refresh
from tdbg.compat.smdebug.core.access_layer import check_dir_exists, has_training_ended
from tdbg.compat.smdebug.core.tensor import StepState
from tdbg.compat.smdebug.rules import Rule, invoke_rule
from tdbg.compat.smdebug.trials import LocalTrial, Trial, create_trial
from torch_helpers import digits, mlp

TRAIN, EVAL, GLOBAL = smd.modes.TRAIN, smd.modes.EVAL, smd.modes.GLOBAL


class Training:
    """A training that goes on step by step."""

    def __init__(self, run_dir: Path, **options: Any) -> None:
        self.model = mlp()
        config = smd.SaveConfig(save_interval=2)
        self.hook = smd.Hook(run_dir, **{"save_config": config, **options})
        self.hook.register_module(self.model)
        self.criterion = nn.CrossEntropyLoss()
        self.hook.register_loss(self.criterion)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self._batches = digits(16)

    def train(self, n_steps: int) -> None:
        self.hook.set_mode(TRAIN)
        for _ in range(n_steps):
            inputs, labels = next(self._batches)
            self._optimizer.zero_grad()
            self.criterion(self.model(inputs), labels).backward()
            self._optimizer.step()

    def evaluate(self, n_steps: int) -> None:
        self.hook.set_mode(EVAL)
        for _ in range(n_steps):
            inputs, labels = next(self._batches)
            with torch.no_grad():
                self.criterion(self.model(inputs), labels)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Steps 0 to 4 in training, 5 to 6 in evaluation, each second one saved."""
    run_dir = tmp_path_factory.mktemp("smdebug") / "run"
    training = Training(run_dir, include_collections=["weights", "gradients", "rows"])
    rows = training.hook.get_collection("rows")
    rows.include("relu_output")
    rows.reduction_config = smd.ReductionConfig(["mean"])
    training.train(5)
    training.evaluate(2)
    training.hook.close()
    yield run_dir
    smd.del_hook()


@pytest.fixture
def trial(finished: Path) -> Trial:
    return create_trial(str(finished) + " ")


def test_names_are_found_by_regex_collection_step_and_mode(trial: Trial) -> None:
    assert trial.tensor_names(regex="fc1.*weight$") == [
        "Net_fc1.weight",
        "gradient/Net_fc1.weight",
    ]
    assert trial.tensor_names(regex=[["relu"], "Loss"]) == [
        "CrossEntropyLoss_output_0",
        "relu_output_0",
    ]
    gradients = [f"gradient/Net_fc{i}.{k}" for i in (1, 2) for k in ("bias", "weight")]
    assert trial.tensor_names(collection="gradients") == gradients
    assert trial.tensor_names(collection=trial.collection("gradients")) == gradients
    assert trial.tensor_names(True, step=5, collection="gradients") == []
    assert trial.tensor_names(mode=EVAL, collection="weights") == [
        "Net_fc1.weight",
        "Net_fc2.weight",
    ]
    assert trial.tensor_names(step=0, mode=EVAL) == trial.tensor_names(step=5)
    assert trial.tensor_names(mode=smd.modes.PREDICT) == []
    with pytest.raises(exceptions.SMDebugValueError, match="did you mean 'weights'"):
        trial.tensor_names(collection="weigths")
    with pytest.raises(exceptions.SMDebugValueError, match="not a regular expression"):
        trial.tensor_names(regex="(")
    with pytest.raises(exceptions.SMDebugTypeError):
        trial.tensor_names(collection=3)  # type: ignore[arg-type]


def test_steps_are_counted_by_mode(trial: Trial) -> None:
    assert trial.steps() == [0, 2, 4, 5]
    assert trial.steps(mode=TRAIN) == [0, 2, 4]
    assert trial.steps(EVAL, show_incomplete_steps=True) == [0]
    assert trial.modes() == [TRAIN, EVAL]
    assert trial.mode_modestep(5) == (EVAL, 0)
    assert (trial.mode(4), trial.mode_step(4)) == (TRAIN, 4)
    assert trial.global_step(EVAL, 0) == 5
    assert trial.global_step(EVAL, 9) is None
    assert trial.loaded_all_steps
    assert trial.workers() == ["worker_0"]
    assert (trial.num_workers, trial.last_index_token) == (1, None)
    assert trial.has_passed_step(2) is StepState.AVAILABLE
    assert trial.has_passed_step(3) is StepState.UNAVAILABLE
    trial.wait_for_steps([0, 2])
    with pytest.raises(exceptions.StepUnavailable) as skipped:
        trial.wait_for_steps([0, 1], TRAIN)
    assert (skipped.value.step, skipped.value.mode) == (1, TRAIN)
    with pytest.raises(exceptions.NoMoreData) as over:
        trial.wait_for_steps([99])
    assert (over.value.step, over.value.last_step) == (99, 5)


def test_a_tensor_is_read_by_smdebugs_methods(trial: Trial) -> None:
    weight = trial.tensor("Net_fc1.weight")
    assert weight.name == weight.original_name == "Net_fc1.weight"
    assert weight.steps() == [0, 2, 4, 5]
    assert weight.steps(mode=TRAIN) == [0, 2, 4]
    assert weight.prev_steps(4, n=2) == [2, 4]
    assert weight.prev_steps(4) == weight.prev_steps(4, 0) == [0, 2, 4]
    assert weight.has_step(2)
    assert not weight.has_step(3)
    assert weight.workers(2) == ["worker_0"]
    value = weight.value(step_num=2, mode=GLOBAL, worker=None)
    assert value.shape == weight.shape(2) == weight.shapes()[2] == (24, 64)
    assert list(weight.values(mode=TRAIN)) == [0, 2, 4]
    np.testing.assert_array_equal(weight.values(EVAL)[0], weight.value(5))


@pytest.mark.parametrize("name", ["min", "max", "mean", "std", "variance", "sum"])
@pytest.mark.parametrize("is_abs", [False, True])
def test_a_reduction_is_what_numpy_says_of_the_value(
    trial: Trial, name: str, is_abs: bool
) -> None:
    weight = trial.tensor("Net_fc1.weight")
    value = weight.value(2).astype(np.float64)
    value = np.abs(value) if is_abs else value
    expected = getattr(np, {"variance": "var"}.get(name, name))(value)
    found = weight.reduction_value(2, name, abs=is_abs)
    assert found == pytest.approx(expected, rel=1e-6)
    assert weight.reduction_values(2)[(name, is_abs)] == found


def test_norms_are_of_all_elements_and_products_of_the_value(trial: Trial) -> None:
    weight = trial.tensor("Net_fc1.weight")
    value = weight.value(2).astype(np.float64).ravel()
    for name, order in (("l1", 1), ("l2", 2)):
        norm = np.linalg.norm(value, order)
        assert weight.reduction_value(2, name) == pytest.approx(norm, rel=1e-6)
    bias = trial.tensor("CrossEntropyLoss_output_0")
    assert bias.reduction_value(2, "prod") == float(bias.value(2))
    assert weight.reduction_value(2, "median") == np.median(value)
    with pytest.raises(exceptions.SMDebugValueError, match="unknown reduction"):
        weight.reduction_value(2, "l3")


def test_what_is_missing_is_told_by_smdebugs_exceptions(trial: Trial) -> None:
    weight, rows = trial.tensor("Net_fc1.weight"), trial.tensor("relu_output_0")
    assert trial.has_tensor("relu_output_0")
    with pytest.raises(exceptions.TensorUnavailable) as tensor:
        trial.tensor("fc9")
    assert tensor.value.tname == "fc9"
    for step in (1, 99):
        with pytest.raises(exceptions.StepUnavailable):
            weight.value(step)
    with pytest.raises(exceptions.TensorUnavailableForStep) as reduced:
        rows.value(2, TRAIN)
    assert reduced.value.has_reductions
    assert "reduction_value" in str(reduced.value)
    assert rows.reduction_value(2, "mean") > 0
    gradient = trial.tensor("gradient/Net_fc1.weight")
    with pytest.raises(exceptions.TensorUnavailableForStep) as absent:
        gradient.value(0, EVAL)
    assert not absent.value.has_reductions
    with pytest.raises(exceptions.ShapeUnavailableForStep):
        gradient.shape(0, EVAL)
    with pytest.raises(exceptions.TensorUnavailableForStep):
        gradient.workers(0, EVAL)
    with pytest.raises(exceptions.InvalidWorker):
        weight.value(2, worker="worker_7")


def test_collections_hold_smdebugs_names(trial: Trial) -> None:
    found = trial.collections()
    assert {"all", "default", "weights", "biases", "gradients", "losses"} <= set(found)
    assert found["rows"].include_regex == ["relu_output"]
    assert found["rows"].tensor_names == {"relu_output_0"}
    assert trial.collection("losses").tensor_names == {"CrossEntropyLoss_output_0"}


def test_steps_can_be_limited_and_trials_compared(finished: Path) -> None:
    assert create_trial(str(finished), range_steps=(2, 5)).steps() == [2, 4]
    assert create_trial(str(finished), range_steps=(None, 1)).steps() == [0]
    first = create_trial(str(finished), name="a", check=True, index_mode=False)
    assert first == LocalTrial("a", finished, cache=True)
    assert hash(first) == hash(LocalTrial("a", finished))
    assert first != create_trial(str(finished))
    assert first.name == "a"
    assert Path(first.path) == finished


def test_a_missing_run_fails_at_once(tmp_path: Path) -> None:
    with pytest.raises(exceptions.MissingCollectionFiles, match="nowhere"):
        create_trial(str(tmp_path / "nowhere"))
    bucket = f"memory://{tmp_path.name}"
    with pytest.raises(exceptions.MissingCollectionFiles, match="is not a run"):
        create_trial(f"{bucket}/prefix")
    with pytest.raises(exceptions.MissingCollectionFiles, match="no profile"):
        create_trial(str(tmp_path), profiler=True)
    assert not has_training_ended(tmp_path)


def test_answers_stay_as_they_are_unless_refreshed(run_dir: Path) -> None:
    training = Training(run_dir)
    training.train(1)
    training.hook.flush()
    trial = create_trial(str(run_dir))
    assert not has_training_ended(run_dir)
    assert trial.steps(show_incomplete_steps=True) == [0]
    assert trial.has_passed_step(2) is StepState.NOT_YET_AVAILABLE
    with pytest.raises(exceptions.StepNotYetAvailable):
        trial.tensor("CrossEntropyLoss_output_0").value(2)
    with no_refresh([trial]):
        training.train(2)
        training.hook.flush()
        trial.maybe_refresh()
        assert trial.steps() == [0]
        with refresh(trial):
            assert trial.steps() == [0, 2]
        assert not trial.dynamic_refresh
        training.train(2)
        training.hook.flush()
        assert trial.steps() == [0, 2]
        trial.refresh_data()
        trial.refresh_tensor("CrossEntropyLoss_output_0")
    assert trial.dynamic_refresh
    assert trial.steps() == [0, 2, 4]
    training.hook.close()
    assert has_training_ended(run_dir)
    assert check_dir_exists(run_dir)


def test_a_program_sees_what_its_own_hook_has_recorded(run_dir: Path) -> None:
    training = Training(run_dir)
    for _ in range(20):
        training.train(2)
        trial = create_trial(run_dir)
        assert trial.steps()[-1] == training.hook.step - 1
    training.hook.close()


def test_a_tensor_of_another_worker_is_an_invalid_worker(run_dir: Path) -> None:
    for rank in (0, 1):
        names = ["both"] if rank else ["both", "first"]
        with RunBuilder(run_dir, rank=rank, world_size=2) as writer:
            writer.step(0, {name: np.full(2, rank, np.float32) for name in names})
    trial = create_trial(str(run_dir))
    assert trial.workers() == ["worker_0", "worker_1"]
    both, first = trial.tensor("both"), trial.tensor("first")
    assert both.value(0, worker="worker_1").tolist() == [1, 1]
    assert both.value(0).tolist() == [0, 0]
    with pytest.raises(exceptions.InvalidWorker) as caught:
        first.value(0, worker="worker_1")
    assert caught.value.worker == "worker_1"


class LargeLoss(Rule):
    """Fires where the loss is above a threshold."""

    def __init__(self, base_trial: Trial, threshold: float = 0.0) -> None:
        super().__init__(base_trial, "")
        self.threshold = float(threshold)
        self.judged: list[int] = []

    def set_required_tensors(self, step: int) -> None:
        self.req_tensors.add("Loss_output", steps=[step], should_match_regex=True)
        self.req_tensors.add("CrossEntropyLoss_output_0", [step])

    def invoke_at_step(self, step: int) -> bool:
        self.judged.append(step)
        assert list(self.req_tensors.get_names()) == ["CrossEntropyLoss_output_0"]
        name = "CrossEntropyLoss_output_0"
        assert self.req_tensors.get_tensor_steps(name) == [step, step]
        (loss,) = self.req_tensors.get()
        return float(loss.value(step)) > self.threshold


def test_a_rule_judges_a_finished_run_and_ends(trial: Trial) -> None:
    rule = LargeLoss(trial, threshold=100)
    invoke_rule(rule)
    assert rule.judged == [0, 2, 4, 5]
    rule = LargeLoss(trial)
    invoke_rule(rule, start_step=1, end_step=5)
    assert rule.judged == [2, 4]
    with pytest.raises(exceptions.RuleEvaluationConditionMet) as caught:
        invoke_rule(LargeLoss(trial), start_step=3, raise_eval_cond=True)
    assert (caught.value.rule_name, caught.value.step) == ("LargeLoss", 4)
    assert rule.report["RuleTriggered"] == 0


def test_a_rule_needs_what_is_there(trial: Trial) -> None:
    class Missing(LargeLoss):
        def set_required_tensors(self, step: int) -> None:
            self.req_tensors.add("gradient/Net_fc1.weight", [step])
            self.req_tensors.add("no_such_tensor", [step])

    rule = Missing(trial)
    invoke_rule(rule)
    assert rule.judged == []
    with pytest.raises(exceptions.TensorUnavailable):
        rule.invoke(2)


def test_a_rule_follows_a_training_until_it_ends(run_dir: Path) -> None:
    training = Training(run_dir)
    training.train(1)
    training.hook.flush()
    rule = LargeLoss(create_trial(str(run_dir)), threshold=100)
    follower = threading.Thread(target=invoke_rule, args=(rule,))
    follower.start()
    for _ in range(3):
        training.train(2)
        training.hook.flush()
        time.sleep(0.02)
    training.hook.close()
    follower.join(timeout=60)
    assert not follower.is_alive()
    assert rule.judged == [0, 2, 4, 6]


def test_a_rule_may_compare_runs(trial: Trial, finished: Path) -> None:
    other = create_trial(str(finished), name="other")

    class Compare(Rule):
        def set_required_tensors(self, step: int) -> None:
            for each in self.trials:
                self.req_tensors.add("Net_fc1.weight", [step], trial=each)

        def invoke_at_step(self, step: int) -> bool:
            values = [
                next(iter(self.req_tensors.get(each))).value(step)
                for each in self.trials
            ]
            return not np.array_equal(*values)

    rule = Compare(trial, "", other_trials=[other])
    rule.invoke(2)
    assert rule.trials == [trial, other]
