"""Every default rule, at its defaults, on a real training: it names a fault that is
there, and says nothing of the twin without it.

The trainings are cases of ``benchmarks/detection``, cut short.  Each is watched as a
user would: ``td.watch`` with nothing but a model, its losses and a directory.  Each is
judged while it goes on, and once more when it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import tdbg.pytorch as td
from benchmarks.detection.kit.case import TWIN, case_named, load, own
from benchmarks.detection.kit.data import digits
from benchmarks.detection.kit.loops import Loop, adam
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training
from tdbg.config.needs import every_need
from tdbg.rules import (
    Engine,
    Report,
    SimilarAcrossRuns,
    Status,
    check,
    default_rules,
    registry,
)
from tdbg.rules.engine import engine as engine_module
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR
LOSS, LABELS = "CrossEntropyLoss_output_0", "CrossEntropyLoss_input_1"
INPUT, SCORES = "Sequential_input_0", "CrossEntropyLoss_input_0"
SQUARES = "MSELoss_output_0"

# How many steps of a case are enough.
CASES = {
    "prior_on_every_bias": 30,
    "deep_sigmoids": 30,
    "equal_weights": 10,
    "own_optimizer_rebinds_the_name": 20,
    "resumed_at_the_end_of_the_schedule": 40,
    "rate_of_another_framework": 105,
    "loss_wrapped_anew": 20,
    "layer_replaced_later": 20,
    "layer_never_called": 50,
    "left_in_eval": 30,
    "no_zero_grad": 20,
    "cache_never_filled": 30,
    "gray_images": 30,
    "raw_wine": 20,
    "raw_targets": 30,
    "rare_disease": 60,
    "threes_labelled_as_eights": 100,
    "missing_value": 30,
    "batch_in_other_units": 155,
    "two_shuffles": 210,
    "raw_tumours": 30,
    "forty_patients": 260,
    "gradients_below_half": 20,
    "weights_in_bfloat16": 30,
    "padded_to_the_maximum": 10,
    "numbers_cut_off": 30,
    "softmax_before_the_loss": 12,
    "layers_in_a_plain_list": 40,
    "decay_per_batch": 110,
    "updates_end_before_the_epochs": 240,
    "sorted_without_shuffling": 40,
}


@own.sick("TensorVariance NotNormalizedData", "all images are the same gray")
def gray_images(t: Training) -> None:
    """Inputs that are constant, but not zero: the corpus has none.

    Source: a normalization by the maximum of each image.  Visible: at once.
    """
    split = digits()
    if t.sick:
        split = split.inputs(lambda x: torch.full_like(x, 0.5))
    loop = Loop(t, mlp([64, 32, 10]), split, adam(1e-2))
    loop.run(60, visible=lambda _: t.sick, learned=0.8)


@dataclass(frozen=True)
class Named:
    """What a rule is to say of a fault.

    Attributes:
        fault: The case.
        rule: Its name.
        tensor: Where.
        severity: How bad.
        steps: The first step and the last at which it may be noticed.
        says: Part of the message.
        advises: Part of the advice.
    """

    fault: str
    rule: str
    tensor: str
    severity: Severity
    steps: tuple[int, int]
    says: str
    advises: str


NAMED = [
    Named("prior_on_every_bias", "DeadRelu", "1_output_0", ERROR, (9, 30),
          "64 of 64 units (100%) are dead", "biases at zero"),
    Named("prior_on_every_bias", "AllZero", "1_output_0", WARNING, (9, 30),
          "All 4,096 elements of this output", "dead ReLUs"),
    Named("prior_on_every_bias", "TensorVariance", "2_output_0", WARNING, (9, 30),
          "All elements are close to -4.6", "a bias that outweighs everything else"),
    Named("prior_on_every_bias", "TensorVariance", SCORES, WARNING, (9, 30),
          "the same answer for all samples", "dead and saturated units"),
    Named("prior_on_every_bias", "UnchangedTensor", "0.weight", INFO, (9, 30),
          "Its gradient is exactly zero", "the optimizer has these"),
    Named("deep_sigmoids", "VanishingGradient", "gradient/0.weight", ERROR, (9, 30),
          "times smaller than gradient/16.weight", "ReLU or GELU"),
    Named("deep_sigmoids", "PoorWeightInitialization", "gradient/0.weight", WARNING,
          (0, 0), "Gradients shrink towards the input", "Use ReLU or GELU"),
    Named("equal_weights", "PoorWeightInitialization", "0.weight", ERROR, (0, 0),
          "All 64 units have the same initial weights", "kaiming_normal_"),
    Named("own_optimizer_rebinds_the_name", "UnchangedTensor", "0.weight", WARNING,
          (9, 20), "same at 3 recorded steps", "the optimizer has these"),
    Named("loss_wrapped_anew", "UnchangedTensor", "0.weight", WARNING, (9, 9),
          "same at 3 recorded steps", "no parameter has a gradient"),
    Named("loss_wrapped_anew", "LossMisuse", LOSS, WARNING, (0, 9),
          "without a graph", "instead of a copy of its value"),
    Named("resumed_at_the_end_of_the_schedule", "ZeroLearningRate",
          "scalar/optimizer/group_0/lr", WARNING, (9, 30), "only parameter group",
          "No parameter changes any more"),
    Named("resumed_at_the_end_of_the_schedule", "UnchangedTensor", "2.weight", WARNING,
          (9, 30), "same at 3 recorded steps", "the optimizer has these"),
    Named("rate_of_another_framework", "WeightUpdateRatio", "0.weight", WARNING,
          (9, 60), "Both weights", "usually about 0.1% of its weight"),
    Named("rate_of_another_framework", "LossNotDecreasing", LOSS, WARNING, (49, 104),
          "instead of falling by", "learning rate 10 times as high"),
    Named("layer_replaced_later", "NotInOptimizer", "gradient/2.weight", WARNING,
          (0, 10), "2.weight, 2.bias", "add_param_group"),
    Named("layer_never_called", "MissingGradient", "gradient/second.weight", WARNING,
          (0, 40), "second.weight, second.bias", "the Conv2d of second.weight"),
    Named("left_in_eval", "TrainedInEvalMode", "Sequential_output_0", WARNING, (9, 20),
          "in which 9 BatchNorm1d", "Call model.train()"),
    Named("no_zero_grad", "GradientsNotCleared", "Sequential_output_0", ERROR, (3, 9),
          "used the sum of all gradients", "Call optimizer.zero_grad()"),
    Named("cache_never_filled", "NotNormalizedData", INPUT, WARNING, (0, 2),
          "far below 1", "divide by its standard deviation"),
    Named("cache_never_filled", "AllZero", INPUT, WARNING, (9, 30),
          "All 208 elements of this model input", "how you load"),
    Named("cache_never_filled", "VanishingGradient", "gradient/0.weight", INFO,
          (9, 30), "while the bias of its layer has one", "zeroes the inputs"),
    Named("gray_images", "TensorVariance", INPUT, WARNING, (9, 30),
          "All elements are close to 0.5", "The data is the same"),
    Named("raw_wine", "NotNormalizedData", INPUT, WARNING, (0, 1),
          "The largest of 13 columns are 12 (mean", "StandardScaler"),
    Named("raw_targets", "NotNormalizedData", "MSELoss_input_1", WARNING, (0, 20),
          ", far from 0", "undo the scaling in predictions"),
    Named("raw_targets", "WeightUpdateRatio", "0.weight", ERROR, (0, 10),
          "as large as the weight itself", "learning rate about 30,000-fold"),
    Named("raw_targets", "ExplodingGradient", "gradient/0.weight", ERROR, (1, 10),
          "times its median over the last 20 recorded steps", "max_norm="),
    Named("rare_disease", "ClassImbalance", LABELS, INFO, (5, 59),
          "class 0", "Rare classes: 0. "),
    Named("threes_labelled_as_eights", "Confusion", LABELS, WARNING, (50, 99),
          "class 3 for 8", "Labels may be swapped"),
    Named("missing_value", "ExplodingTensor", INPUT, ERROR, (0, 29),
          "1 NaN among 960 elements", "The data already contains it"),
    Named("batch_in_other_units", "ExplodingGradient", "gradient/0.weight", WARNING,
          (150, 150), "times its median over the last 20 recorded steps", "max_norm="),
    Named("batch_in_other_units", "LossSpike", LOSS, WARNING, (150, 153),
          "The loss has jumped from", "batches of these steps"),
    Named("two_shuffles", "LossNotDecreasing", LOSS, WARNING, (49, 160),
          "instead of falling by", "labels belong to their inputs"),
    Named("two_shuffles", "Underfitting", LOSS, WARNING, (199, 209),
          "its loss is flat at 2.3", "overfit a single batch"),
    Named("raw_tumours", "SaturatedActivation", "1_output_0", WARNING, (9, 30),
          "of 32 units", "Glorot"),
    Named("forty_patients", "Overfit", SQUARES, WARNING, (40, 200),
          "the validation loss has risen from", "more data or augmentation"),
    Named("forty_patients", "Overtraining", SQUARES, WARNING, (200, 272),
          "not improved for 10 passes", "Stop the training"),
    Named("gradients_below_half", "PrecisionLoss", "gradient/2.weight", WARNING,
          (0, 0), "The gradient underflows in float16", "torch.amp.GradScaler"),
    Named("weights_in_bfloat16", "PrecisionLoss", "0.weight", WARNING, (19, 30),
          "bfloat16 rounds updates of this weight away", "torch.autocast"),
    Named("padded_to_the_maximum", "NLPSequenceRatio", "embedding_input_0", WARNING,
          (0, 0), "% of the last 5,120 tokens are token 0", "pack them"),
    Named("numbers_cut_off", "DeadEmbedding", "gradient/embedding.weight", WARNING,
          (9, 29), "16 of 98 rows had a gradient", "this data needs about 16 rows"),
    Named("softmax_before_the_loss", "LossMisuse", LOSS, WARNING, (0, 0),
          "the loss cannot fall below 1.46", "from before the softmax"),
    Named("layers_in_a_plain_list", "UnregisteredParameter", "Stack_output_0", WARNING,
          (9, 20), "8 parameters", "torch.nn.ModuleList"),
    Named("decay_per_batch", "VanishingLearningRate", "scalar/optimizer/group_0/lr",
          WARNING, (90, 95), "The learning rate fell from 0.1", "once an epoch"),
    Named("updates_end_before_the_epochs", "StoppedOptimizer", "Sequential_output_0",
          WARNING, (30, 30), "(SGD) has not stepped since step 30", "optimizer.step()"),
    Named("sorted_without_shuffling", "UnshuffledData", LABELS, WARNING, (9, 12),
          "of the labels' variance is between batches", "shuffle=True"),
]  # fmt: skip
# Of no training of PyTorch, and of one that stands still: below.
BY_THEMSELVES = {"FeatureImportance", "TreeDepth", "TreeSettings", "StalledTraining"}
# On conditions that a program gives: test_invariants.py.
BY_THEMSELVES |= {"BrokenInvariant"}
# On trainings of their own: test_repeated.py, test_dropout_in_evaluation.py and
# test_slow_schedule.py.
BY_THEMSELVES |= {"RepeatedData", "DropoutInEvaluation", "SlowSchedule"}
# On schedules, each in its own way: test_schedule_misuse.py.
BY_THEMSELVES |= {"ScheduleMisuse", "ResumptionMisuse"}
# On programs that clip, each in its own way: test_clipping.py.
BY_THEMSELVES |= {"ClippingMisuse"}
# test_running_statistics.py, test_model_copies.py, test_input_skew.py and
# test_teacher_misuse.py.
BY_THEMSELVES |= {"RunningStatistics", "ModelCopies", "InputSkew", "TeacherMisuse"}
# test_optimizer_misuse.py, and test_replica_divergence.py on several ranks.
BY_THEMSELVES |= {"OptimizerMisuse", "ReplicaDivergence"}
# On models that are probed: test_probed_rules.py.
BY_THEMSELVES |= {"BatchDependence", "LabelShift", "MaskLeak"}
BY_THEMSELVES |= {"NondeterministicEvaluation"}
# On labels of their own, and on loaders: test_label_misuse.py, test_loader_misuse.py.
BY_THEMSELVES |= {"LabelMisuse", "LoaderMisuse"}
# In JAX: tests/python/jax/test_repeated_keys.py.
BY_THEMSELVES |= {"RepeatedRandomness"}
# On losses of their own: test_term_misuse.py and test_accumulation.py.
BY_THEMSELVES |= {"LossTermMisuse", "AccumulationMisuse"}
# On models of their own: test_wrong_dimension.py and test_weight_sharing.py.
BY_THEMSELVES |= {"WrongDimension", "WeightSharing"}
# On evaluations of their own: test_metric_misuse.py.
BY_THEMSELVES |= {"MetricMisuse"}
# On code of their own: test_code_misuse.py.
BY_THEMSELVES |= {"CodeMisuse"}
# How often a training is judged while it goes on.
LOOK_EVERY = 37


@dataclass
class Watching:
    """Watches a training and asks the default rules while it goes on.

    Attributes:
        run: Its directory.
        rule: Capture nothing but what this rule asks for, and ask nobody.
    """

    run: Path
    rule: str = ""
    hooks: list[td.Hook] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)

    def __call__(
        self,
        _: str,
        model: nn.Module,
        losses: list[nn.Module],
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        """Begin."""
        if self.rule:
            hook = td.Hook(self.run, rules=[self.rule], min_free_bytes=0)
            hook.register_module(model)
            for loss in losses:
                hook.register_loss(loss)
        else:
            first = losses[0] if losses else None
            # A budget would leave out steps on a busy machine.
            hook = td.watch(
                model, first, optimizer, self.run, budget="off", min_free_bytes=0
            )
            self.engines.append(Engine(self.run, record=False))
        self.hooks.append(hook)


class CutShort(Training):
    """A training of so many steps at most, whose watcher looks now and then."""

    def __init__(self, sick: bool, seed: int, n_steps: int, watching: Watching) -> None:
        super().__init__(sick=sick, seed=seed, observer=watching)
        self._most, self._watching = n_steps, watching

    def steps(self, n: int) -> Iterator[int]:
        for step in super().steps(min(n, self._most)):
            yield step
            if step % LOOK_EVERY == LOOK_EVERY - 1:
                for engine in self._watching.engines:
                    engine.poll()


def trained(name: str, n_steps: int, watching: Watching, seed: int = 0) -> None:
    """Run a case, watched; nothing goes wrong with the watching."""
    load()
    case = case_named(name)
    n_threads = torch.get_num_threads()
    # More threads than idle cores make small operations slower by far.
    torch.set_num_threads(1)
    try:
        case.program(CutShort(case.is_sick, seed, n_steps, watching))
    finally:
        torch.set_num_threads(n_threads)
        for hook in watching.hooks:
            hook.close()
    (hook,) = watching.hooks
    assert hook.counters()["internal_errors"] == 0
    assert hook.counters()["refused_tensors"] == 0


@dataclass(frozen=True)
class Judged:
    """What was said of a training: while it went on, and afterwards."""

    live: Report
    after: Report


def judged(name: str, run: Path, n_steps: int) -> Judged:
    watching = Watching(run)
    trained(name, n_steps, watching)
    (engine,) = watching.engines
    for _ in engine.follow(0.001):
        pass
    return Judged(engine.finish(), check(run, record=False))


def check_named(named: Named, report: Report) -> None:
    of_rule = [each for each in report.findings if each.rule == named.rule]
    found = {each.tensor: each for each in reversed(of_rule)}
    assert named.tensor in found, of_rule
    finding = found[named.tensor]
    assert finding.severity is named.severity, finding
    first, last = named.steps
    assert finding.first_step <= finding.step, finding
    assert first <= finding.step <= last, finding
    assert named.says in finding.message
    assert named.advises in finding.advice
    assert finding.value is not None
    assert finding.threshold is not None


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_named_while_the_training_goes_on_and_afterwards(
    name: str, tmp_path: Path
) -> None:
    found = judged(name, tmp_path / "run", CASES[name])
    expected = [named for named in NAMED if named.fault == name]
    assert expected
    for named in expected:
        check_named(named, found.after)
    assert found.live.findings == found.after.findings
    assert found.live.statuses == found.after.statuses
    assert found.live.n_steps == found.after.n_steps > 0
    assert all(each.status is not Status.ERROR for each in found.after.statuses)


# Of rules that need the same the one that is shown the shortest training.
BY_NEEDS = {
    registry.make(named.rule).needs: named
    for named in sorted(NAMED, key=lambda named: -named.steps[1])
}


@pytest.mark.parametrize("named", BY_NEEDS.values(), ids=lambda named: named.rule)
def test_what_a_rule_asks_for_is_enough_for_it(named: Named, tmp_path: Path) -> None:
    """Of any of its needs that it forgot nothing would be there."""
    n_steps = min(CASES[named.fault], named.steps[1] + 1)
    trained(named.fault, n_steps, Watching(tmp_path / "run", named.rule))
    check_named(named, check(tmp_path / "run", named.rule, record=False))


@pytest.mark.parametrize("name", CASES)
def test_without_the_fault_no_rule_has_a_warning(name: str, tmp_path: Path) -> None:
    found = judged(name + TWIN, tmp_path / "run", CASES[name])
    assert [each for each in found.after.findings if each.severity > INFO] == []
    assert found.live.findings == found.after.findings
    assert found.live.statuses == found.after.statuses


def test_every_default_rule_is_proven_here() -> None:
    """But for those about time, which minutes prove: make bench-scenarios."""
    by_default = {
        rule.name
        for rule in default_rules()
        if not any(need.profile for need in every_need(rule.needs))
    }
    assert {named.rule for named in NAMED} | BY_THEMSELVES == by_default


# ---- rules that are not about one training of PyTorch ------------------------------


def boosted(run: Path, depth: int, share: float) -> list[Finding]:
    """Trees of a depth, of which three features of twenty have a share of all.

    Recorded by hand, as long as nothing else records boosted trees.
    """
    nodes = np.arange(2 * depth + 1)
    yes, no = np.full(len(nodes), -1), np.full(len(nodes), -1)
    yes[: 2 * depth : 2] = nodes[2::2]
    no[: 2 * depth : 2] = nodes[1::2]
    with td.Hook(run, rules="default", min_free_bytes=0) as hook:
        next_round = torch.nn.Identity()
        hook.register_module(next_round)
        for _ in range(21):
            next_round(torch.rand(8))
            for name, column in (("Node", nodes), ("Yes", yes), ("No", no)):
                hook.save_tensor(f"trees/{name}", column, "trees")
            for i in range(20):
                value = 1000 * (share / 3 if i < 3 else (1 - share) / 17)
                name = f"feature_importance/weight/f{i}"
                hook.save_tensor(name, np.array([value]), "feature_importance")
    every = check(run, record=False).findings
    of_trees = ("TreeDepth", "FeatureImportance")
    return [one for one in every if one.severity > INFO or one.rule in of_trees]


def test_deep_trees_and_a_few_features_that_are_all_are_named(tmp_path: Path) -> None:
    assert boosted(tmp_path / "sound", depth=6, share=0.3) == []
    deep, few = boosted(tmp_path / "sick", depth=32, share=0.9)
    assert (deep.rule, deep.tensor, deep.step) == ("TreeDepth", "trees/Node", 0)
    # Nothing is known of validation.
    assert deep.severity is INFO
    assert "32 levels deep, with 65 nodes" in deep.message
    assert "max_depth to 10" in deep.advice
    assert (few.rule, few.step) == ("FeatureImportance", 20)
    assert few.tensor == "feature_importance/weight"
    assert (
        "3 of 20 features, which have 90% of the importance (weight): f0" in few.message
    )
    assert "leaks the label" in few.advice


@pytest.mark.parametrize(("seconds", "n_findings"), [(590, 0), (615, 1)])
def test_a_training_that_stands_still_is_named_while_it_does(
    seconds: int, n_findings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's clock is turned on in place of waiting."""
    model, criterion, split = mlp([64, 32, 10]), nn.CrossEntropyLoss(), digits()
    with td.watch(model, criterion, out=tmp_path / "run") as hook:
        for i in range(3):
            criterion(model(split.x[i : i + 8]), split.y[:8])
        hook.flush()
        engine = Engine(tmp_path / "run", record=False)
        engine.poll()
        later = time.time_ns() + seconds * 10**9
        monkeypatch.setattr(engine_module, "time", SimpleNamespace(
            time_ns=lambda: later, monotonic=time.monotonic
        ))  # fmt: skip
        found = engine.poll_idle()
        assert len(found) == n_findings
        for finding in found:
            assert (finding.rule, finding.tensor) == ("StalledTraining", "training")
            assert finding.severity is WARNING
            assert finding.step == engine.report().last_step
            assert "it recorded no step for 61" in finding.message
            assert "Its process is alive" in finding.message
            assert "Rank 0 is " in finding.message
            assert "tdbg stacks" in finding.advice


def test_a_run_that_should_be_the_same_and_is_not_is_named(tmp_path: Path) -> None:
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        watching = Watching(tmp_path / name)
        trained("layer_never_called" + TWIN, 11, watching, seed)
    rule = SimilarAcrossRuns(other_runs=(str(tmp_path / "first"),))
    assert check(tmp_path / "again", rule, record=False).findings == ()
    found = check(tmp_path / "other", rule, record=False).findings
    assert {each.step for each in found} == {0}
    by_tensor = {each.tensor: each for each in found}
    assert {LOSS, "first.weight", "gradient/head.weight"} <= set(by_tensor)
    assert f"differs from {tmp_path / 'first'}" in by_tensor["first.weight"].message
    assert "seeds" in by_tensor["first.weight"].advice
