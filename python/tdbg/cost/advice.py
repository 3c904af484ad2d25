"""Which machines would have cost less, as ranges: docs/cost.md, "The model".

A run on other machines takes ``T' = T x sum of share / speed`` over the parts of its
time: what waits for data scales with the cores that the loaders can use, what computes
with the devices, what communicates with the network and the number of devices, and the
rest not at all.  A speed that is not 1 is taken as right to 20 %.  More devices, or
more cores than the run could use, are never promised to help.

Thread safety: pure functions over values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tdbg.config.quantities import plural
from tdbg.cost.prices import GIB, Instance
from tdbg.cost.usage import COMMUNICATION, DEVICE, LOADER, Usage, cost_of, saving_of

__all__ = ["Offer", "Range", "hints_of", "offers_of"]

#: How far off a factor of speed may be.
DOUBT = 0.2
#: A saving below is not mentioned.
LEAST_SAVING = 0.1
#: Shares of memory that stay free: of a device, and of a host.
DEVICE_FILL, HOST_ROOM = 0.9, 1.2
_LOW_BUSY = 0.7
_WORDS = {
    LOADER: "waiting for data",
    DEVICE: "computing",
    COMMUNICATION: "communicating",
}


@dataclass(frozen=True, slots=True)
class Range:
    """An estimate: the least, the middle and the most."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Offer:
    """Machines that would have cost less.

    Attributes:
        instance: Name of the machine.
        nodes: How many of them.
        gpus: GPUs that the training would use, of all of them.
        seconds: How long it would take.
        cost: What it would cost.
        saving: The share of the cost that it saves.
        assumptions: What must hold, in words.
        experiment: What would settle it.
    """

    instance: str
    nodes: int
    gpus: int
    seconds: Range
    cost: Range
    saving: Range
    assumptions: tuple[str, ...]
    experiment: str

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return asdict(self)


def offers_of(
    usage: Usage, now: Instance, candidates: Iterable[Instance], *, most: int = 3
) -> tuple[Offer, ...]:
    """Return the machines that would save 10 % or more, the cheapest first.

    Each machine is looked at with the GPUs that the run used, and with half of them, a
    quarter and so on.  One that has too little memory, or too few cores for the
    loaders, is left out; so is one whose range holds a loss.

    Args:
        usage: What the run used.
        now: What it ran on.
        candidates: What can be hired.
        most: How many are returned.
    """
    before = cost_of(now.price_per_hour, usage.seconds, usage.nodes)
    found: list[Offer] = []
    for each in candidates:
        sizes = (
            _offer(usage, now, each, nodes, gpus, before)
            for nodes, gpus in _sizes(usage, each)
        )
        offers = [offer for offer in sizes if offer is not None]
        # With the GPUs that it used, and at the least cost, which may take longer.
        found += dict.fromkeys(
            [*offers[:1], *sorted(offers, key=lambda offer: offer.cost.middle)[:1]]
        )
    return tuple(sorted(found, key=lambda offer: offer.cost.middle)[:most])


def hints_of(usage: Usage) -> tuple[str, ...]:
    """Return what a change of machines would leave unused, in words."""
    return tuple(_hints(usage))


def _hints(usage: Usage) -> Iterator[str]:
    idle = usage.visible_gpus - usage.gpus
    if usage.gpus and idle > 0:
        yield (
            f"{idle} of {plural(usage.visible_gpus, 'GPU')} did nothing: hire fewer, "
            "or start a process on each"
        )
    elif usage.visible_gpus and not usage.gpus:
        yield (
            f"the training used none of {plural(usage.visible_gpus, 'GPU')}: hire a "
            "machine without"
        )
    if usage.gpus and usage.gpu_busy is not None and usage.gpu_busy < _LOW_BUSY:
        yield (
            f"the GPUs are busy at most {100 * usage.gpu_busy:.3g} % of the time: "
            "fewer of them with a larger batch may do the same; only a second run "
            "shows that"
        )


def _sizes(usage: Usage, instance: Instance) -> Iterator[tuple[int, int]]:
    """Yield numbers of nodes and GPUs, from as many GPUs as were used down to one."""
    if not usage.gpus:
        yield usage.nodes, 0
        return
    gpus = usage.gpus if instance.gpus else 0
    while gpus:
        yield math.ceil(gpus / instance.gpus), gpus
        gpus //= 2


def _offer(
    usage: Usage, now: Instance, other: Instance, nodes: int, gpus: int, before: float
) -> Offer | None:
    is_the_same = other == now and nodes == usage.nodes
    if is_the_same or not _holds(usage, other, nodes, gpus):
        return None
    parts = _speeds(usage, now, other, nodes, gpus)
    if parts is None:
        return None
    rest = 1 - sum(usage.share(part) for part in parts)
    seconds = _range(
        usage.seconds
        * (rest + sum(usage.share(p) / (s * _doubted(s, d)) for p, s in parts.items()))
        for d in (DOUBT, 0.0, -DOUBT)
    )
    cost = _range(
        cost_of(other.price_per_hour, each, nodes)
        for each in (seconds.low, seconds.middle, seconds.high)
    )
    saving = _range(saving_of(before, c) for c in (cost.high, cost.middle, cost.low))
    if saving.middle < LEAST_SAVING or saving.low <= 0:
        return None
    return Offer(
        other.name,
        nodes,
        gpus,
        seconds,
        cost,
        saving,
        tuple(_assumptions(usage, parts, other, gpus)),
        f"run 200 steps on {nodes} x {other.name}, and compare both runs with "
        "`tdbg report OLD NEW`",
    )


def _range(values: Iterable[float]) -> Range:
    low, middle, high = values
    return Range(low, middle, high)


def _doubted(speed: float, doubt: float) -> float:
    """Return what a speed is multiplied by: one that does not change is certain."""
    return 1.0 if speed == 1 or math.isinf(speed) else 1 + doubt


def _holds(usage: Usage, other: Instance, nodes: int, gpus: int) -> bool:
    """Return whether a training fits; what was not measured is taken to."""
    peak, room = usage.gpu_peak_bytes or 0, other.gpu_memory
    if gpus and room is not None and peak > DEVICE_FILL * room * GIB:
        return False
    if usage.memory_peak_bytes:
        on_one = usage.memory_peak_bytes * usage.nodes / nodes
        if HOST_ROOM * on_one > other.memory * GIB:
            return False
    needed = usage.useful_cores or usage.cores_used or 0
    shrunk = gpus / usage.gpus if usage.gpus else 1
    return other.cpus * nodes >= math.floor(needed * shrunk)


def _speeds(
    usage: Usage, now: Instance, other: Instance, nodes: int, gpus: int
) -> Mapping[frozenset[str], float] | None:
    """Return how much faster each part of the time would be; None: nobody can say."""
    cores_now = usage.cores or now.cpus * usage.nodes
    useful = usage.useful_cores or usage.cores_used or cores_now
    had, has = min(cores_now, useful), min(other.cpus * nodes, useful)
    cores = has / had if had else 1.0
    if not usage.gpus:
        # Arithmetic on cores that the run did not use is not promised to be faster.
        return {LOADER: cores, DEVICE: min(cores, 1.0)}
    device = gpus / usage.gpus
    if (other.gpu, other.relative_speed) != (now.gpu, now.relative_speed):
        if not other.relative_speed or not now.relative_speed:
            return None
        device *= other.relative_speed / now.relative_speed
    return {
        LOADER: cores * min(gpus / usage.gpus, 1.0) if cores < 1 else cores,
        DEVICE: device,
        COMMUNICATION: _of_network(usage, now, other, nodes, gpus),
    }


def _of_network(
    usage: Usage, now: Instance, other: Instance, nodes: int, gpus: int
) -> float:
    if gpus <= 1:
        return math.inf
    ring = ((usage.gpus - 1) / usage.gpus) / ((gpus - 1) / gpus)
    # A step of fewer devices is as many bytes, in as many more steps.
    ring *= gpus / usage.gpus
    crosses = usage.nodes > 1 and nodes > 1
    if crosses and now.network_gbps and other.network_gbps:
        return ring * other.network_gbps / now.network_gbps
    return ring


def _assumptions(
    usage: Usage,
    parts: Mapping[frozenset[str], float],
    other: Instance,
    gpus: int,
) -> Iterator[str]:
    for part, speed in parts.items():
        share = usage.share(part)
        if share and speed != 1 and not math.isinf(speed):
            yield (
                f"{_WORDS[part]} ({100 * share:.3g} % of the time) is {speed:.2g} "
                "times as fast, give or take 20 %"
            )
    if gpus != usage.gpus:
        yield f"all samples go through {plural(gpus, 'GPU')} instead of {usage.gpus}"
    if gpus and not (usage.gpu_peak_bytes and other.gpu_memory):
        yield "the model fits into the memory of the GPU, which nobody measured"
    if not usage.memory_peak_bytes:
        yield "the memory of the host suffices, which nobody measured"
    if not any(s != 1 for p, s in parts.items() if usage.share(p)):
        yield "nothing that the run used is slower there"
