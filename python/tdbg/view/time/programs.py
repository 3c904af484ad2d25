"""What the program did: operators of a window, and Python lines by phase.

Thread safety: pure functions over values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tdbg.run.json_values import is_integer, list_of, mapping_of
from tdbg.run.profile_tables import Phase
from tdbg.run.program_lines import innermost_of_program
from tdbg.trial import EventRecord
from tdbg.view.time.phases import NAMES, ORDER

__all__ = [
    "Line",
    "Operator",
    "Operators",
    "lines_of",
    "newest_lines",
    "operators_of",
    "short_place",
]

# Operators below this share of the time are left out, and counted.
LEAST_SHARE = 0.02
MOST_OPERATORS = 30
# Of a window, what torch marks as an operator and is waiting, which the phases show.
NO_OPERATORS = ("enumerate(DataLoader)#", "ProfilerStep#")
MOST_LINES = 5
# Lines at which the sampler looked more rarely are left out.
LEAST_LOOKS = 0.01
_RANK = re.compile(r"train-(\d{1,9})-")
# Of the path of a program, so many parts are shown.
MOST_FOLDERS = 3
# What stands before the name of a package in the path of its files.
_PACKAGE = re.compile(
    r".*?/(?:site-packages|dist-packages)/|.*?/lib/python3\.\d+/|.*/python/(?=tdbg/)"
    r"|<frozen "
)


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
        if is_integer(own) and own > 0 and not name.startswith(NO_OPERATORS):
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
        place: ``file:line function``, with the whole path.
        caller: The line of the program that called it, if a library has *place*; empty
            if the program has it, or nobody knows.
        share: In which share of the looks at this phase, 0 to 1.
        share_of_all: In which share of all looks.
        n: How often.
    """

    phase: Phase
    place: str
    caller: str
    share: float
    share_of_all: float
    n: int

    @property
    def phase_name(self) -> str:
        """The name that users know, of the phase."""
        return NAMES[self.phase]

    @property
    def short_place(self) -> str:
        """The place without the folders in which packages and programs lie."""
        return short_place(self.place)

    @property
    def short_caller(self) -> str:
        """The caller, likewise."""
        return short_place(self.caller)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {
            **asdict(self),
            "phase": self.phase_name,
            "short_place": self.short_place,
            "short_caller": self.short_caller,
        }


def short_place(place: str) -> str:
    """Return a place as people recognize it.

    Of packages, the path begins with their name; of others, with two folders.

    Example:
        >>> short_place("/opt/lib/python3.11/site-packages/torch/_ops.py:95 call")
        'torch/_ops.py:95 call'
        >>> short_place("/home/ada/code/nets/train.py:36 main")
        'code/nets/train.py:36 main'
    """
    in_package = _PACKAGE.match(place)
    if in_package:
        return place[in_package.end() :]
    path, space, function = place.partition(" ")
    return "/".join(path.lstrip("/").split("/")[-MOST_FOLDERS:]) + space + function


def lines_of(
    events: Iterable[Mapping[str, Any]], most: int = MOST_LINES
) -> tuple[Line, ...]:
    """Return the Python lines at which the sampler found the training most, by phase.

    Args:
        events: What the run says of Python lines; other events are passed over.
        most: At most so many of each phase; none below 1 % of the time.
    """
    looks: Counter[tuple[Phase, str]] = Counter()
    times: dict[Phase, Counter[str]] = {}
    callers: dict[tuple[Phase, str], Counter[str]] = {}
    for phase, stack, count, period in _samples(events):
        place = stack[-1]
        looks[phase, place] += count
        times.setdefault(phase, Counter())[place] += count * period
        callers.setdefault((phase, place), Counter())[_caller(stack)] += count
    whole = sum(lines.total() for lines in times.values())
    return tuple(
        Line(
            phase,
            place,
            callers[phase, place].most_common(1)[0][0],
            time / lines.total(),
            time / whole,
            looks[phase, place],
        )
        for phase in ORDER
        if (lines := times.get(phase)) is not None
        for place, time in lines.most_common(most)
        if time >= LEAST_LOOKS * whole > 0
    )


def newest_lines(events: Iterable[EventRecord]) -> dict[int, Line]:
    """Return at which line of Python each rank was most, in its newest samples."""
    newest: dict[int, Mapping[str, Any]] = {}
    for event in events:
        rank = _RANK.match(event.writer)
        if rank is not None and event.data.get("what") == "python_lines":
            newest[int(rank[1])] = event.data
    found = {rank: lines_of([newest[rank]], most=1) for rank in sorted(newest)}
    return {
        rank: max(lines, key=lambda line: line.share_of_all)
        for rank, lines in found.items()
        if lines
    }


def _samples(
    events: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[Phase, list[str], int, int]]:
    """Yield phase, stack, number of looks, and ns from one to the next."""
    for each in events:
        if each.get("what") != "python_lines":
            continue
        # Windows look more often.
        period = each.get("period_ns")
        period = period if is_integer(period) and period > 0 else 1
        for sample in map(mapping_of, list_of(each.get("samples"))):
            stack, number = list_of(sample.get("stack")), sample.get("phase")
            count = sample.get("count")
            if stack and is_integer(count) and number in list(Phase):
                yield Phase(number), list(map(str, stack)), count, period


def _caller(stack: list[str]) -> str:
    """Return the innermost place in the program itself; empty if that is the last."""
    own = innermost_of_program(stack)
    return "" if own == stack[-1] else own
