"""UnusedTensorCores: products of float32 matrices that no tensor core computes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tdbg.config.quantities import percent
from tdbg.rules.builtin.time.device_windows import DeviceWindow, DeviceWindowRule
from tdbg.rules.builtin.time.time_rule import Sign
from tdbg.rules.profile import Bin
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage

__all__ = ["UnusedTensorCores"]

# Kernels of cuBLAS, cuDNN and CUTLASS that multiply float32 without tensor cores.
_FLOAT32 = re.compile(r"(?:^|_)sgemm|f32f32_f32f32|_ffma")
_ON_TENSOR_CORES = re.compile(r"tf32|tensorop|16816|1688")
# Those made for devices of compute capability 8.0 or more, which know TF32.
_SINCE_AMPERE = re.compile(r"ampere_|hopper_|cutlass_[89]|(?:^|_)sm(?:8|9|1[0-9])[0-9]")


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedTensorCores(DeviceWindowRule):
    """Report devices that multiply float32 matrices although they could do it faster.

    It judges windows of the profiler, by the names of their kernels.  Only an info: to
    use tensor cores changes numbers a little.

    Args:
        threshold: Share of the device's time in such kernels, in percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO,)
    stage = Stage.USE

    threshold: float = 30.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)

    def sign(self, bins: Sequence[Bin], window: DeviceWindow) -> Sign:  # noqa: ARG002
        """Judge the kernels of a window."""
        own = {name: each.self_ns for name, each in window.kernels.items()}
        slow = {name: ns for name, ns in own.items() if _is_slow(name)}
        share = sum(slow.values()) / max(1, sum(own.values()))

        def describe() -> Description:
            most = max(slow, key=lambda name: slow[name])
            return Description(
                message=(
                    f"Products of float32 matrices take {percent(100 * share)} of the "
                    f"device's time, and no tensor core computes them ({most})."
                ),
                value=100 * share,
                threshold=self.threshold,
                advice=lambda words: (
                    f"Use {words.mixed_precision}, or allow TF32 "
                    f"({words.allowing_tf32}), if your training tolerates fewer digits "
                    "in products."
                ),
            )

        is_bad = 100 * share >= self.threshold
        return Sign(severity=Severity.INFO if is_bad else None, describe=describe)


def _is_slow(name: str) -> bool:
    """Return whether a kernel multiplies without the tensor cores that are there."""
    return bool(
        _FLOAT32.search(name)
        and _SINCE_AMPERE.search(name)
        and not _ON_TENSOR_CORES.search(name)
    )
