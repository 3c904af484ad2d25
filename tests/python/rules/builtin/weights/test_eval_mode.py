"""TrainedInEvalMode, on real trainings and by what is known of models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import tdbg
import tdbg.pytorch as td
from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.modes import ModeKeys
from tdbg.rules import LossNotDecreasing, TrainedInEvalMode
from tdbg.run.findings import Finding, Severity
from tdbg.run.model_info import ModelInfo
from torch_helpers import digits


class Training:
    """A classifier of digits with layers that mind, and what is done with it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(32, 10),
        )  # fmt: skip
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05)
        self.batches = digits(16)

    def steps(self, n: int) -> None:
        for _ in range(n):
            inputs, labels = next(self.batches)
            self.optimizer.zero_grad()
            self.criterion(self.model(inputs), labels).backward()
            self.optimizer.step()

    def validate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            inputs, labels = next(self.batches)
            self.criterion(self.model(inputs), labels)


def judged(
    run_dir: Path,
    loop: Callable[[Training], None],
    *others: nn.Module,
    loss: bool = True,
) -> list[Finding]:
    """What is said of a training, as a hook records it that is asked for the rule."""
    training = Training()
    with td.Hook(run_dir, rules=[TrainedInEvalMode()], min_free_bytes=0) as hook:
        for model in (*others, training.model):
            hook.register_module(model)
        if loss:
            hook.register_loss(training.criterion)
        loop(training)
        assert hook.counters()["internal_errors"] == 0
    report = tdbg.rules.check(run_dir, rules=[TrainedInEvalMode()])
    return list(report.findings)


def never_in_training(training: Training) -> None:
    training.model.eval()
    training.steps(20)


def never_again(training: Training) -> None:
    training.steps(12)
    training.validate()
    training.steps(20)


@pytest.mark.parametrize("loss", [True, False])
def test_a_model_that_is_never_in_training_mode(loss: bool, tmp_path: Path):
    """Sabotaged: forwards in evaluation that are not told from others."""
    (finding,) = judged(tmp_path, never_in_training, loss=loss)
    # Without a loss the rates tell of steps, which are recorded at every tenth.
    step = 9 if loss else 10
    assert (finding.tensor, finding.step) == ("Sequential_output_0", step)
    assert finding.severity is Severity.WARNING
    assert "since step 0, the optimizer uses gradients" in finding.message
    assert "1 BatchNorm1d, 1 Dropout behave differently" in finding.message
    assert finding.message.endswith("(1, 3).")
    assert "model.train()" in finding.advice


def test_training_mode_that_is_not_taken_up_after_validation(tmp_path: Path):
    (finding,) = judged(tmp_path, never_again)
    assert finding.step == 12 + 9
    assert "since step 12, the optimizer" in finding.message


def test_it_ends_when_the_model_trains_again(tmp_path: Path):
    def loop(training: Training) -> None:
        never_again(training)
        training.model.train()
        training.steps(10)

    (finding,) = judged(tmp_path, loop)
    assert (finding.phase, finding.last_step) == ("end", 31)


def test_losses_of_such_a_training_are_losses_of_training(tmp_path: Path):
    """So that rules of trainings have something to judge."""
    training = Training()
    training.model.eval()
    rule = LossNotDecreasing()
    with td.Hook(tmp_path, rules=[rule], min_free_bytes=0) as hook:
        hook.register_module(training.model)
        hook.register_loss(training.criterion)
        training.optimizer.param_groups[0]["lr"] = 0.0
        training.steps(200)
    assert [f.rule for f in tdbg.rules.check(tmp_path, rules=[rule]).findings] == [
        "LossNotDecreasing"
    ]


# ---- what is healthy ---------------------------------------------------------------


def as_it_should_be(training: Training) -> None:
    for _ in range(3):
        training.model.train()
        training.steps(12)
        training.validate()


def with_frozen_statistics(training: Training) -> None:
    """As detectors are fine-tuned."""
    training.model[1].eval()
    training.model[1].requires_grad_(False)
    training.steps(20)


def sloppy_validation(training: Training) -> None:
    """With gradients that nobody uses."""
    for _ in range(20):
        training.model.train()
        training.steps(1)
        training.model.eval()
        training.model(next(training.batches)[0])


def adversarial_examples(training: Training) -> None:
    for _ in range(20):
        inputs, labels = next(training.batches)
        training.model.eval()
        inputs.requires_grad_()
        training.criterion(training.model(inputs), labels).backward()
        attacked = (inputs + 0.1 * inputs.grad.sign()).detach()  # type: ignore[union-attr]
        training.model.train()
        training.optimizer.zero_grad()
        training.criterion(training.model(attacked), labels).backward()
        training.optimizer.step()


def saliency(training: Training) -> None:
    """Gradients of inputs, and no optimizer."""
    training.steps(12)
    training.model.eval()
    for _ in range(20):
        inputs = next(training.batches)[0].requires_grad_()
        training.model(inputs).max().backward()
    training.model.train()
    training.steps(12)


def feature_visualization(training: Training) -> None:
    """An optimizer, of the input: the model is none of its business."""
    training.steps(12)
    training.model.eval()
    image = torch.rand(1, 64, requires_grad=True)
    adam = torch.optim.Adam([image], 0.1)
    for _ in range(20):
        adam.zero_grad()
        (-training.model(image)[0, 3]).backward()
        adam.step()


def a_trained_head(training: Training) -> None:
    """On the features of a frozen trunk, which are to stay as they are."""
    training.model[:4].requires_grad_(False)
    training.model.eval()
    training.steps(20)


@pytest.mark.parametrize(
    "loop",
    [
        as_it_should_be,
        with_frozen_statistics,
        sloppy_validation,
        adversarial_examples,
        saliency,
        feature_visualization,
        a_trained_head,
    ],
)
def test_what_is_healthy_is_silent(loop: Callable[[Training], None], tmp_path: Path):
    assert judged(tmp_path, loop) == []


def test_who_says_that_it_is_training_means_it(tmp_path: Path):
    training = Training()
    with td.Hook(tmp_path, rules=[TrainedInEvalMode()], min_free_bytes=0) as hook:
        hook.register_module(training.model)
        hook.register_loss(training.criterion)
        hook.set_mode(ModeKeys.TRAIN)
        never_in_training(training)
    report = tdbg.rules.check(tmp_path, rules=[TrainedInEvalMode()])
    assert list(report.findings) == []


def test_where_no_layer_minds_there_is_nothing_to_say(tmp_path: Path):
    def loop(training: Training) -> None:
        training.model[1], training.model[3] = nn.LayerNorm(32), nn.Identity()
        never_in_training(training)

    assert judged(tmp_path, loop) == []


def test_a_teacher_may_be_in_evaluation_mode(tmp_path: Path):
    """Registered first, so that the mode is its mode."""
    teacher = copy.deepcopy(Training().model).eval().requires_grad_(False)

    def loop(training: Training) -> None:
        for _ in range(20):
            inputs, _ = next(training.batches)
            with torch.no_grad():
                said = teacher(inputs).softmax(1)
            training.optimizer.zero_grad()
            training.criterion(training.model(inputs), said).backward()
            training.optimizer.step()

    assert judged(tmp_path, loop, teacher) == []


def test_a_generator_in_evaluation_mode_while_the_discriminator_learns(tmp_path: Path):
    generator = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.Linear(64, 64))
    of_generator = torch.optim.SGD(generator.parameters(), 0.01)

    def loop(training: Training) -> None:
        discriminator = training.model
        for _ in range(20):
            real, labels = next(training.batches)
            generator.eval()
            made = generator(torch.randn(16, 8)).detach()
            training.optimizer.zero_grad()
            loss = training.criterion(discriminator(real), labels)
            (loss + discriminator(made).square().mean()).backward()
            training.optimizer.step()
            generator.train()
            of_generator.zero_grad()
            discriminator(generator(torch.randn(16, 8))).square().mean().backward()
            of_generator.step()

    assert judged(tmp_path, loop, generator) == []


# ---- by what is known --------------------------------------------------------------


def known(step: int, *evaluating: str) -> ModelInfo:
    modules = {"Net": "Net", "drop": "Dropout", "norm": "BatchNorm2d"}
    return ModelInfo(step=step, modules=modules, complete=True, evaluating=evaluating)


def recorded(*model_info: ModelInfo, n_steps: int = 40, every: int = 1) -> FakeRun:
    run = FakeRun(every=every)
    for step in range(n_steps):
        run.step(step, {"CrossEntropyLoss_output_0": [1.0]})
    run.known_facts = list(model_info)
    return run


@pytest.mark.parametrize("every", [1, 7])
def test_it_must_last_for_ten_steps(every: int):
    run = recorded(known(0), known(5, "drop"), every=every)
    (finding,) = judge(run, TrainedInEvalMode())
    assert finding.step == 5 + (9 if every == 1 else 2)
    assert judge_in_parts(run, range(40), TrainedInEvalMode()) == [finding]
    (finding,) = judge(run, TrainedInEvalMode(num_steps=1))
    assert finding.step == 5


def test_other_news_of_the_model_are_no_new_beginning():
    run = recorded(known(3, "drop"), known(8, "drop", "norm"), known(20))
    begin, end = judge(run, TrainedInEvalMode())
    assert (begin.step, begin.phase, end.step, end.phase) == (12, "begin", 22, "end")
    assert "since step 3" in begin.message
    assert "1 Dropout, 1 BatchNorm2d behave differently" in begin.message
    assert (begin.value, begin.threshold) == (2.0, 0.0)
    assert judge_in_parts(run, range(40), TrainedInEvalMode()) == [begin, end]


def test_steps_that_were_lost_are_not_judged():
    run = recorded(known(0, "drop"))
    for step in range(40):
        run.step(step, lossless=False)
    assert judge(run, TrainedInEvalMode()) == []
