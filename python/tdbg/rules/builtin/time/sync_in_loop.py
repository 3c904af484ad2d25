"""SyncInLoop: programs that wait for their device in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tdbg.config.quantities import conjoin, number, percent
from tdbg.rules.builtin.time.device_windows import (
    Calls,
    DeviceWindow,
    DeviceWindowRule,
    idle_in,
)
from tdbg.rules.builtin.time.lines import in_words, top_line
from tdbg.rules.builtin.time.time_rule import Sign, gain_severity, shorter
from tdbg.rules.profile import Bin
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Stage
from tdbg.run.profile_tables import Phase

__all__ = ["SyncInLoop"]

# Operators that wait until the device has made a number, and what asks for them.
_WAITS: Mapping[str, str] = {
    "aten::_local_scalar_dense": (
        "numbers of tensors (.item(), float(), print, an if on a tensor)"
    ),
    "aten::nonzero": "indices whose number depends on the values (nonzero, masks)",
    "cudaDeviceSynchronize": "synchronize()",
    "hipDeviceSynchronize": "synchronize()",
}
_NUMBERS = "aten::_local_scalar_dense"
# A gradient scaler asks for one number in each step, for each call of this operator.
_SCALER = "aten::_amp_foreach_non_finite_check_and_unscale_"
# Where the lines lie that ask.
_PHASES = frozenset({Phase.OTHER, Phase.FORWARD, Phase.OPTIMIZER})


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SyncInLoop(DeviceWindowRule):
    """Report programs that wait for their device in each step, while it has no work.

    It judges windows of the profiler that have kernels of a CUDA device.

    Args:
        threshold: Share of a step's time that waits for the device, in percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.HOST
    # Bins from which samples of lines are taken together.
    reach = 5

    threshold: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)

    def sign(self, bins: Sequence[Bin], window: DeviceWindow) -> Sign:
        """Judge what waits for the device in a window."""
        waits = _waits_in(window)
        share = sum(each.total_ns for each in waits.values()) / window.duration_ns
        # What the device works meanwhile is no loss.
        gain = max(0.0, min(share, idle_in(bins[-1], window)))
        severity = gain_severity(gain) if 100 * share >= self.threshold else None

        def describe() -> Description:
            asked = {_WAITS[name]: each for name, each in waits.items()}
            line = next((each.line for each in waits.values() if each.line), "")
            where = f" Most of it is in {line}." if line else ""
            return Description(
                message=(
                    f"Each step waits for the device: for {conjoin(list(asked))}, "
                    f"{number(sum(each.n for each in waits.values()) / window.steps)} "
                    f"times a step, which takes {percent(100 * share)} of its time, "
                    "and the device has no work for "
                    f"{percent(100 * idle_in(bins[-1], window))} of the time."
                ),
                value=100 * share,
                threshold=self.threshold,
                gain=gain,
                advice=(
                    "Add up losses and metrics on the device, and ask for their values "
                    "every few hundred steps; select with where() instead of masks. "
                    f"That gives up to {shorter(gain)}."
                    f"{where or in_words(top_line(bins, _PHASES))}"
                ),
            )

        return Sign(severity=severity, describe=describe)


def _waits_in(window: DeviceWindow) -> dict[str, Calls]:
    """Return what waits for the device at least once in each step of a window.

    Logging every few steps is left out, and so is what a gradient scaler asks for.
    """
    found = {name: window.host[name] for name in _WAITS if name in window.host}
    own = window.host.get(_SCALER, Calls()).n
    if _NUMBERS in found and own:
        asked = found[_NUMBERS]
        n = max(0, asked.n - own)
        part = n / max(1, asked.n)
        found[_NUMBERS] = Calls(
            n, int(part * asked.self_ns), int(part * asked.total_ns), asked.line
        )
    return {name: each for name, each in found.items() if each.n >= window.steps}
