"""NetworkBound: a network that is used up while the training waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import number, percent
from tdbg.rules.builtin.time.breakdown import breakdown_of
from tdbg.rules.builtin.time.time_rule import Sign, TimeRule, gain_severity, shorter
from tdbg.rules.profile import ProfileWindow, Rows
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Stage
from tdbg.run.profile_tables import NOT_MEASURED, Phase

__all__ = ["NetworkBound"]

# The kernel says 0 or -1 of a link whose speed it does not know; no link is faster.
FASTEST = 10**13
ENOUGH_SAMPLES = 8


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkBound(TimeRule):
    """Report a network link at its limit while the training waits for it.

    Args:
        threshold: Share of the link's speed that one direction uses, in percent.
        wait: Share of a step's time that waits for data or for other ranks, in percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.CONTENTION
    phases = frozenset({Phase.DATA_WAIT, Phase.COMMUNICATION})
    tables = frozenset({"step", "network"})

    threshold: float = 80.0
    wait: float = 10.0

    def __post_init__(self) -> None:
        for name in ("threshold", "wait"):
            check_number(self, name, above=0.0, most=100.0)

    @property
    def first_verdict(self) -> str:
        """Return that a link of known speed must have been sampled."""
        return "10 s of samples of a network link whose speed the kernel knows"

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge each link whose speed is known."""
        each = profile.bins[i]
        breakdown, rows = breakdown_of(each), each.tables["network"]
        if breakdown is None:
            return {}
        waits = {
            phase: breakdown.share(phase)
            for phase in (Phase.DATA_WAIT, Phase.COMMUNICATION)
        }
        found = {}
        for key in np.unique(rows[["worker", "instance"]]):
            is_own = rows["worker"] == key["worker"]
            own = rows[is_own & (rows["instance"] == key["instance"])]
            use = _use(own)
            if use is not None:
                found[str(key["instance"])] = self._sign(own, use, waits)
        return found

    def _sign(self, rows: Rows, use: float, waits: Mapping[Phase, float]) -> Sign:
        wait = sum(waits.values())
        is_bad = 100 * use >= self.threshold and 100 * wait >= self.wait
        is_of_ranks = waits[Phase.COMMUNICATION] >= waits[Phase.DATA_WAIT]
        what = "other ranks" if is_of_ranks else "data"
        advice = (
            "Send less (gradient accumulation with no_sync(), compression, mixed "
            "precision)"
            if is_of_ranks
            else "Read less over the network (copy the data to a local disk, store it "
            "compressed)"
        )

        def describe() -> Description:
            speed = float(rows["bits_per_second"][-1])
            return Description(
                message=(
                    f"The network link carries {percent(100 * use)} of its "
                    f"{number(speed / 1e9)} Gbit/s, and steps wait for {what} for "
                    f"{percent(100 * wait)} of their time."
                ),
                value=100 * use,
                threshold=self.threshold,
                gain=wait,
                advice=(
                    f"{advice}, or use a faster link. Without the wait you have up to "
                    f"{shorter(wait)}."
                ),
            )

        return Sign(severity=gain_severity(wait) if is_bad else None, describe=describe)


def _use(rows: Rows) -> float | None:
    """Return what of a link's speed its busier direction uses; None: unknown."""
    totals = [rows["received_bytes"], rows["sent_bytes"]]
    if len(rows) < ENOUGH_SAMPLES or any((e == NOT_MEASURED).any() for e in totals):
        return None
    speed = float(rows["bits_per_second"][-1])
    seconds = float(rows["time"][-1] - rows["time"][0]) / 1e9
    if not 0 < speed <= FASTEST or seconds <= 0:
        return None
    # A counter that starts over says nothing.
    if any(total[-1] < total[0] for total in totals):
        return None
    most = max(float(total[-1] - total[0]) for total in totals)
    return 8 * most / seconds / speed
