"""DeviceThrottled: GPUs that run slower to protect themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import number, percent
from tdbg.rules.builtin.time.device import of_training
from tdbg.rules.builtin.time.time_rule import Sign, TimeRule
from tdbg.rules.profile import ProfileWindow, Rows
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage

__all__ = ["DeviceThrottled"]

# Bits of nvmlClocksEventReasons (nvml.h): a cap of the power; heat or the power supply.
POWER_CAP = 0x04
SLOWDOWNS = {
    0x08: "the hardware slows it down",
    0x20: "it is too hot",
    0x40: "it is too hot for the hardware",
    0x80: "the power supply brakes it",
}
NOT_SAMPLED = np.iinfo(np.uint32).max
ENOUGH_SAMPLES = 8


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceThrottled(TimeRule):
    """Report GPUs whose clocks are lowered by heat or by their power supply.

    A cap of the power is how some owners run their devices, so it is an info.

    Args:
        threshold: Share of the samples with lowered clocks, in percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.CONTENTION
    tables = frozenset({"step", "gpu"})

    threshold: float = 10.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)

    @property
    def first_verdict(self) -> str:
        """Return that the reasons of clocks must have been sampled."""
        return (
            "10 s of samples of the training's GPUs, with the reasons of their clocks"
        )

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge each GPU that the training uses."""
        each = profile.bins[i]
        rows = of_training(each.tables["gpu"])
        is_new = rows["time"] >= each.start_ns
        rows = rows[is_new & (rows["throttle_reasons"] != NOT_SAMPLED)]
        found = {}
        for name in np.unique(rows["instance"]):
            own = rows[rows["instance"] == name]
            if len(own) >= ENOUGH_SAMPLES:
                found[f"GPU {int(own['index'][0])}"] = self._sign(own)
        return found

    def _sign(self, rows: Rows) -> Sign:
        shares = {bit: _share(rows, bit) for bit in (POWER_CAP, *SLOWDOWNS)}
        bit = max(SLOWDOWNS, key=lambda each: shares[each])
        severity = None
        if 100 * shares[bit] >= self.threshold:
            severity = Severity.WARNING
        elif 100 * shares[POWER_CAP] >= self.threshold:
            severity, bit = Severity.INFO, POWER_CAP
        why = SLOWDOWNS.get(bit, "its power is capped")

        def describe() -> Description:
            share = 100 * shares[bit]
            return Description(
                message=(
                    f"The clocks of the GPU are lowered in {percent(share)} of the "
                    f"samples, because {why}{_measured(rows)}."
                ),
                value=share,
                threshold=self.threshold,
                advice=(
                    "Raise the power limit if its owner allows it (nvidia-smi -pl)."
                    if bit == POWER_CAP
                    else "Look at its cooling and power supply, and at what runs "
                    "beside it. Other ranks wait for a rank that is slowed down."
                ),
            )

        return Sign(severity=severity, describe=describe)


def _share(rows: Rows, bit: int) -> float:
    return float(((rows["throttle_reasons"] & np.uint32(bit)) != 0).mean())


def _measured(rows: Rows) -> str:
    """Return how hot the device is and at what clock it runs, as far as is known."""
    known = {
        "{} °C": rows["temperature"].astype(np.float64),
        "{} MHz": rows["sm_clock_hz"].astype(np.float64) / 1e6,
    }
    texts = [
        text.format(number(float(np.median(values[np.isfinite(values)]))))
        for text, values in known.items()
        if np.isfinite(values).any()
    ]
    return f" ({', '.join(texts)})" if texts else ""
