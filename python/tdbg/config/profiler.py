"""``ProfilerConfig``: what a run records about its time, as values.

Implements docs/profiler-windows.md, "Settings".  Everything here is frozen and checked
when it is made.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tdbg.config.messages import (
    check_choice,
    check_flag,
    check_known,
    nearest,
    short,
    whole_number,
)
from tdbg.errors import ConfigurationError

__all__ = [
    "CHANGEABLE",
    "FUNCTION_PROFILERS",
    "LEAST_PYTHON_INTERVAL",
    "LEAST_SYSTEM_INTERVAL",
    "TIMERS",
    "VARIABLE",
    "ProfilerConfig",
    "WindowConfig",
    "parse_items",
]

VARIABLE = "TDBG_PROFILER"
LEAST_SYSTEM_INTERVAL = 0.05
LEAST_PYTHON_INTERVAL = 0.001
_MOST_SECONDS = 3600.0
# What a profiler of operators keeps in memory grows with the window.
_MOST_STEPS = 10_000
FUNCTION_PROFILERS = ("cprofile", "pyinstrument")
TIMERS = ("default", "total_time", "cpu_time", "off_cpu_time")
_OF_OPERATORS = ("shapes", "stacks", "memory", "spans")
_OF_STEPS = ("start_step", "num_steps", "every")
_OF_TIME = ("start_time", "duration")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
    """A window: a few steps in which operators or functions are timed one by one.

        WindowConfig(start_step=100, num_steps=5)
        WindowConfig(start_time=1_790_000_000.0, duration=2.0, functions="cprofile")

    A window by time begins and ends between two steps, and has at least one.

    Args:
        start_step: Number of its first training step; None: the next one.
        num_steps: Number of training steps, by default 1.
        every: Training steps from the start of one window to that of the next; None:
            there is one window.
        start_time: When it begins, in seconds since 1970; None: now.
        duration: How long it is, in seconds; None: *num_steps* apply.
        operators: Whether the framework's profiler times operators and kernels.
        shapes: Whether it tells operators apart by the shapes of their inputs.
        stacks: Whether it tells operators apart by the line that called them.
        memory: Whether it counts the bytes that operators allocate.
        spans: Whether each call of an operator is stored, for the timeline.
        functions: What times functions of Python: "cprofile" or "pyinstrument"; None:
            nothing does.
        timer: What cProfile measures: "total_time", "cpu_time", "off_cpu_time" (the
            time in which the process waits), or "default".

    Raises:
        ConfigurationError: If an argument is bad, or step and time are given at once.
    """

    start_step: int | None = None
    num_steps: int | None = None
    every: int | None = None
    start_time: float | None = None
    duration: float | None = None
    operators: bool = True
    shapes: bool = False
    stacks: bool = False
    memory: bool = False
    spans: bool = False
    functions: str | None = None
    timer: str = "default"

    def __post_init__(self) -> None:
        self._check_numbers()
        by_step = [name for name in _OF_STEPS if getattr(self, name) is not None]
        by_time = [name for name in _OF_TIME if getattr(self, name) is not None]
        if by_step and by_time:
            msg = (
                f"a window is given by steps or by time, not both: remove "
                f"{' and '.join(by_step)}, or {' and '.join(by_time)}"
            )
            raise ConfigurationError(msg)
        if self.every is not None and self.every <= self.n_steps:
            msg = (
                f"every must be more steps than the window has ({self.n_steps}), "
                f"not {self.every}"
            )
            raise ConfigurationError(msg)
        self._check_kinds()

    def _check_numbers(self) -> None:
        for name, least, most in (
            ("start_step", 0, 1 << 40),
            ("num_steps", 1, _MOST_STEPS),
            ("every", 1, 1 << 40),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            number = whole_number(value, least, most)
            if number is None:
                msg = f"{name} must be from {least} to {most:,} steps, not {value!r}"
                raise ConfigurationError(msg)
            object.__setattr__(self, name, number)  # The way of a frozen dataclass.
        for name, longest in (("start_time", 1e11), ("duration", _MOST_SECONDS)):
            value = getattr(self, name)
            if value is not None:
                seconds = _seconds(name, value, 0.0, longest)
                object.__setattr__(self, name, seconds)

    def _check_kinds(self) -> None:
        for name in ("operators", *_OF_OPERATORS):
            check_flag(name, getattr(self, name))
        if self.functions is not None:
            check_choice("functions", self.functions, FUNCTION_PROFILERS)
        check_choice("timer", self.timer, TIMERS)
        if self.timer != "default" and self.functions != "cprofile":
            msg = f"timer={self.timer!r} needs functions='cprofile'"
            raise ConfigurationError(msg)
        if not self.operators:
            of_operators = [name for name in _OF_OPERATORS if getattr(self, name)]
            if of_operators:
                msg = f"{of_operators[0]}=True needs operators=True"
                raise ConfigurationError(msg)
            if self.functions is None:
                msg = (
                    "the window takes nothing: give operators=True, or functions="
                    "'cprofile' or 'pyinstrument'"
                )
                raise ConfigurationError(msg)

    @property
    def n_steps(self) -> int:
        """Return the number of steps of a window by steps."""
        return 1 if self.num_steps is None else self.num_steps

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return what it takes, as events name it: operators, shapes, ..., cprofile."""
        flags = [name for name in ("operators", *_OF_OPERATORS) if getattr(self, name)]
        return (*flags, *([self.functions] if self.functions else ()))

    def to_json(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults."""
        return {
            item.name: getattr(self, item.name)
            for item in dataclasses.fields(self)
            if getattr(self, item.name) != item.default
        }

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Make a window from settings by their names.

        Raises:
            ConfigurationError: If a name is unknown, or a value is bad.
        """
        check_known(given, [item.name for item in dataclasses.fields(cls)])
        return cls(**given)


CHANGEABLE = ("enabled", "system_interval", "python_interval", "budget")
"""Settings that a request can change while the training runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerConfig:
    """What a run records about its time, beside its tensors.

        Hook("runs/digits", profiler=ProfilerConfig(system_interval=0.1))

    Args:
        enabled: Whether anything is recorded.
        system_interval: Seconds from one sample of the machine to the next, at least
            0.05.
        python_interval: Seconds from one sample of the Python stack to the next, at
            least 0.001; None: none are taken.
        windows: Windows, each with a start of its own.  At most one is open at a time:
            one that is due meanwhile begins when the other has ended.
        budget: The share of the training's time that windows may cost.  What would
            cost more is put off.
        fingerprints: Whether a hash of each sample is recorded, by which rules find
            samples again: docs/fingerprints.md.

    Raises:
        ConfigurationError: If an argument is bad.
    """

    enabled: bool = True
    system_interval: float = 0.5
    python_interval: float | None = 0.05
    windows: tuple[WindowConfig, ...] = ()
    budget: float = 0.01
    fingerprints: bool = True

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)  # The way of a frozen dataclass.

        check_flag("enabled", self.enabled)
        check_flag("fingerprints", self.fingerprints)
        for name, least in (
            ("system_interval", LEAST_SYSTEM_INTERVAL),
            ("python_interval", LEAST_PYTHON_INTERVAL),
        ):
            value = getattr(self, name)
            if name == "python_interval" and (value is None or value is False):
                put(name, None)
                continue
            put(name, _seconds(name, value, least, _MOST_SECONDS))
        put("windows", _windows(self.windows))
        share: object = self.budget
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or not 0.0 < float(share) <= 1.0:  # type: ignore[arg-type]
            msg = (
                "profiler: budget must be a share of the training's time above 0 and "
                f"up to 1, such as 0.01 for 1 %, not {short(share)}"
            )
            raise ConfigurationError(msg)
        put("budget", float(share))  # type: ignore[arg-type]

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """Return a copy in which some of ``CHANGEABLE`` are different.

        Raises:
            ConfigurationError: If a name is none of these, or a value is bad.
        """
        check_known(settings, CHANGEABLE, "a running training cannot change")
        return dataclasses.replace(self, **settings)

    def to_json(self) -> dict[str, Any]:
        """Return all settings, for the configuration event of a run."""
        values = {
            item.name: getattr(self, item.name) for item in dataclasses.fields(self)
        }
        return {**values, "windows": [window.to_json() for window in self.windows]}

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the settings that somebody gave in one of their forms.

        Args:
            value: Settings, whole or by their names; True or False; or a text:
                ``off``, ``on``, or ``system_interval=0.1, start_step=100``, in which
                the settings of a window make one window.

        Raises:
            ConfigurationError: If it is none of these, or a value is bad.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, bool):
            return cls(enabled=value)
        if isinstance(value, str):
            return cls._of_text(value)
        if isinstance(value, Mapping):
            check_known(value, [item.name for item in dataclasses.fields(cls)])
            return cls(**value)
        msg = (
            "profiler must be True, False, a ProfilerConfig, or text such as "
            f"'off' or 'start_step=100, num_steps=5', not {short(value)}"
        )
        raise ConfigurationError(msg)

    @classmethod
    def _of_text(cls, text: str) -> Self:
        word = text.strip().lower()
        if word in _WORDS:
            return cls.of(_WORDS[word])
        own = [item.name for item in dataclasses.fields(cls) if item.name != "windows"]
        of_window = [item.name for item in dataclasses.fields(WindowConfig)]
        given = parse_items(text)
        check_known(given, [*own, *of_window])
        window = {name: given.pop(name) for name in of_window if name in given}
        return cls(**given, windows=(WindowConfig(**window),) if window else ())


_WORDS = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


def parse_items(text: str) -> dict[str, Any]:
    """Parse settings as somebody types them, with commas between them.

    Raises:
        ConfigurationError: If a part is not ``name=value``, or a name appears twice.

    Example:
        >>> parse_items("system_interval=0.1, spans=on, functions=cprofile")
        {'system_interval': 0.1, 'spans': True, 'functions': 'cprofile'}
    """
    found: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, is_pair, value = (each.strip() for each in part.partition("="))
        if not is_pair or not name or not value:
            hint = nearest(part, _WORDS) if len(found) == 0 else "write name=value"
            msg = f"{short(part)} is not a setting such as system_interval=0.1; {hint}"
            raise ConfigurationError(msg)
        if name in found:
            msg = f"{name} appears twice in {short(text)}"
            raise ConfigurationError(msg)
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    word = text.lower()
    if word == "none":
        return None
    if word in _WORDS and word not in {"0", "1"}:
        return _WORDS[word]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _seconds(name: str, value: object, least: float, most: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    number = float(value) if is_number else math.nan  # type: ignore[arg-type]
    if not least <= number <= most or number <= 0.0:
        from_least = f"from {least:g}" if least else "above 0"
        msg = f"{name} must be {from_least} to {most:g} seconds, not {short(value)}"
        raise ConfigurationError(msg)
    return number


def _windows(given: object) -> tuple[WindowConfig, ...]:
    if isinstance(given, WindowConfig | Mapping):
        given = (given,)
    if isinstance(given, str) or not isinstance(given, Iterable):
        msg = f"windows must be a list of windows, not {short(given)}"
        raise ConfigurationError(msg)
    found = []
    for each in given:
        if isinstance(each, Mapping):
            found.append(WindowConfig.parse(each))
        elif isinstance(each, WindowConfig):
            found.append(each)
        else:
            msg = f"windows: expected a WindowConfig, not {short(each)}"
            raise ConfigurationError(msg)
    return tuple(found)
