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
    assert {"CPUBottleneck", "Dataloader"} <= {rule.name for rule in found}
    assert {rule.name for rule in found} <= set(JUDGING)
    assert rules.make("StepOutlier", stddev=5) in found


def test_what_no_rule_has_is_refused() -> None:
    with pytest.raises(AttributeError, match="did you mean 'StepOutlier'"):
        _ = rule_configs.StepOutliers
    with pytest.raises(ConfigurationError, match="stdev"):
        ProfilerRule.sagemaker(rule_configs.StepOutlier(stdev=4))
    with pytest.raises(ConfigurationError, match="write Rule_parameter"):
        ProfilerRule.sagemaker(rule_configs.ProfilerReport(Unknown_x=1))
