"""Rules by name, what they need captured, and which parameters they refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from tdbg import rules
from tdbg.config import Needs
from tdbg.config.needs import every_need
from tdbg.errors import ConfigurationError, UnknownRule
from tdbg.rules import (
    DeadRelu,
    Evaluation,
    Rule,
    TensorInfo,
    VanishingGradient,
    Window,
    registry,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThirdParty(Rule):
    """As another package would bring it."""

    limit: float = 1.0

    @property
    def needs(self) -> Needs | tuple[Needs, ...]:
        return Needs(collections=frozenset({"weights"}), interval=5)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        del window
        yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Several(ThirdParty):
    """A rule that needs different things of different tensors."""

    @property
    def needs(self) -> tuple[Needs, ...]:
        return (
            Needs(collections=frozenset({"weights"})),
            Needs(collections=frozenset({"labels"}), raw=True, interval=5),
        )


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """ThirdParty is installed, and so is a rule that cannot be imported."""
    points = [
        EntryPoint("ThirdParty", f"{__name__}:ThirdParty", registry.GROUP),
        EntryPoint("Missing", "no_such_package:Rule", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "_entry_points", lambda: points)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(EntryPoint, "load", _load)


def _load(point: EntryPoint) -> object:
    if point.name == "Missing":
        msg = "No module named 'no_such_package'"
        raise ImportError(msg)
    return ThirdParty


def test_rules_of_tdbg_are_there_by_name_and_by_default():
    assert list(registry.BUILT_IN) == sorted(registry.BUILT_IN)
    assert set(registry.BUILT_IN) <= set(rules.names())
    default = [rule.name for rule in rules.default_rules()]
    assert set(registry.BUILT_IN) - set(default) == {
        "Above",
        "Below",
        "LearntInvariants",
        "Outside",
        "SimilarAcrossRuns",
    }
    assert default == sorted(default)
    for name in registry.BUILT_IN:
        assert rules.get(name).__name__ == name
        assert getattr(rules, name) is rules.get(name)
        assert name in rules.__all__


def test_what_is_no_rule_is_no_attribute():
    with pytest.raises(AttributeError, match="NoSuchRule"):
        _ = rules.NoSuchRule


def test_an_unknown_name_says_what_is_near():
    with pytest.raises(UnknownRule, match="did you mean 'VanishingGradient"):
        rules.get("vanishinggradient")
    with pytest.raises(UnknownRule, match="'tdbg rules' lists them"):
        rules.get("zzz")


@pytest.mark.parametrize("name", registry.REPORTED)
def test_a_rule_of_smdebug_that_was_a_table_says_where_the_table_is(name: str):
    with pytest.raises(UnknownRule, match="'tdbg report RUN --profile' shows "):
        rules.get(name)


def test_rules_are_made_with_parameters():
    rule = rules.make("VanishingGradient", threshold=1e-9)
    assert rule == VanishingGradient(threshold=1e-9)
    assert rule.parameters()["threshold"] == 1e-9
    with pytest.raises(ConfigurationError, match="no parameter 'treshold'"):
        rules.make("VanishingGradient", treshold=1e-9)


def test_a_rule_without_its_parameters_says_which_it_needs():
    needs = r"Below needs limit: write 'Below\(tensor=\.\.\., limit=\.\.\.\)'"
    with pytest.raises(ConfigurationError, match=needs):
        registry.make("Below", tensor="loss")
    with pytest.raises(ConfigurationError, match="Below needs tensor and limit"):
        registry.make("Below")


@pytest.mark.usefixtures("installed")
def test_another_package_brings_a_rule():
    assert "ThirdParty" in rules.names()
    assert rules.get("ThirdParty") is ThirdParty
    assert rules.make("ThirdParty", limit=2.0) == ThirdParty(limit=2.0)


@pytest.mark.usefixtures("installed")
def test_a_package_that_cannot_be_imported_is_named():
    with pytest.raises(ConfigurationError, match=r"Missing \(no_such_package:Rule\)"):
        rules.get("Missing")


def test_only_frozen_dataclasses_that_are_rules_can_be_registered():
    @dataclass
    class Thawed(Rule):
        def evaluate(self, window: Window) -> Iterator[Evaluation]:
            del window
            yield from ()

    for bad in (Thawed, dict, 3):
        with pytest.raises(ConfigurationError, match="cannot be registered"):
            rules.register(bad)  # type: ignore[type-var]


def test_a_name_is_not_taken_twice():
    other = dataclass(frozen=True)(
        type("VanishingGradient", (ThirdParty,), {"__module__": "elsewhere"})
    )
    with pytest.raises(ConfigurationError, match="has a rule of that name"):
        rules.register(other)


def test_needs_of_several_rules_are_theirs_side_by_side():
    dead, vanishing, third = DeadRelu(), VanishingGradient(), ThirdParty()
    needs = rules.needs_of(["DeadRelu", vanishing, third])
    assert needs == (*dead.needs, *vanishing.needs, third.needs)
    assert rules.needs_of(["DeadRelu", dead]) == dead.needs
    assert rules.needs_of(Several()) == every_need(Several().needs)
    assert rules.needs_of(None) == rules.needs_of(rules.default_rules())


def test_a_rule_of_several_needs_sees_what_any_of_them_names():
    labels, weights = (TensorInfo(name="t", role=r) for r in ("label", "weight"))
    inputs, biases = (TensorInfo(name="t", role=r) for r in ("input", "bias"))
    assert Several().selects(labels)
    assert Several().selects(weights)
    assert not Several().selects(inputs)
    assert not Several().selects(biases)


def test_rules_are_values():
    assert VanishingGradient() == VanishingGradient()
    assert hash(VanishingGradient()) == hash(VanishingGradient())
    with pytest.raises(AttributeError):
        VanishingGradient().threshold = 1.0  # type: ignore[misc]


def test_whoever_reads_values_has_rows_to_find_them_by() -> None:
    # Tables show rows: of values alone a rule would never hear.
    for rule in rules.default_rules():
        needed = every_need(rule.needs)
        with_rows = frozenset().union(*(n.collections for n in needed if n.statistics))
        for need in needed:
            assert not need.raw or need.collections <= with_rows, rule.name


# ---- parameters ------------------------------------------------------------------


# What a rule cannot be made without.
GIVEN: dict[str, dict[str, Any]] = {
    "Above": {"tensor": "loss", "limit": 1.0},
    "Below": {"tensor": "loss", "limit": 1.0},
    "LearntInvariants": {
        "file": str(Path(__file__).parents[2] / "corpus" / "invariants" / "v1.json")
    },
    "Outside": {"tensor": "loss", "low": 1.0, "high": 2.0},
    "SimilarAcrossRuns": {"other_runs": ("runs/a",)},
}
# Rules whose limits may be any number.
LIMITS, ANY_NUMBER = ("Above", "Below", "Outside"), {"limit", "low", "high"}


class Nothing:
    """Of no kind that a parameter is of."""


def rule_of(name: str, **parameters: object) -> Rule:
    return registry.make(name, **{**GIVEN.get(name, {}), **parameters})


PARAMETERS = [
    (name, field.name, rule_of(name).parameters()[field.name])
    for name in registry.BUILT_IN
    for field in fields(registry.get(name))  # type: ignore[arg-type]
]
NUMBERS = [
    (name, parameter)
    for name, parameter, default in PARAMETERS
    if isinstance(default, int | float) and not isinstance(default, bool)
    if not (name in LIMITS and parameter in ANY_NUMBER)
]
# Where None says: do not compare.
MAY_BE_NONE = {
    ("TensorVariance", "relative"),
    ("TensorVariance", "collapsed"),
    ("VanishingGradient", "relative"),
}


@pytest.mark.parametrize(("name", "parameter", "default"), PARAMETERS)
def test_what_is_of_another_kind_is_refused_by_name(
    name: str, parameter: str, default: object
) -> None:
    bad: list[object] = [Nothing(), (Nothing(),), 1j]
    if default is not None and (name, parameter) not in MAY_BE_NONE:
        bad.append(None)
    if isinstance(default, bool):
        bad += [1, "yes"]
    elif isinstance(default, int | float):
        bad += [True, "1", float("nan")]
    elif isinstance(default, tuple):
        bad += ["weights", 3]
    for value in bad:
        with pytest.raises(ConfigurationError, match=rf"{name}\.{parameter} is "):
            rule_of(name, **{parameter: value})


@pytest.mark.parametrize(("name", "parameter"), NUMBERS)
def test_numbers_far_below_zero_are_refused_by_name(name: str, parameter: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name}\.{parameter} is -1"):
        rule_of(name, **{parameter: -1e9})


# What is of the right kind and out of its range: just beside the limit where there is
# one, or else a choice that does not exist.
OUT_OF_RANGE: dict[str, list[dict[str, object]]] = {
    "AllZero": [{"threshold": 0.0}, {"collections": "outputs"}],
    "BatchSize": [{"gpu_threshold_p95": 0.0}, {"gpu_memory_threshold_p95": 101.0}],
    "CheckpointStall": [{"threshold": 0.0}, {"longest": 0.0}],
    "DeviceThrottled": [{"threshold": 101.0}],
    "ExposedCommunication": [{"threshold": 0.0}],
    "GPUMemoryIncrease": [{"increase": 0.0}, {"error_minutes": 31.0}],
    "HostBound": [{"threshold": 0.0}],
    "LoadBalancing": [{"spread": 0.0}, {"busy_spread": 0.0}, {"threshold": 1.5}],
    "LowGPUUtilization": [
        {"busy": 0.0},
        {"mean_busy": 101.0},
        {"dips": 0.0},
        {"threshold_p95": -1.0},
        {"window": 1001},
    ],
    "MaxInitializationTime": [{"threshold": 0.0}],
    "MemoryLeak": [{"minutes": 0.0}, {"error_minutes": 31.0}],
    "MemoryPressure": [{"stalled": 0.0}, {"major_faults": 0.0}],
    "NetworkBound": [{"threshold": 0.0}, {"wait": 101.0}],
    "ProfilerCost": [{"threshold": 0.0}],
    "Straggler": [{"threshold": 0.0}, {"last": 101.0}],
    "SyncInLoop": [{"threshold": 101.0}],
    "UncopiedAhead": [{"threshold": 0.0}],
    "UnusedTensorCores": [{"threshold": 0.0}],
    "UnusedDevice": [{"minutes": 0.0}, {"minutes": 2.5}],
    "WorkerImbalance": [{"factor": 1.0}, {"batches": 0}],
    "ClassImbalance": [
        {"threshold_imbalance": 1.0},
        {"threshold_misprediction": 1.5},
        {"samples": 0},
        {"labels_regex": "("},
    ],
    "CPUBottleneck": [
        {"wait_threshold": 0.0},
        {"worker_threshold": 101.0},
        {"busy_threshold": 0.0},
    ],
    "CpuContention": [{"queued": 0.0}, {"steal": 101.0}],
    "CpuThrottled": [{"periods": 0.0}, {"time": 0.0}],
    "DataLoaderBound": [{"threshold": 0.0}, {"filled": 101.0}, {"epoch_threshold": 0}],
    "Dataloader": [{"workers_per_core": 0.0}, {"min_threshold": -1.0}],
    "EvaluationShare": [{"threshold": 0.0}],
    "GcPauses": [{"threshold": 101.0}, {"pause": 0.0}],
    "IdleBetweenSteps": [{"threshold": 0.0}, {"line": 101.0}, {"samples": 0}],
    "RecompilationStorm": [{"threshold": 0.0}, {"compilations": 0.0}],
    "StepOutlier": [
        {"threshold": 0.0},
        {"num_steps": 19},
        {"mode": "EVAL"},
        {"stddev": 0.0},
        {"n_outliers": -1.0},
    ],
    "StepTimeRegression": [{"threshold": 0.0}, {"num_steps": 49}],
    "IOBottleneck": [
        {"wait_threshold": 0.0},
        {"blocked_threshold": 101.0},
        {"pressure_threshold": 0.0},
    ],
    "Confusion": [{"max_off_diag": 0.0}, {"min_diag": -1.0}, {"max_classes": 1}],
    "DeadEmbedding": [{"threshold": 0.0}, {"max_steps": 5}],
    "DeadRelu": [
        {"threshold_inactivity": 0.0},
        {"threshold_layer": 101.0},
        {"error_layer": 10.0},
        {"min_steps": 0},
        {"max_steps": 1},
        {"tensor_regex": "["},
    ],
    "DropoutInEvaluation": [{"num_steps": 0}],
    "ExplodingGradient": [{"factor": 1.0}, {"window": 1}, {"error_factor": 10.0}],
    "ExplodingTensor": [{"collections": "weights"}, {"tensor_regex": "("}],
    "FeatureImportance": [
        {"threshold": 0.0},
        {"kind": "shap"},
        {"nfeatures": 0},
        {"low": 2.0},
    ],
    "LossNotDecreasing": [
        {"window": 1},
        {"fall_percent": -1.0},
        {"learned_percent": 0.0},
        {"mode": "training"},
        {"tensor_regex": "*"},
    ],
    "LossMisuse": [{"risen": 1.0}],
    "LossSpike": [{"num_steps": 9}, {"patience": 99}, {"deviations": 0.0}],
    "MissingGradient": [{"patience": 0}],
    "NLPSequenceRatio": [
        {"token_values": [0]},
        {"token_thresholds_percent": (0.0,)},
        {"token_thresholds_percent": (1.0, 2.0)},
        {"any_percent": 101.0},
    ],
    "NotInOptimizer": [{"patience": 0}],
    "NotNormalizedData": [{"max_mean": 0.0}, {"min_std": 7.0}, {"num_steps": 1.5}],
    "Overfit": [{"passes": 0}, {"carried_over": 2.0}],
    "Overtraining": [
        {"passes_validation": 0},
        {"improvement": -1.0},
        {"worse_of_start": -1.0},
    ],
    "PoorWeightInitialization": [
        {"steps": 0},
        {"output_threshold": 0},
        {"gradient_threshold": 0},
        {"asymmetry": 0},
        {"gain": 0},
        {"loss_excess": 0},
    ],
    "PrecisionLoss": [{"threshold": 101.0}, {"patience": 0}],
    "RepeatedData": [{"num_steps": 1}],
    "SaturatedActivation": [
        {"threshold_activity": 0.0},
        {"max_steps": 1},
        {"tensor_regex": "["},
    ],
    "SimilarAcrossRuns": [{"rtol": -1.0}, {"other_runs": ()}],
    "SlowSchedule": [{"share": 0.0}],
    "StalledTraining": [{"threshold": 0.0}, {"times_usual": 0.5}, {"num_steps": 0}],
    "StoppedOptimizer": [{"num_steps": 0}],
    "TensorVariance": [{"min_count": 1}, {"relative": 0.0}, {"collapsed": 0.5}],
    "TreeDepth": [{"depth": 0}, {"leaves": -1}, {"rise": -1.0}],
    "TreeSettings": [{"way": -1.0}, {"way": 101.0}, {"far": -1.0}],
    "UnchangedTensor": [{"num_steps": 1}, {"rtol": -1.0}, {"atol": "x"}],
    "Underfitting": [{"num_steps": 1}, {"learned_percent": 0.0}],
    "UnregisteredParameter": [{"num_steps": 0}],
    "UnshuffledData": [{"between_percent": 0.0}, {"between_percent": 100.5}],
    "VanishingGradient": [
        {"threshold": 0.0},
        {"relative": 0.0},
        {"relative": 2.0},
        {"patience": 0},
        {"patience": 1.5},
    ],
    "VanishingLearningRate": [{"remaining": 0.0}, {"remaining": 0.2}],
    "WeightUpdateRatio": [
        {"small_threshold": 0.0},
        {"large_threshold": 1e-7},
        {"relative": 2.0},
        {"patience": 0},
        {"until": 1},
        {"min_weight": -1.0},
    ],
    "ZeroLearningRate": [{"patience": 0}],
}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [(name, each) for name, cases in OUT_OF_RANGE.items() for each in cases],
)
def test_what_is_out_of_range_is_refused_by_name(
    name: str, parameters: dict[str, object]
) -> None:
    (parameter,) = parameters
    with pytest.raises(ConfigurationError, match=rf"{name}\.{parameter} is "):
        registry.get(name)(**{**GIVEN.get(name, {}), **parameters})


def test_every_registered_class_of_the_built_in_modules_is_in_the_catalog():
    """A rule that its author forgot to list would be found by nobody."""
    builtin = Path(rules.__file__).parent / "builtin"
    registered = {
        match[1]
        for path in builtin.rglob("*.py")
        for match in re.finditer(
            r"^@register\n(?:@.*\n)*class (\w+)", path.read_text("utf-8"), re.MULTILINE
        )
    }
    assert registered == set(registry.BUILT_IN)
