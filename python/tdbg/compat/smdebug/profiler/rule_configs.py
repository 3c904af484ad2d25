"""The rules of SageMaker's profiler, as its configurations name them.

``ProfilerRule.sagemaker(rule_configs.StepOutlier(stddev=4))`` is what an estimator is
given; its ``rules()`` are tdbg's rules of the same names, for ``tdbg.rules.check``, for
a hook or for ``tdbg watch``.  A value that is given has SageMaker's meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tdbg.compat.smdebug.exceptions import SMDebugValueError, translated
from tdbg.config.messages import nearest
from tdbg.rules import REPORTED, Rule, make

__all__ = ["JUDGING", "ProfilerRule", "RuleConfiguration", "rule_configs"]

#: Rules that judge; the others were tables of the report.
JUDGING = (
    "BatchSize",
    "CPUBottleneck",
    "Dataloader",
    "GPUMemoryIncrease",
    "IOBottleneck",
    "LoadBalancing",
    "LowGPUUtilization",
    "MaxInitializationTime",
    "StepOutlier",
)
_REPORT = "ProfilerReport"
# How often SageMaker looked, and telemetry: tdbg looks at each bin, and sends nothing.
_WITHOUT_EFFECT = frozenset({"scan_interval_us", "opt_out_telemetry"})

# Parameters of formulas that accuse healthy trainings, and what to give instead.
_REPLACED: Mapping[tuple[str, str], str] = {
    **dict.fromkeys(
        [
            ("CPUBottleneck", each)
            for each in ("threshold", "cpu_threshold", "gpu_threshold", "patience")
        ],
        "wait_threshold, worker_threshold or busy_threshold (one busy core among many "
        "is no bottleneck)",
    ),
    **dict.fromkeys(
        [
            ("IOBottleneck", each)
            for each in ("threshold", "io_threshold", "gpu_threshold", "patience")
        ],
        "wait_threshold, blocked_threshold or pressure_threshold (a busy host has no "
        "I/O wait, however long its processes wait for a disk)",
    ),
    **dict.fromkeys(
        [("BatchSize", each) for each in ("cpu_threshold_p95", "patience", "window")],
        "gpu_threshold_p95 or gpu_memory_threshold_p95 (the rule asks what a step "
        "waits for, not how busy the processor is)",
    ),
    ("LoadBalancing", "patience"): "threshold (the rule judges every 10 s)",
}


@dataclass(frozen=True, slots=True)
class RuleConfiguration:
    """A rule, and the values that were given.

    Attributes:
        rule_name: SageMaker's name of it.
        rule_parameters: Values by their names.
    """

    rule_name: str
    rule_parameters: Mapping[str, Any] = field(default_factory=dict)


class _RuleConfigs:
    """Makes configurations by the names of rules: ``rule_configs.StepOutlier()``."""

    def __getattr__(self, name: str) -> Any:
        known = (*JUDGING, *REPORTED)
        if name not in known:
            msg = f"SageMaker's profiler has no rule {name!r}; {nearest(name, known)}"
            raise AttributeError(msg)
        return lambda **parameters: RuleConfiguration(name, parameters)


rule_configs = _RuleConfigs()


class ProfilerRule:
    """A rule that watches a profile.

    Args:
        base_config: Of ``rule_configs``.
        name: What the rule is called in the job; its own name by default.
        rule_parameters: Further values by their names, which may be texts.

    Raises:
        SMDebugValueError: If a parameter is unknown, or its value makes no sense.
    """

    def __init__(
        self,
        base_config: RuleConfiguration,
        name: str | None = None,
        rule_parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.base_config = base_config
        self.name = name or base_config.rule_name
        given = {**base_config.rule_parameters, **(rule_parameters or {})}
        self.rule_parameters = {
            key: value for key, value in given.items() if key not in _WITHOUT_EFFECT
        }
        self._rules = self._made()

    @classmethod
    def sagemaker(
        cls,
        base_config: RuleConfiguration,
        name: str | None = None,
        container_local_output_path: str | None = None,
        s3_output_path: str | None = None,
        instance_type: str | None = None,
        volume_size_in_gb: int | None = None,
        rule_parameters: Mapping[str, Any] | None = None,
    ) -> ProfilerRule:
        """Make a rule as SageMaker's SDK does; paths and machines are accepted."""
        del container_local_output_path, s3_output_path, instance_type
        del volume_size_in_gb
        return cls(base_config, name, rule_parameters)

    def rules(self) -> tuple[Rule, ...]:
        """Return tdbg's rules; none for a table, which ``tdbg report`` shows."""
        return self._rules

    def _made(self) -> tuple[Rule, ...]:
        name = self.base_config.rule_name
        if name in JUDGING:
            return (_rule(name, self.rule_parameters),)
        if name != _REPORT:
            return ()
        of_rule: dict[str, dict[str, Any]] = {each: {} for each in JUDGING}
        for key, value in self.rule_parameters.items():
            rule, _, parameter = key.partition("_")
            if rule not in of_rule or not parameter:
                msg = f"ProfilerReport has no parameter {key!r}; write Rule_parameter"
                raise SMDebugValueError(msg)
            of_rule[rule][parameter] = value
        return tuple(_rule(each, values) for each, values in of_rule.items())


def _rule(name: str, parameters: Mapping[str, Any]) -> Rule:
    values = {key: _value(value) for key, value in parameters.items()}
    for key in values:
        if (name, key) in _REPLACED:
            msg = f"{name} does not take {key}: give {_REPLACED[name, key]}"
            raise SMDebugValueError(msg)
    with translated():
        return make(name, **values)


def _value(given: Any) -> Any:
    """Return a number that is a text as a number, as SageMaker's parameters are."""
    if not isinstance(given, str):
        return given
    for kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            continue
    return given
