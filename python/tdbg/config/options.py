"""Options of a session: how it writes, which ranks write, what it may cost."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tdbg.config.messages import check_choice, check_flag, nearest, whole_number
from tdbg.config.retention import Retention
from tdbg.errors import ConfigurationError

__all__ = [
    "AUTO",
    "OFF",
    "KeyValueStore",
    "SessionOptions",
    "is_disabled",
    "number_or_word",
    "parse_budget",
    "parse_probes",
    "parse_workers",
]


_ONE, _ALL = "one", "all"


class KeyValueStore(Protocol):
    """A key-value store that all ranks share.

    Its methods raise nothing but OSError and RuntimeError, and block for no longer
    than one exchange with the store takes.
    """

    def post(self, key: str, value: bytes) -> None:
        """Store the value; every later read sees it."""

    def look(self, key: str) -> bytes | None:
        """Return the value, or None if no rank has posted one; never waits."""

    def settle(self, key: str, value: str) -> str:
        """Return the value of the first rank that settled this key."""

    def keep_pace(self) -> bool:
        """Wait for the work that this rank gave its device before the previous call.

        Returns:
            Whether the rank has a device that works asynchronously.
        """


def parse_workers(include_workers: object, world_size: int) -> tuple[int, ...]:
    """Return the ranks that write, ascending.

    Args:
        include_workers: "one", the first of all; "all"; or ranks.
        world_size: How many ranks there are.

    Raises:
        ConfigurationError: If it is none of these, or no rank is left.
    """
    if include_workers == _ONE:
        return (0,)
    if include_workers == _ALL:
        return tuple(range(world_size))
    if isinstance(include_workers, str) or not isinstance(include_workers, Iterable):
        valid = (_ONE, _ALL)
        msg = (
            f"include_workers: unknown {include_workers!r}; "
            f"{nearest(include_workers, valid)} A list of ranks is valid, too"
        )
        raise ConfigurationError(msg)
    ranks = list(include_workers)
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int):
            msg = f"include_workers: {rank!r} is not a rank: use numbers from 0 on"
            raise ConfigurationError(msg)
        if not 0 <= rank < world_size:
            msg = (
                f"include_workers: there is no rank {rank}: "
                f"the training has {world_size}, counted from 0"
            )
            raise ConfigurationError(msg)
    if not ranks:
        msg = "include_workers: an empty list; use 'one', 'all', or ranks"
        raise ConfigurationError(msg)
    return tuple(sorted(set(ranks)))


VARIABLE = "TDBG_BUDGET"
AUTO = "auto"  # That of ``watch`` and ``tdbg run``: docs/overhead.md.
OFF = "off"


def number_or_word(text: str) -> float | str:
    """Return a budget as somebody typed it: a number where it is one."""
    try:
        return float(text)
    except ValueError:
        return text


def parse_budget(value: object) -> float | str | None:
    """Return the budget: a share, AUTO, or None for no limit.

    Args:
        value: What was given; None: what the environment says, or no limit.

    Raises:
        ConfigurationError: If it is no share above 0 and up to 1, nor one of the words.
    """
    name = "budget"
    if value is None:
        text = os.environ.get(VARIABLE, "").strip()
        if not text:
            return None
        name, value = VARIABLE, number_or_word(text)
    if value == AUTO:
        return AUTO
    if value == OFF or value is False:  # What YAML makes of the word.
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0.0 < float(value) <= 1.0:  # type: ignore[arg-type]
        msg = (
            f"{name} must be a share of the training's time above 0 and up to 1, "
            f"such as 0.02 for 2 %, or 'auto' or 'off', not {value!r}"
        )
        raise ConfigurationError(msg)
    return float(value)  # type: ignore[arg-type]


PROBES_VARIABLE = "TDBG_PROBES"
_SWITCH = {
    "0": False,
    "off": False,
    "false": False,
    "1": True,
    "on": True,
    "true": True,
}


def parse_probes(value: object) -> bool:
    """Return whether a model may be probed.

    Args:
        value: What was given; None: what the environment says, or yes.

    Raises:
        ConfigurationError: If it is neither true nor false.
    """
    if value is None:
        text = os.environ.get(PROBES_VARIABLE, "").strip().lower()
        if text and text not in _SWITCH:
            msg = f"{PROBES_VARIABLE} must be 1 or 0, not {text!r}"
            raise ConfigurationError(msg)
        return _SWITCH.get(text, True)
    if not isinstance(value, bool):
        msg = f"probes must be true or false, not {value!r}"
        raise ConfigurationError(msg)
    return value


DISABLED_VARIABLE = "TDBG_DISABLED"
_CHOICES = {
    "on_stop": ("raise", "flag"),
    "overflow": ("block", "drop", "sample"),
    "codec": ("none", "auto", "max"),
}
MAX_THREADS = 256
# The least number of bytes of each.
_BYTES = {"queue_bytes": 1, "min_free_bytes": 0, "spool_bytes": 1 << 20}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """The options of a session: how it writes, and how it obeys a stop.

    Args:
        on_stop: ``raise`` TrainingStopped at the next root forward, or only
            ``flag`` it.
        overflow: When staging memory is full: ``block`` while the writer makes
            progress, ``drop``, or ``sample``: keep the values of whole steps, and
            of as many as the disk takes (docs/overhead.md).
        queue_bytes: Bound of staging memory; None: the core's.
        min_free_bytes: Below so much free disk space nothing is written; None:
            the core's.
        spool_bytes: Bound of what waits on this machine to be sent to a URL; None:
            2 GiB.
        codec: How raw values are stored: "none", "auto" or "max".
        retention: What the run keeps; None: everything.
        precise: Statistics of small floats as exactly as those of float64.
        threads: The most threads that reduce one large tensor.
        budget: Share of the training's time that capture may cost, ``"auto"`` or
            ``"off"``; None: that of the environment (``TDBG_BUDGET``), or no limit.
        dry_run: Do everything but write.
        probes: Whether a copy of the model may be called to see what it computes;
            None: as the environment says (``TDBG_PROBES``), or yes.
        rank: The rank of this process.
        world_size: The number of ranks in the training.
        include_workers: The ranks that write: "one" (the first), "all", or a list.
        rank_store: The store that all ranks share; None: ranks cannot agree on steps.
        launch: The launcher's name of this start; may be empty.

    Raises:
        ConfigurationError: If a value is bad.
    """

    on_stop: str = "raise"
    overflow: str = "block"
    queue_bytes: int | None = None
    min_free_bytes: int | None = None
    spool_bytes: int | None = None
    codec: str = "auto"
    retention: Retention | None = None
    precise: bool = False
    threads: int = 1
    budget: float | str | None = None
    dry_run: bool = False
    probes: bool | None = None
    rank: int = 0
    world_size: int = 1
    include_workers: str | Sequence[int] = "one"
    rank_store: KeyValueStore | None = None
    launch: str = ""

    def __post_init__(self) -> None:
        for name, valid in _CHOICES.items():
            check_choice(name, getattr(self, name), valid)
        for name, least in _BYTES.items():
            value = getattr(self, name)
            if value is not None and whole_number(value, least) is None:
                from_ = f" from {least}" if least > 1 else ""
                msg = f"{name} must be a number of bytes{from_}, not {value!r}"
                raise ConfigurationError(msg)
        check_flag("precise", self.precise)
        if whole_number(self.threads, 1, MAX_THREADS) is None:
            msg = f"threads must be from 1 to {MAX_THREADS}, not {self.threads!r}"
            raise ConfigurationError(msg)
        object.__setattr__(self, "budget", parse_budget(self.budget))
        object.__setattr__(self, "probes", parse_probes(self.probes))
        if not 0 <= self.rank < self.world_size:
            msg = f"rank {self.rank} is not one of {self.world_size}"
            raise ConfigurationError(msg)
        n_writers = len(parse_workers(self.include_workers, self.world_size))
        object.__setattr__(self, "retention", Retention.of(self.retention))
        if self.retention is not None:
            self.retention.check_share(n_writers)

    @property
    def workers(self) -> tuple[int, ...]:
        """The ranks that write, ascending."""
        return parse_workers(self.include_workers, self.world_size)


def is_disabled() -> bool:
    """Return whether ``TDBG_DISABLED`` is set to anything but ``0``."""
    return os.environ.get(DISABLED_VARIABLE, "0") not in {"", "0"}
