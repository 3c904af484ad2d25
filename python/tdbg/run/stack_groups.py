"""What the stacks of a run say: processes at the same place, and who waits for whom."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tdbg.errors import TdbgError
from tdbg.run.profile_tables import Phase
from tdbg.run.program_lines import is_of_library
from tdbg.run.stacks import Frame, ProcessStack, ask_for_stacks

__all__ = ["StackGroup", "Stalls", "group_stacks", "say_where"]

# Functions of libraries that only call others.
_WRAPPERS = frozenset(
    {"wrapper", "inner", "_fn", "__call__", "_call_impl", "_wrapped_call_impl"}
)
_RANKS = re.compile(r"/torch/distributed/(?:distributed_c10d|rendezvous)\.py\Z")
_BATCH = re.compile(r"/torch/utils/data/dataloader\.py\Z")
_FETCH = re.compile(r"/torch/utils/data/_utils/worker\.py\Z")
_QUEUE = re.compile(r"/multiprocessing/(?:queues|connection|popen_\w+)\.py\Z")
# Most names of processes that a sentence has.
_MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Processes whose main threads are at the same place.

    Attributes:
        processes: The processes, by rank.
        waits_for: ``ranks``, ``batch`` or ``work`` (a loader worker without any), as
            far as the calls show; else "".
        place: What they do and where, such as "waits for other ranks in all_reduce at
            train.py:41 (train)".
        frames: The calls that they share, the innermost first.
    """

    processes: tuple[ProcessStack, ...]
    waits_for: str
    place: str
    frames: tuple[Frame, ...]

    @property
    def names(self) -> str:
        """Return "ranks 0-6", "rank 7", or "workers 0-3 of rank 1"."""
        return _names(self.processes)

    @property
    def sentence(self) -> str:
        """Return who does what, such as "rank 7 is at dataset.py:88 (load)"."""
        return f"{self.names} {self.place}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "processes": [each.name for each in self.processes],
            "waits_for": self.waits_for,
            "says": self.sentence,
            "frames": [frame._asdict() for frame in self.frames],
        }


def group_stacks(processes: Iterable[ProcessStack]) -> list[StackGroup]:
    """Put processes together that are at the same place, or do not answer alike.

    Returns:
        Ranks that wait for others, then other ranks, then loader workers.
    """
    found: dict[tuple[Any, ...], list[ProcessStack]] = {}
    for each in processes:
        owner = each.rank if each.kind == "worker" else -1
        key = (each.kind, owner, each.state, each.phase, each.main_frames)
        found.setdefault(key, []).append(each)
    groups = [_group(members) for members in found.values()]
    order = {"ranks": 0, "batch": 1, "": 2, "work": 4}
    return sorted(
        groups,
        key=lambda group: (
            group.processes[0].kind == "worker",
            order[group.waits_for],
            group.processes[0].rank,
        ),
    )


def say_where(processes: Sequence[ProcessStack]) -> str:
    """Say in one or two sentences where a run is, and who waits for whom.

    Example: "Ranks 0-6 wait for other ranks in all_reduce at train.py:41 (train);
    rank 7 is at dataset.py:88 (load)."

    Returns:
        An empty text if there is no process.
    """
    groups = [group for group in group_stacks(processes) if group.waits_for != "work"]
    waits_for_batch = any(group.waits_for == "batch" for group in groups)
    # What workers do matters to a rank that waits for them.
    shown = [
        group
        for group in groups
        if group.processes[0].kind == "rank"
        or waits_for_batch
        or group.processes[0].state not in {"answered", "unseen"}
    ]
    text = "; ".join(group.sentence for group in shown[:_MOST_NAMES])
    if not text:
        return ""
    more = len(shown) - _MOST_NAMES
    rest = f"; and {more} more" if more > 0 else ""
    return f"{text[0].upper()}{text[1:]}{rest}."


def _group(members: list[ProcessStack]) -> StackGroup:
    first = members[0]
    is_plural = len(members) > 1
    if first.state != "answered":
        place = _NO_ANSWER[first.state][is_plural]
        return StackGroup(tuple(members), "", place, ())
    whole = _of_its_own(first)
    frames = _without_tdbg(first, whole)
    waits_for = _waits_for(first, frames)
    place = _place(frames, waits_for, first.phase, is_plural=is_plural)
    return StackGroup(tuple(members), waits_for, place, whole)


def _of_its_own(process: ProcessStack) -> tuple[Frame, ...]:
    """Leave out calls that a forked worker has from the process that forked it."""
    frames = process.main_frames
    if process.kind == "worker":
        for i, frame in enumerate(frames):
            if _FETCH.search(frame.file) and frame.function == "_worker_loop":
                return frames[: i + 1]
    return frames


_NO_ANSWER = {
    "stopped": (
        "is stopped by a signal and cannot answer",
        "are stopped by a signal and cannot answer",
    ),
    "silent": ("is alive but does not answer", "are alive but do not answer"),
    "dead": ("has died", "have died"),
    "unseen": (
        "does not answer and is on another machine or in another container",
        "do not answer and are on other machines or in other containers",
    ),
    "taken": (
        "cannot answer, because the program handles tdbg's signal itself",
        "cannot answer, because the program handles tdbg's signal itself",
    ),
    "closed": (
        "cannot answer, because the program has closed tdbg's file",
        "cannot answer, because the program has closed tdbg's file",
    ),
}


def _without_tdbg(
    process: ProcessStack, frames: tuple[Frame, ...]
) -> tuple[Frame, ...]:
    """Leave out the calls of tdbg itself."""
    own = process.own_folder
    return tuple(x for x in frames if not own or not x.file.startswith(own))


def _waits_for(process: ProcessStack, frames: tuple[Frame, ...]) -> str:
    inside = _inside(frames)
    if any(_RANKS.search(frame.file) for frame in inside):
        return "ranks"
    if process.phase == Phase.COMMUNICATION:
        return "ranks"
    if process.kind == "worker":
        loop = next((i for i, x in enumerate(frames) if _FETCH.search(x.file)), 0)
        is_idle = loop > 0 and _QUEUE.search(frames[loop - 1].file) is not None
        return "work" if is_idle and frames[loop].function == "_worker_loop" else ""
    takes = ("_try_get_data", "_get_data", "_next_data", "__next__")
    if any(_BATCH.search(x.file) and x.function in takes for x in inside):
        return "batch"
    return "batch" if process.phase == Phase.DATA_WAIT else ""


def _inside(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the calls of libraries inside the innermost one of the program."""
    for i, frame in enumerate(frames):
        if not is_of_library(frame.file):
            return frames[:i]
    return frames


def _place(
    frames: tuple[Frame, ...], waits_for: str, phase: Phase | None, *, is_plural: bool
) -> str:
    if waits_for == "work":
        return "wait for work" if is_plural else "waits for work"
    inside = _inside(frames)
    own = frames[len(inside) :]
    at = ""
    if own:
        at = f"at {PurePath(own[0].file).name}:{own[0].line} ({own[0].function})"
    elif inside:
        last = inside[-1]
        at = f"at {PurePath(last.file).name}:{last.line} ({last.function})"
    called = _called(inside, waits_for)
    verb = ("waits", "wait") if waits_for else ("is", "are")
    what = {
        "ranks": " for other ranks",
        "batch": " for a batch of the data loader",
        "": "",
    }[waits_for]
    within = f" in {called}" if called and own and waits_for in {"", "ranks"} else ""
    in_phase = ""
    if phase is not None and not waits_for and phase != Phase.OTHER:
        in_phase = f", in the phase {phase.name.lower().replace('_', ' ')}"
    return f"{verb[is_plural]}{what}{within} {at}{in_phase}".rstrip()


def _called(inside: tuple[Frame, ...], waits_for: str) -> str:
    """Return the function of a library that the program called."""
    if waits_for == "ranks":
        ranks = [x for x in inside if _RANKS.search(x.file)]
        inside = tuple(ranks) or inside
    for frame in reversed(inside):
        if frame.function not in _WRAPPERS:
            return frame.function
    return inside[-1].function if inside else ""


def _names(processes: Sequence[ProcessStack]) -> str:
    first = processes[0]
    if len(processes) == 1:
        return first.name
    if first.kind == "rank":
        return f"ranks {_ranges([each.rank for each in processes])}"
    workers = _ranges([each.worker for each in processes])
    return f"workers {workers} of rank {first.rank}"


def _ranges(numbers: Sequence[int]) -> str:
    """Write numbers as 0-6, 9."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


class Stalls:
    """Asks the processes of a run where they are.

    Args:
        run: The directory of the run.
    """

    def __init__(self, run: str | os.PathLike[str]) -> None:
        self._run = run
        self._said: tuple[int, str] | None = None

    def where(self, step: int) -> str:
        """Return where the training stands before a step; "" if nobody answers."""
        if self._said is None or self._said[0] != step:
            try:
                said = say_where(ask_for_stacks(self._run))
            except (TdbgError, OSError):  # Such as a run that others own.
                said = ""
            self._said = step, said
        return self._said[1]
