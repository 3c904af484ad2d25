"""The rules of SageMaker's profiler, by its names and with its parameters."""

from __future__ import annotations

import pytest

from tdbg import rules
from tdbg.compat.smdebug.profiler.rule_configs import (
    JUDGING,
    ProfilerRule,
    rule_configs,
)
from tdbg.errors import ConfigurationError


def test_a_rule_is_tdbgs_of_the_same_name() -> None:
    asked = ProfilerRule.sagemaker(
        rule_configs.StepOutlier(stddev=4, scan_interval_us=60_000_000),
        rule_parameters={"n_outliers": "7"},
        instance_type="ml.m5.4xlarge",
    )
    (rule,) = asked.rules()
    assert rule == rules.make("StepOutlier", stddev=4, n_outliers=7)
    assert asked.name == "StepOutlier"


def test_tables_are_of_the_report() -> None:
    assert ProfilerRule.sagemaker(rule_configs.OverallSystemUsage()).rules() == ()


def test_a_profiler_report_is_all_rules_with_their_parameters() -> None:
    asked = rule_configs.ProfilerReport(opt_out_telemetry=True, StepOutlier_stddev=5)
    found = ProfilerRule.sagemaker(asked).rules()
    assert sorted(rule.name for rule in found) == sorted(JUDGING)
    assert rules.make("StepOutlier", stddev=5) in found


def test_what_no_rule_has_is_refused() -> None:
    with pytest.raises(AttributeError, match="did you mean 'StepOutlier'"):
        _ = rule_configs.StepOutliers
    with pytest.raises(ConfigurationError, match="stdev"):
        ProfilerRule.sagemaker(rule_configs.StepOutlier(stdev=4))
    with pytest.raises(ConfigurationError, match="write Rule_parameter"):
        ProfilerRule.sagemaker(rule_configs.ProfilerReport(Unknown_x=1))


@pytest.mark.parametrize(
    ("name", "parameter", "instead"),
    [
        ("CPUBottleneck", "cpu_threshold", "busy_threshold"),
        ("IOBottleneck", "io_threshold", "blocked_threshold"),
        ("BatchSize", "cpu_threshold_p95", "gpu_threshold_p95"),
        ("LoadBalancing", "patience", "every 10 s"),
    ],
)
def test_a_parameter_of_a_formula_that_accuses_the_healthy_names_what_replaces_it(
    name: str, parameter: str, instead: str
) -> None:
    asked = getattr(rule_configs, name)(**{parameter: 50})
    words = f"{name} does not take {parameter}: .*{instead}"
    with pytest.raises(ConfigurationError, match=words):
        ProfilerRule.sagemaker(asked)
    report = rule_configs.ProfilerReport(**{f"{name}_{parameter}": 50})
    with pytest.raises(ConfigurationError, match=instead):
        ProfilerRule.sagemaker(report)


def test_what_smdebug_calls_them_is_obeyed() -> None:
    asked = rule_configs.BatchSize(gpu_threshold_p95=50, gpu_memory_threshold_p95="60")
    (rule,) = ProfilerRule.sagemaker(asked).rules()
    assert rule == rules.make(
        "BatchSize", gpu_threshold_p95=50, gpu_memory_threshold_p95=60
    )
    (rule,) = ProfilerRule.sagemaker(rule_configs.LoadBalancing(threshold=0.2)).rules()
    assert rule == rules.make("LoadBalancing", threshold=0.2)
