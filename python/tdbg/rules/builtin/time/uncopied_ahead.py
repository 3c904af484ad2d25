"""UncopiedAhead: batches that are copied to the device while the host waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tdbg.config.quantities import number, percent
from tdbg.rules.builtin.time.device_windows import DeviceWindow, DeviceWindowRule
from tdbg.rules.builtin.time.time_rule import Sign, shorter
from tdbg.rules.profile import Bin
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage

__all__ = ["UncopiedAhead"]

# As CUPTI calls copies from memory that the device cannot read by itself.
PAGEABLE = "HtoD (Pageable"


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class UncopiedAhead(DeviceWindowRule):
    """Report copies to the device from pageable memory, for which the host waits.

    It judges windows of the profiler that have kernels of a CUDA device.

    Args:
        threshold: Share of a step's time in these copies, in percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO,)
    stage = Stage.HOST

    threshold: float = 3.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)

    def sign(self, bins: Sequence[Bin], window: DeviceWindow) -> Sign:
        """Judge the copies of a window."""
        copies = [calls for name, calls in window.kernels.items() if PAGEABLE in name]
        share = sum(calls.self_ns for calls in copies) / window.duration_ns
        n = sum(calls.n for calls in copies) / window.steps

        def describe() -> Description:
            return Description(
                message=(
                    f"Copies from pageable memory to the device take "
                    f"{percent(100 * share)} of the time of a step: {number(n)} "
                    "in each, for which the host waits."
                ),
                value=100 * share,
                threshold=self.threshold,
                gain=share,
                advice=(
                    f"{_pinning(bins[-1], window.rank)}non_blocking=True, so that they "
                    "run beside the computation of the step before. That gives up to "
                    f"{shorter(share)}."
                ),
            )

        is_bad = 100 * share >= self.threshold
        return Sign(severity=Severity.INFO if is_bad else None, describe=describe)


def _pinning(each: Bin, rank: int) -> str:
    """Return how batches come into pinned memory, by what loaders are set to."""
    pins = {
        settings.get("pin_memory")
        for (worker, _), settings in each.loaders.items()
        if worker == rank
    }
    if pins == {True}:
        return "The data loader pins its batches: copy these, and not others, with "
    return "Set pin_memory=True of the data loader, and copy batches with "
