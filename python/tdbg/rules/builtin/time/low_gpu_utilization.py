"""LowGPUUtilization and UnusedDevice: GPUs that do little, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import percent, plural
from tdbg.rules.builtin.time.breakdown import Breakdown, breakdown_of
from tdbg.rules.builtin.time.device import in_usual_steps, of_training
from tdbg.rules.builtin.time.phase_words import words_in
from tdbg.rules.builtin.time.time_rule import TRAINING, Sign, TimeRule, check_optional
from tdbg.rules.profile import Bin, ProfileWindow, Rows
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.profile_tables import Phase

__all__ = ["LowGPUUtilization", "UnusedDevice"]

# Fewer samples than this say nothing.
ENOUGH_SAMPLES = 8
# smdebug's values, where not all are given, and samples in a bin.
P95, P5, WINDOW, PATIENCE = 70.0, 10.0, 500, 1000
PER_BIN = 20
# Below this a device does nothing at the moment.
DIP = 0.1
# How many bins a device must do nothing: two minutes.
UNUSED_BINS = 12


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LowGPUUtilization(TimeRule):
    """Report GPUs of the training that are idle for much of the time.

    *Busy* is the share of the time in which any kernel ran: an upper bound of what a
    device does.  If you give one of the last four parameters, SageMaker Debugger's
    formula holds instead.

    Args:
        busy: The 95th percentile below which a device does little, in percent.
        mean_busy: The mean below which it does little, if it often does nothing.
        dips: Share of the samples in which it does nothing that is often, in percent.
        threshold_p95: SageMaker Debugger's; 70 there.
        threshold_p5: SageMaker Debugger's; 10 there.
        window: SageMaker Debugger's: over how many samples; 500 there.
        patience: SageMaker Debugger's: after how many samples; 1000 there.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING,)
    stage = Stage.USE
    tables = frozenset({"step", "gpu"})
    reach = PATIENCE // PER_BIN

    busy: float = 70.0
    mean_busy: float = 60.0
    dips: float = 20.0
    threshold_p95: float | None = None
    threshold_p5: float | None = None
    window: float | None = None
    patience: float | None = None

    def __post_init__(self) -> None:
        for name in ("busy", "mean_busy", "dips"):
            check_number(self, name, above=0.0, most=100.0)
        for name in ("threshold_p95", "threshold_p5"):
            check_optional(self, name, least=0.0)
        for name in ("window", "patience"):
            check_optional(self, name, above=0.0, most=PATIENCE)

    @property
    def _is_default(self) -> bool:
        given = (self.threshold_p95, self.threshold_p5, self.window, self.patience)
        return all(value is None for value in given)

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge each GPU that the training uses."""
        each = profile.bins[i]
        if not self._is_default:
            return self._by_percentiles(profile, i)
        breakdown, rows = breakdown_of(each), of_training(each.tables["gpu"])
        if breakdown is None:
            return {}
        rows = rows[in_usual_steps(each, rows)]
        found = {}
        for name in np.unique(rows["instance"]):
            own = rows[rows["instance"] == name]
            if len(own) >= ENOUGH_SAMPLES:
                found[f"GPU {int(own['index'][0])}"] = self._sign(
                    own, breakdown, words_in(each)
                )
        return found

    def _sign(
        self, rows: Rows, breakdown: Breakdown, phase_words: Mapping[Phase, str]
    ) -> Sign:
        busy = rows["busy"].astype(np.float64)
        high, mean = float(np.quantile(busy, 0.95)), float(busy.mean())
        dips = float((busy < DIP).mean())
        is_low = 100 * high < self.busy
        is_low |= 100 * mean < self.mean_busy and 100 * dips >= self.dips

        def describe() -> Description:
            shares = {
                phase: share
                for phase, share in breakdown.shares.items()
                if phase is not Phase.CAPTURE
            }
            phase = max(shares, key=lambda key: shares[key])
            return Description(
                message=(
                    f"The GPU is busy for {percent(100 * mean)} of the time, at most "
                    f"{percent(100 * high)} (95th percentile), and does nothing in "
                    f"{percent(100 * dips)} of the samples."
                ),
                value=100 * high,
                threshold=self.busy,
                advice=lambda words: (
                    "The largest part of a step is "
                    f"{phase_words[phase]} ({percent(100 * shares[phase])}). If no "
                    "finding names a cause, give the device more at once (a larger "
                    f"batch, {words.compiling}), or use a smaller one."
                ),
            )

        return Sign(severity=Severity.WARNING if is_low else None, describe=describe)

    def _by_percentiles(self, profile: ProfileWindow, i: int) -> dict[str, Sign]:
        """Judge by the formula of SageMaker Debugger."""
        n = int(WINDOW if self.window is None else self.window)
        least = int(PATIENCE if self.patience is None else self.patience)
        bins = profile.bins[max(0, i - self.reach) : i + 1]
        rows = np.concatenate([_new(each) for each in bins])
        found = {}
        for name in np.unique(rows["instance"]):
            own = rows[rows["instance"] == name]
            if len(own) < least:
                continue
            busy = 100 * own["busy"][-n:].astype(np.float64)
            low, high = np.quantile(busy, [0.05, 0.95]).tolist()
            found[f"GPU {int(own['index'][0])}"] = self._by_two(high, low)
        return found

    def _by_two(self, high: float, low: float) -> Sign:
        most = P95 if self.threshold_p95 is None else self.threshold_p95
        least = P5 if self.threshold_p5 is None else self.threshold_p5
        is_low = high < most or low < least

        def describe() -> Description:
            word = "is low" if high < most else "fluctuates"
            return Description(
                message=(
                    f"The use of the GPU {word}: its 95th percentile is "
                    f"{percent(high)}, its 5th {percent(low)}."
                ),
                value=high if high < most else low,
                threshold=most if high < most else least,
                advice="Look for what the device waits for: data, the host, ranks.",
            )

        return Sign(severity=Severity.WARNING if is_low else None, describe=describe)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedDevice(TimeRule):
    """Report GPUs of the host that do nothing while the training runs.

    Args:
        minutes: For how long they must do nothing.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO,)
    stage = Stage.USE
    tables = frozenset({"step", "gpu"})
    reach = UNUSED_BINS - 1
    bad_bins = 1

    minutes: float = 2.0

    def __post_init__(self) -> None:
        check_number(self, "minutes", above=0.0, most=UNUSED_BINS / 6)

    @property
    def first_verdict(self) -> str:
        """Return for how long GPUs must have been sampled."""
        return f"{self.minutes:g} minutes of samples of GPUs"

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge all GPUs of the host together."""
        n = max(1, round(6 * self.minutes))
        bins = profile.bins[max(0, i - n + 1) : i + 1]
        rows = np.concatenate([_new(each) for each in bins])
        if len(bins) < n or not len(rows):
            return {}
        names = np.unique(rows["instance"])
        idle = [name for name in names if _does_nothing(rows[rows["instance"] == name])]

        def describe() -> Description:
            return Description(
                message=(
                    f"{len(idle)} of {plural(len(names), 'GPU')} did nothing for "
                    f"{self.minutes:g} minutes, and no process of the training is on "
                    "them."
                ),
                value=float(len(idle)),
                threshold=0.0,
                advice=lambda words: (
                    f"Use them ({words.all_devices}), or rent a machine with as "
                    "many GPUs as you use."
                ),
            )

        severity = Severity.INFO if idle else None
        return {TRAINING: Sign(severity=severity, describe=describe)}


def _new(each: Bin) -> Rows:
    """Return the samples of a bin without those before it."""
    rows = each.tables["gpu"]
    found: Rows = rows[(rows["time"] >= each.start_ns) & np.isfinite(rows["busy"])]
    return found


def _does_nothing(rows: Rows) -> bool:
    n = rows["run_processes"]
    return bool((rows["busy"] == 0).all() and (n == 0).all())
