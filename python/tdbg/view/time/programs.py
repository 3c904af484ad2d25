"""What the program did: operators of a window, and Python lines by phase.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tdbg.run.json_values import is_integer, list_of, mapping_of
from tdbg.run.profile_tables import Phase
from tdbg.view.time.phases import NAMES, ORDER

__all__ = ["Line", "Operator", "Operators", "lines_of", "operators_of"]

# Operators below this share of the time are left out, and counted.
LEAST_SHARE = 0.02
MOST_OPERATORS = 30
MOST_LINES = 5


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a window.

    Attributes:
        name: As the framework calls it.
        calls: How often it was called.
        self_ns: Its own time, without that of operators that it called.
        share: The share of that in all operators of the device, 0 to 1.
    """

    name: str
    calls: int
    self_ns: int
    share: float

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators of a device in the newest window.

    Attributes:
        device: "cpu", "cuda", ...
        window: Id of the window.
        total_ns: The time of all of them.
        listed: Those of 2 % or more, the greatest first.
        n_others: How many others there are.
    """

    device: str
    window: str
    total_ns: int
    listed: tuple[Operator, ...]
    n_others: int

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return asdict(self)


def operators_of(events: Iterable[Mapping[str, Any]]) -> list[Operators]:
    """Return the operators of each device, of its newest window.

    Args:
        events: What the run says of operators, oldest first; other events are passed
            over.
    """
    newest: dict[str, Mapping[str, Any]] = {}
    for each in events:
        if each.get("what") == "operators":
            newest[str(each.get("device", "cpu"))] = each
    return [_operators(device, data) for device, data in sorted(newest.items())]


def _operators(device: str, data: Mapping[str, Any]) -> Operators:
    on_device = device != "cpu"
    found: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for each in list_of(data.get("operators")):
        row = mapping_of(each)
        own = row.get("device_ns") if on_device else row.get("self_ns")
        if own is None:
            own = row.get("self_ns")
        name = str(row.get("name", ""))
        if is_integer(own) and own > 0:
            found[name] += own
            calls[name] += row["calls"] if is_integer(row.get("calls")) else 0
    total = sum(found.values())
    listed = tuple(
        Operator(name, calls[name], own, own / total)
        for name, own in found.most_common(MOST_OPERATORS)
        if own >= LEAST_SHARE * total
    )
    window = str(data.get("window", ""))
    return Operators(device, window, total, listed, len(found) - len(listed))


@dataclass(frozen=True, slots=True)
class Line:
    """A line of Python at which a phase was found.

    Attributes:
        phase: The phase.
        place: ``file:line function``.
        share: In which share of the looks at this phase, 0 to 1.
        share_of_all: In which share of all looks.
        n: How often.
    """

    phase: Phase
    place: str
    share: float
    share_of_all: float
    n: int

    @property
    def phase_name(self) -> str:
        """The name that users know, of the phase."""
        return NAMES[self.phase]

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {**asdict(self), "phase": self.phase_name}


def lines_of(
    events: Iterable[Mapping[str, Any]], most: int = MOST_LINES
) -> tuple[Line, ...]:
    """Return the Python lines at which the sampler found the training most, by phase.

    Args:
        events: What the run says of Python lines; other events are passed over.
        most: At most so many of each phase.
    """
    found: dict[Phase, Counter[str]] = {}
    for each in events:
        if each.get("what") != "python_lines":
            continue
        for sample in map(mapping_of, list_of(each.get("samples"))):
            stack, number = list_of(sample.get("stack")), sample.get("phase")
            count = sample.get("count")
            if not (stack and is_integer(count) and number in list(Phase)):
                continue
            found.setdefault(Phase(number), Counter())[str(stack[-1])] += count
    n_all = sum(sum(lines.values()) for lines in found.values())
    return tuple(
        Line(phase, place, n / lines.total(), n / n_all, n)
        for phase in ORDER
        if (lines := found.get(phase)) is not None
        for place, n in lines.most_common(most)
        if n > 0
    )
