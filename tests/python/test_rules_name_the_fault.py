"""Every default rule, at its defaults, on a real training: it names a fault that is
there, and says nothing of the twin without it.

Watched as a user would: ``td.watch`` with nothing but a model, a loss, an optimizer and
a directory.  Each is judged while it goes on, and once more when it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import tdbg.pytorch as td
from faults import (
    bf16_weights,
    classes_mixed,
    constant_inputs,
    cut_off,
    dead_layer,
    deep_sigmoids,
    equal_weights,
    few_of_a_class,
    few_samples,
    forgotten_layer,
    hashed_tokens,
    labels_of_others,
    large_weights,
    left_in_eval,
    nan_in_a_batch,
    of_bytes,
    one_outlier,
    padded_text,
    rate_of,
    tiny_loss,
    unmeasured,
    unused_layer,
    wrong_batches,
)
from tdbg.findings import Finding, Severity
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
from watched import (
    Parts,
    adam,
    captured,
    evaluated,
    float16,
    float32,
    of_digits,
    of_rectifiers,
    of_tanh,
    of_text,
    of_wine,
    trained,
)

pytestmark = pytest.mark.torch

INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR
LOSS, LABELS = "CrossEntropyLoss_output_0", "CrossEntropyLoss_input_1"
INPUT = "Sequential_input_0"


@dataclass(frozen=True)
class Case:
    """A fault of a training that goes well without it.

    Attributes:
        twin: The training.
        fault: What ruins it.
        n_steps: How long it goes on.
    """

    twin: Callable[[], Parts]
    fault: Callable[[Parts], None]
    n_steps: int = 60


CASES = {
    "dead layer": Case(of_digits, dead_layer, 30),
    "rate of zero": Case(of_digits, rate_of(0.0), 40),
    "loss cut off": Case(of_digits, cut_off, 20),
    "tiny rate": Case(of_digits, rate_of(1e-7), 105),
    "huge rate": Case(of_digits, rate_of(2.0, adam), 20),
    "equal weights": Case(of_digits, equal_weights, 10),
    "forgotten layer": Case(of_digits, forgotten_layer, 20),
    "unused layer": Case(of_digits, unused_layer, 50),
    "left in eval": Case(of_digits, left_in_eval, 30),
    "bytes": Case(of_digits, of_bytes, 20),
    "raw measurements": Case(of_wine, unmeasured, 20),
    "constant inputs": Case(of_digits, constant_inputs, 30),
    "rare class": Case(of_digits, few_of_a_class, 50),
    "mixed classes": Case(of_digits, classes_mixed, 200),
    "NaN in a batch": Case(of_digits, nan_in_a_batch, 30),
    "outlier": Case(of_digits, one_outlier, 50),
    "wrong batches": Case(of_digits, wrong_batches, 110),
    "labels of others": Case(of_digits, labels_of_others, 210),
    "deep sigmoids": Case(of_rectifiers, deep_sigmoids, 30),
    "large weights": Case(of_tanh, large_weights, 30),
    "few samples": Case(evaluated, few_samples, 200),
    "loss below float16": Case(float16, tiny_loss, 20),
    "bfloat16 weights": Case(float32, bf16_weights, 30),
    "padding": Case(of_text, padded_text, 20),
    "hashed tokens": Case(of_text, hashed_tokens, 110),
}
TWINS = {case.twin: 0 for case in CASES.values()}
for case in CASES.values():
    TWINS[case.twin] = max(TWINS[case.twin], case.n_steps)


@dataclass(frozen=True)
class Named:
    """What a rule is to say of a fault.

    Attributes:
        fault: Which.
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
    Named("dead layer", "DeadRelu", "1_output_0", ERROR, (9, 30),
          "32 of 32 units (100 %) are dead", "biases at zero"),
    Named("dead layer", "AllZero", "1_output_0", WARNING, (9, 30),
          "100 % of 2048 elements are zero", "dead ReLUs"),
    Named("dead layer", "VanishingGradient", "gradient/0.weight", ERROR, (9, 30),
          "exactly zero", "2 of 3 layers"),
    Named("dead layer", "UnchangedTensor", "0.weight", WARNING, (9, 30),
          "the same at 3 recorded steps", "2 of 3 tensors"),
    Named("deep sigmoids", "VanishingGradient", "gradient/0.weight", ERROR, (9, 30),
          "times less than gradient/16.weight", "of 9 layers do not learn"),
    Named("deep sigmoids", "PoorWeightInitialization", "gradient/0.weight", WARNING,
          (0, 0), "gradients shrink towards the input", "Glorot"),
    Named("rate of zero", "ZeroLearningRate", "scalar/optimizer/group_0/lr", WARNING,
          (9, 30), "1 of 1 groups", "no parameter changes any more"),
    Named("rate of zero", "UnchangedTensor", "4.weight", WARNING, (9, 30),
          "the same at 3 recorded steps", "3 of 3 tensors"),
    Named("loss cut off", "UnchangedTensor", "0.weight", WARNING, (9, 9),
          "the same at 3 recorded steps", "no parameter has had a gradient"),
    Named("tiny rate", "WeightUpdateRatio", "0.weight", WARNING, (9, 60),
          "3 of 3 weights", "about 0.001 is usual"),
    Named("tiny rate", "LossNotDecreasing", LOSS, WARNING, (49, 104),
          "% is asked for", "learning rate 10 times higher"),
    Named("huge rate", "WeightUpdateRatio", "0.weight", WARNING, (0, 10),
          "times the weight it changes", "lower the learning rate, by 2e+03 times"),
    Named("equal weights", "PoorWeightInitialization", "0.weight", ERROR, (0, 0),
          "all 32 units have the same initial weights", "kaiming_normal_"),
    Named("forgotten layer", "NotInOptimizer", "gradient/2.weight", WARNING, (0, 10),
          "2.weight, 2.bias", "add_param_group"),
    Named("unused layer", "MissingGradient", "gradient/unused.weight", WARNING,
          (0, 40), "unused.weight, unused.bias", "the Linear of unused.weight"),
    Named("left in eval", "TrainedInEvalMode", "Sequential_output_0", WARNING, (9, 20),
          "in which 1 Dropout", "call model.train()"),
    Named("bytes", "NotNormalizedData", INPUT, WARNING, (0, 0),
          "the mean is far from 0", "torchvision.transforms.Normalize"),
    Named("raw measurements", "NotNormalizedData", INPUT, WARNING, (0, 0),
          "of 13 columns the largest are 12 (mean 7", "StandardScaler"),
    Named("raw measurements", "PoorWeightInitialization", LOSS, WARNING, (0, 0),
          "guessing among 3 classes gives 1.1", "normalize the inputs"),
    Named("constant inputs", "TensorVariance", INPUT, WARNING, (9, 30),
          "all elements are close to 0.5", "the data is the same"),
    Named("constant inputs", "NotNormalizedData", INPUT, WARNING, (0, 0),
          "the deviation is tiny", "divide by its standard deviation"),
    Named("rare class", "ClassImbalance", LABELS, WARNING, (7, 50),
          "of class 3, ", "rare classes: 3. "),
    Named("mixed classes", "Confusion", LABELS, WARNING, (100, 199),
          "3 is taken for 8", "labels are swapped"),
    Named("NaN in a batch", "ExplodingTensor", INPUT, ERROR, (20, 20),
          "64 NaN, 0 +Inf and 0 -Inf among 4096", "the data holds it already"),
    Named("outlier", "ExplodingGradient", "gradient/0.weight", WARNING, (40, 40),
          "times its median of the last 20 recorded steps", "max_norm="),
    Named("wrong batches", "LossSpike", LOSS, WARNING, (100, 103),
          "the loss has jumped to", "batches of these steps"),
    Named("labels of others", "LossNotDecreasing", LOSS, WARNING, (49, 160),
          "% is asked for", "labels belong to their inputs"),
    Named("labels of others", "Underfitting", LOSS, WARNING, (199, 209),
          "the loss is flat at 2.3", "a single batch by heart"),
    Named("large weights", "SaturatedActivation", "1_output_0", WARNING, (9, 30),
          "of 32 units", "Glorot"),
    Named("few samples", "Overfit", LOSS, WARNING, (40, 200),
          "the validation loss has risen from", "more data or augmentation"),
    Named("few samples", "Overtraining", LOSS, WARNING, (120, 210),
          "no new best of the validation loss in 10 passes", "stop here"),
    Named("loss below float16", "PrecisionLoss", "gradient/2.weight", WARNING, (0, 0),
          "next to the least number of float16", "torch.amp.GradScaler"),
    Named("bfloat16 weights", "PrecisionLoss", "0.weight", WARNING, (19, 30),
          "rounded away in bfloat16", "3 of 3 weights lose most of their updates"),
    Named("padding", "NLPSequenceRatio", "embedding_input_0", WARNING, (0, 0),
          "75 % of the last 1024 tokens are token 0", "pack them"),
    Named("hashed tokens", "DeadEmbedding", "gradient/embedding.weight", WARNING,
          (9, 100), "16 of 89 rows had a gradient", "about 16 rows are enough"),
]  # fmt: skip
# Of no training of PyTorch, of two trainings, and of one that stands still: below.
BY_THEMSELVES = {"FeatureImportance", "TreeDepth", "StalledTraining"}


@dataclass(frozen=True)
class Judged:
    """What was said of a training: while it went on, and afterwards."""

    live: Report
    after: Report


def judged(parts: Parts, run: Path, n_steps: int) -> Judged:
    parts.n_steps = n_steps
    return Judged(trained(parts, run), check(run, record=False))


def check_named(named: Named, report: Report) -> None:
    of_rule = [each for each in report.findings if each.rule == named.rule]
    found = {each.tensor: each for each in of_rule}
    assert named.tensor in found, of_rule
    finding = found[named.tensor]
    assert finding.severity is named.severity, finding
    first, last = named.steps
    assert first <= finding.first_step <= finding.step <= last, finding
    assert named.says in finding.message
    assert named.advises in finding.advice
    assert finding.value is not None
    assert finding.threshold is not None


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_named_while_the_training_goes_on_and_afterwards(
    name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    parts = case.twin()
    case.fault(parts)
    found = judged(parts, tmp_path / "run", case.n_steps)
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
    case = CASES[named.fault]
    torch.manual_seed(0)
    parts = case.twin()
    case.fault(parts)
    parts.n_steps = min(case.n_steps, named.steps[1] + 1)
    captured(parts, tmp_path / "run", named.rule)
    check_named(named, check(tmp_path / "run", named.rule, record=False))


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_without_the_fault_no_rule_has_a_warning(
    twin: Callable[[], Parts], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    found = judged(twin(), tmp_path / "run", TWINS[twin])
    assert [each for each in found.after.findings if each.severity > INFO] == []
    assert found.live.findings == found.after.findings
    assert found.live.statuses == found.after.statuses


def test_every_default_rule_is_proven_here() -> None:
    by_default = {rule.name for rule in default_rules()}
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
                value = share / 3 if i < 3 else (1 - share) / 17
                name = f"feature_importance/weight/f{i}"
                hook.save_tensor(name, np.array([value]), "feature_importance")
    return [one for one in check(run, record=False).findings if one.severity > INFO]


def test_deep_trees_and_a_few_features_that_are_all_are_named(tmp_path: Path) -> None:
    assert boosted(tmp_path / "sound", depth=6, share=0.3) == []
    deep, few = boosted(tmp_path / "sick", depth=12, share=0.9)
    assert (deep.rule, deep.tensor, deep.step) == ("TreeDepth", "trees/Node", 0)
    assert "12 levels deep, with 25 nodes" in deep.message
    assert "max_depth to 10" in deep.advice
    assert (few.rule, few.step) == ("FeatureImportance", 20)
    assert few.tensor == "feature_importance/weight"
    assert "3 of 20 features have 0.90 of the importance (weight): f0" in few.message
    assert "gives the answer away" in few.advice


@pytest.mark.parametrize(("seconds", "n_findings"), [(590, 0), (615, 1)])
def test_a_training_that_stands_still_is_named_while_it_does(
    seconds: int, n_findings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's clock is turned on in place of waiting."""
    parts = of_digits()
    with td.watch(parts.model, parts.criterion, out=tmp_path / "run") as hook:
        for i in range(3):
            parts.criterion(parts.model(parts.data[0][i : i + 8]), parts.data[1][:8])
        hook.flush()
        engine = Engine(tmp_path / "run", record=False)
        engine.poll()
        later = time.time_ns() + seconds * 10**9
        monkeypatch.setattr(engine_module, "time", SimpleNamespace(
            time_ns=lambda: later, monotonic=time.monotonic
        ))  # fmt: skip
        found = engine.ask_silence()
        assert len(found) == n_findings
        for finding in found:
            assert (finding.rule, finding.tensor) == ("StalledTraining", "training")
            assert finding.severity is WARNING
            assert finding.step == engine.report().last_step
            assert "no step was recorded for 61" in finding.message
            assert "its process is alive" in finding.message
            assert "py-spy dump" in finding.advice


def test_a_run_that_should_be_the_same_and_is_not_is_named(tmp_path: Path) -> None:
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        torch.manual_seed(seed)
        trained(replace(of_digits(), n_steps=11), tmp_path / name)
    rule = SimilarAcrossRuns(other_runs=(str(tmp_path / "first"),))
    assert check(tmp_path / "again", rule, record=False).findings == ()
    found = check(tmp_path / "other", rule, record=False).findings
    assert {each.step for each in found} == {0}
    by_tensor = {each.tensor: each for each in found}
    assert {LOSS, "0.weight", "gradient/4.weight"} <= set(by_tensor)
    assert f"differs from {tmp_path / 'first'}" in by_tensor["0.weight"].message
    assert "seeds" in by_tensor["0.weight"].advice
