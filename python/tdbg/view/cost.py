"""The cost of a run, and which machines would have cost less, as every face shows it.

Thread safety: functions over a trial; its lock is held inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import plural
from tdbg.cost import (
    STARTUP,
    Instance,
    Offer,
    Usage,
    cost_of,
    hints_of,
    offers_of,
)
from tdbg.errors import QueryError
from tdbg.run.profile_tables import NOT_MEASURED, PHASE_COLUMNS, Phase
from tdbg.trial import Trial
from tdbg.view.problems import Diagnosis
from tdbg.view.time import LoaderUse, TimeView, names_of, percent_text

__all__ = ["CostPart", "RunCost", "cost_view", "money", "offer_text", "usage_of"]

_SECOND = 1e9
_PERCENTILE = 95


@dataclass(frozen=True, slots=True)
class CostPart:
    """A part of a run's time: a phase of its steps, or what lies before them.

    Attributes:
        name: Such as ``data wait``.
        share: Of the time of the run.
        cost: What it cost.
    """

    name: str
    share: float
    cost: float


@dataclass(frozen=True, slots=True)
class RunCost:
    """The cost of a run, up to its last step.

    Attributes:
        price_per_hour: Of one host.
        usage: What the run used.
        total: What it cost.
        per_1000_steps: None without steps.
        per_sample: None if the samples were not counted.
        parts: By cost, the largest first; those below 0.5 % of the time together.
        offers: Machines that would have cost less.
        hints: What was left unused, in words.
    """

    price_per_hour: float
    usage: Usage
    total: float
    per_1000_steps: float | None
    per_sample: float | None
    parts: tuple[CostPart, ...]
    offers: tuple[Offer, ...]
    hints: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The cost in words."""
        usage = self.usage
        text = (
            f"{money(self.total)} for {plural(round(usage.seconds), 'second')} on "
            f"{plural(usage.nodes, 'host')} at {money(self.price_per_hour)} an hour"
        )
        share = percent_text(usage.productive)
        return f"{text}; the model was computed in {share} of the time"

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {
            "price_per_hour": self.price_per_hour,
            "total": self.total,
            "per_1000_steps": self.per_1000_steps,
            "per_sample": self.per_sample,
            "productive": self.usage.productive,
            "usage": {**asdict(self.usage), "shares": dict(self.usage.shares)},
            "parts": [asdict(part) for part in self.parts],
            "offers": [offer.to_json() for offer in self.offers],
            "hints": list(self.hints),
        }


def money(amount: float) -> str:
    """Spell an amount: two digits after the point, or three that count.

    Example:
        >>> money(6.1568), money(0.000123456)
        ('6.16', '0.000123')
    """
    if amount >= 1 or amount <= 0:
        return f"{amount:,.2f}"
    return f"{amount:.{2 - math.floor(math.log10(amount))}f}"


def offer_text(offer: Offer, before: float) -> str:
    """Say what machines would save.

    Args:
        offer: The machines.
        before: What the run cost.

    Example:
        >>> offer_text(offer, 6.16)
        '2 x gpu.new: saves 60 to 70 % (2.1 instead of 6.16, 480 to 520 s)'
    """
    low, high = 100 * offer.saving.low, 100 * offer.saving.high
    saving = f"{low:.0f} to {high:.0f} %" if high - low >= 1 else f"{high:.0f} %"
    seconds = f"{offer.seconds.low:,.0f} to {offer.seconds.high:,.0f} s"
    if offer.seconds.high - offer.seconds.low < 1:
        seconds = f"{offer.seconds.middle:,.0f} s"
    return (
        f"{offer.nodes} x {offer.instance}: saves {saving} "
        f"({money(offer.cost.middle)} instead of {money(before)}, {seconds})"
    )


def cost_view(
    trial: Trial,
    price_per_hour: float,
    *,
    now: Instance | None = None,
    candidates: Iterable[Instance] = (),
) -> RunCost:
    """Return what a run has cost, and what would have cost less.

    Args:
        trial: The run.
        price_per_hour: Of one of its hosts.
        now: What it ran on; None: no advice.
        candidates: What can be hired.

    Raises:
        QueryError: If the run has no profile, or no training step in it.
    """
    usage = usage_of(trial)
    total = cost_of(price_per_hour, usage.seconds, usage.nodes)
    return RunCost(
        price_per_hour,
        usage,
        total,
        1000 * total / usage.steps if usage.steps else None,
        total / usage.samples if usage.samples else None,
        tuple(_parts(usage, total)),
        offers_of(usage, now, candidates) if now is not None else (),
        hints_of(usage),
    )


def _parts(usage: Usage, total: float) -> Iterator[CostPart]:
    small = 0.0
    names = names_of([each for each in Phase if usage.shares.get(each.name.lower())])
    words = {phase.name.lower(): word for phase, word in names.items()}
    words[STARTUP] = "start-up"
    for name, share in sorted(usage.shares.items(), key=lambda item: -item[1]):
        if share >= 0.005:
            yield CostPart(words[name], share, share * total)
        else:
            small += share
    if small > 0:
        yield CostPart("the rest", small, small * total)


def usage_of(trial: Trial) -> Usage:
    """Return what a run used.

    Raises:
        QueryError: If the run has no profile, or no training step in it.
    """
    profile, view = trial.profile, TimeView(trial, Diagnosis())
    rows, training = view.all_steps, view.steps
    if not view.has_steps:
        raise QueryError(profile.statement)
    ranks = len(np.unique(rows["worker"]))
    seconds = float(profile.seconds(rows["time"]).max())
    in_steps = rows["duration_ns"].sum() / _SECOND / ranks
    seconds = max(seconds, in_steps)
    # A step that says nothing is taken for one like the others.
    counted = training["samples"][training["samples"] >= 0]
    samples = round(float(counted.mean()) * len(training)) if len(counted) else None
    nodes = max(len(profile.clock.nodes), 1)
    system, gpus = profile.system(), profile.gpus()
    return Usage(
        seconds=seconds,
        shares=_shares(rows, seconds, in_steps),
        steps=len(np.unique(training["global_step"])),
        samples=samples,
        nodes=nodes,
        ranks=ranks,
        memory_peak_bytes=_memory_peak(system),
        cores=nodes * _mean(system["allowed_cores"]) if len(system) else None,
        cores_used=_cores_used(system, nodes),
        useful_cores=_useful_cores(view.loading, ranks),
        **_of_gpus(gpus),
    )


def _shares(rows: NDArray[Any], seconds: float, in_steps: float) -> dict[str, float]:
    durations = float(rows["duration_ns"].sum())
    found = {STARTUP: 1 - in_steps / seconds if seconds else 0.0}
    for phase, column in PHASE_COLUMNS.items():
        part = float(rows[column].sum()) / durations if durations else 0.0
        found[phase.name.lower()] = part * (1 - found[STARTUP])
    return found


def _of_gpus(rows: NDArray[Any]) -> dict[str, Any]:
    if not len(rows):
        return {}
    used = rows[rows["run_processes"] > 0]
    busy = used["busy"][np.isfinite(used["busy"])]
    return {
        "gpus": len(np.unique(used["instance"])),
        "visible_gpus": len(np.unique(rows["instance"])),
        "gpu_busy": float(np.percentile(busy, _PERCENTILE)) if len(busy) else None,
        "gpu_peak_bytes": _greatest(used["memory_used"]),
    }


def _greatest(column: NDArray[Any]) -> float | None:
    known = column[column != NOT_MEASURED]
    return float(known.max()) if len(known) else None


def _memory_peak(rows: NDArray[Any]) -> float | None:
    """Return the most memory in use: of the control group, else of the host."""
    peak = _greatest(rows["cgroup_memory"]) if len(rows) else None
    if peak is not None:
        return peak
    known = rows[rows["memory_available"] != NOT_MEASURED]
    used = known["memory_total"] - known["memory_available"]
    return float(used.max()) if len(used) else None


def _mean(column: NDArray[Any]) -> float:
    return float(np.nanmean(column)) if np.isfinite(column).any() else np.nan


def _cores_used(rows: NDArray[Any], nodes: int) -> float | None:
    used = rows["allowed_busy"] * rows["allowed_cores"]
    used = used[np.isfinite(used)]
    return nodes * float(np.percentile(used, _PERCENTILE)) if len(used) else None


def _useful_cores(loaders: Sequence[LoaderUse], ranks: int) -> float | None:
    """Return the cores that loaders without waits, and the ranks, would fill."""
    cores = loaders[0].useful_cores if loaders else None
    return None if cores is None else ranks * cores
