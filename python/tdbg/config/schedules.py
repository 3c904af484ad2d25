"""When to capture, and how much of it.

Implements docs/steps.md, "Two schedules".  Everything here is a value: frozen,
comparable, free of state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tdbg.config.messages import check_known, whole_number
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys

__all__ = [
    "SAVE_INTERVAL",
    "STATISTICS_INTERVAL",
    "Default",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
]

REDUCTIONS = ("min", "max", "median", "mean", "std", "variance", "sum", "prod")
NORMS = ("l1", "l2")


class Default(int):
    """An interval that tdbg chose: nobody wrote it down, and a budget may raise it."""

    __slots__ = ()


#: Steps from one capture of raw values to the next, unless the user says otherwise.
SAVE_INTERVAL = Default(500)
#: Steps from one statistics row of a tensor to the next, likewise.
STATISTICS_INTERVAL = Default(10)
# With more save_steps than this, the next one is not searched for.
_MANY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveConfigMode:
    """The schedules of one mode, in steps of that mode.

    Args:
        save_interval: Raw values are saved at every step that it divides; if you only
            give *save_steps*, at those alone.
        statistics_interval: Statistics are computed at every step that it divides, and
            wherever a value is saved.
        start_step: First step of both schedules.
        end_step: Step at which both end; 0 disables them, None never.
        save_steps: Steps at which values are saved as well, wherever they lie.

    An interval that is a ``Default`` was chosen by tdbg, any other one by the user.

    Raises:
        ConfigurationError: If an argument is no whole number, or out of range, or
            *end_step* is not above *start_step*.
    """

    save_interval: int = SAVE_INTERVAL
    statistics_interval: int = STATISTICS_INTERVAL
    start_step: int = 0
    end_step: int | None = None
    save_steps: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # The way of a frozen dataclass.
        for name, least in (
            ("save_interval", 1),
            ("statistics_interval", 1),
            ("start_step", 0),
            ("end_step", 0),
        ):
            value = getattr(self, name)
            if name != "end_step" or value is not None:
                set_field(self, name, _integer(name, value, least))
        steps: object = self.save_steps
        if isinstance(steps, str | int) or not isinstance(steps, Iterable):
            msg = f"save_steps must be a list of steps, not {steps!r}"
            raise ConfigurationError(msg)
        set_field(
            self, "save_steps", frozenset(_integer("save_steps", s, 0) for s in steps)
        )
        if self.end_step and self.end_step <= self.start_step:
            msg = (
                f"no step lies between start_step={self.start_step} and "
                f"end_step={self.end_step}: end_step is the first step after the "
                "schedules and must be greater than start_step; end_step=0 disables "
                "both schedules"
            )
            raise ConfigurationError(msg)

    def should_save(self, mode_step: int) -> bool:
        """Return whether raw values are saved at this step."""
        return mode_step in self.save_steps or (
            mode_step % self.save_interval == 0
            and self.saves_by_interval
            and self._is_within(mode_step)
        )

    def should_reduce(self, mode_step: int) -> bool:
        """Return whether statistics are computed at this step."""
        # In every step: no call where neither interval divides it.
        return (
            (
                mode_step % self.statistics_interval == 0
                or (mode_step % self.save_interval == 0 and self.saves_by_interval)
            )
            and self._is_within(mode_step)
        ) or mode_step in self.save_steps

    @property
    def saves_by_interval(self) -> bool:
        """Whether values are saved at other steps than ``save_steps``."""
        return not self.save_steps or not isinstance(self.save_interval, Default)

    @property
    def asks_for_values(self) -> bool:
        """Whether the user wrote down when values are saved."""
        return bool(self.save_steps) or not isinstance(self.save_interval, Default)

    @property
    def is_written(self) -> bool:
        """Whether the user wrote down when anything is captured."""
        is_default = isinstance(self.statistics_interval, Default)
        return self.asks_for_values or not is_default

    @property
    def is_empty(self) -> bool:
        """Whether ``end_step`` disables both schedules and ``save_steps`` is empty."""
        return self.end_step == 0 and not self.save_steps

    def steady_until(self, mode_step: int) -> int | None:
        """Return the next step at which the answers may change; None: they never do.

        This is a lower bound: it may be that nothing changes at that step.
        """
        if len(self.save_steps) > _MANY:
            return mode_step + 1
        changes = [step for step in self.save_steps if step > mode_step]
        if mode_step in self.save_steps:
            changes.append(mode_step + 1)
        if mode_step < self.start_step:
            changes.append(self.start_step)
        elif self.end_step is None or mode_step < self.end_step:
            if self.end_step is not None:
                changes.append(self.end_step)
            for interval in (self.save_interval, self.statistics_interval):
                if interval > 1:
                    phase = mode_step % interval
                    changes.append(mode_step + (interval - phase if phase else 1))
        return min(changes, default=None)

    def times(self, factor: int, *, keeps_written: bool = False) -> SaveConfigMode:
        """Return the same with both intervals so many times as long.

        Args:
            factor: How many times.
            keeps_written: Whether intervals that the user wrote stay as they are.

        Example:
            >>> SaveConfigMode(statistics_interval=10).times(4).statistics_interval
            40
        """
        if factor == 1:
            return self

        def longer(interval: int) -> int:
            is_default = isinstance(interval, Default)
            if keeps_written and not is_default:
                return interval
            return Default(interval * factor) if is_default else interval * factor

        return dataclasses.replace(
            self,
            save_interval=longer(self.save_interval),
            statistics_interval=longer(self.statistics_interval),
        )

    def _is_within(self, mode_step: int) -> bool:
        return self.start_step <= mode_step and (
            self.end_step is None or mode_step < self.end_step
        )


@dataclass(frozen=True, slots=True, init=False)
class SaveConfig:
    """The schedules of a hook or of a collection, by mode.

    The other arguments apply to modes that *mode_save_configs* leaves out; if they are
    left out as well, a collection follows its hook.

    Args:
        mode_save_configs: Schedules of single modes.
        save_interval: Raw values are saved at every step that it divides.
        statistics_interval: Statistics are computed at every step that it divides.
        start_step: First step of both schedules.
        end_step: Step at which both end; 0 disables them, None never.
        save_steps: Further steps at which values are saved.

    Raises:
        ConfigurationError: If a mode or a number is bad, as ``SaveConfigMode`` says.
    """

    modes: Mapping[ModeKeys, SaveConfigMode] = field(hash=False)
    base: SaveConfigMode

    def __init__(
        self,
        mode_save_configs: Mapping[ModeKeys, SaveConfigMode] | None = None,
        *,
        save_interval: int = SAVE_INTERVAL,
        statistics_interval: int = STATISTICS_INTERVAL,
        start_step: int = 0,
        end_step: int | None = None,
        save_steps: Iterable[int] | None = None,
    ) -> None:
        base = SaveConfigMode(
            save_interval=save_interval,
            statistics_interval=statistics_interval,
            start_step=start_step,
            end_step=end_step,
            save_steps=frozenset() if save_steps is None else save_steps,  # type: ignore[arg-type]
        )
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "modes", _modes(mode_save_configs or {}))

    @classmethod
    def parse(cls, value: object) -> SaveConfig:
        """Make schedules from a SaveConfig, a SaveConfigMode, or a mapping of modes.

        Raises:
            ConfigurationError: If *value* is none of these.
        """
        if isinstance(value, SaveConfig):
            return value
        if isinstance(value, SaveConfigMode):
            return cls(
                save_interval=value.save_interval,
                statistics_interval=value.statistics_interval,
                start_step=value.start_step,
                end_step=value.end_step,
                save_steps=value.save_steps,
            )
        if isinstance(value, Mapping):
            return cls(value)
        msg = f"save_config must be a SaveConfig, not {value!r}"
        raise ConfigurationError(msg)

    def of(
        self, mode: ModeKeys, inherited: SaveConfigMode | None = None
    ) -> SaveConfigMode:
        """Return the schedules of a mode; *inherited* are those of the hook."""
        if mode in self.modes:
            return self.modes[mode]
        if inherited is not None and self.modes and self.base == _DEFAULT:
            return inherited
        return self.base

    def as_json(self) -> dict[str, Any]:
        """Return what the collections event holds."""
        content: dict[str, Any] = _json(self.base)
        content["modes"] = {
            mode.name: _json(config) for mode, config in self.modes.items()
        }
        return content


@dataclass(frozen=True, slots=True)
class ReductionConfig:
    """Statistics instead of raw values.

    The statistics of a tensor are always computed together, so the lists change
    nothing; they are accepted, and checked, because smdebug has them.

    Args:
        reductions: Names among min, max, median, mean, std, variance, sum, prod.
        abs_reductions: The same names, for absolute values.
        norms: Names among l1, l2.
        abs_norms: The same names, for absolute values.
        save_raw_tensor: Whether raw values are saved as well; None: where a schedule
            has a ``save_interval`` or ``save_steps`` that the user wrote.
        save_shape: Ignored: shapes are always saved.

    Raises:
        ConfigurationError: If a name is unknown.
    """

    reductions: tuple[str, ...] = ()
    abs_reductions: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    abs_norms: tuple[str, ...] = ()
    save_raw_tensor: bool | None = False
    save_shape: bool = False

    def __post_init__(self) -> None:
        for name in ("reductions", "abs_reductions", "norms", "abs_norms"):
            valid = NORMS if name.endswith("norms") else REDUCTIONS
            given = getattr(self, name) or ()
            if isinstance(given, str) or not isinstance(given, Iterable):
                msg = f"{name} must be a list of names, not {given!r}"
                raise ConfigurationError(msg)
            names = tuple(given)
            check_known(names, valid, f"{name}: unknown")
            object.__setattr__(self, name, names)

    def saves_values(self, schedule: SaveConfigMode) -> bool:
        """Return whether raw values are saved by this schedule."""
        if self.save_raw_tensor is None:
            return schedule.asks_for_values
        return self.save_raw_tensor

    def as_json(self) -> dict[str, Any]:
        """Return what the collections event holds."""
        return dataclasses.asdict(self)


def _modes(given: object) -> dict[ModeKeys, SaveConfigMode]:
    if not isinstance(given, Mapping):
        msg = f"mode_save_configs must map modes to SaveConfigMode, not {given!r}"
        raise ConfigurationError(msg)
    result = {}
    for mode, config in given.items():
        if not isinstance(mode, ModeKeys):
            msg = f"mode_save_configs: {mode!r} is not a mode; use ModeKeys.TRAIN, ..."
            raise ConfigurationError(msg)
        if isinstance(config, Mapping):
            fields = [item.name for item in dataclasses.fields(SaveConfigMode)]
            check_known(config, fields)
            result[mode] = SaveConfigMode(**config)
        elif isinstance(config, SaveConfigMode):
            result[mode] = config
        else:
            msg = (
                f"mode_save_configs[{mode.name}] must be a SaveConfigMode, "
                f"not {config!r}"
            )
            raise ConfigurationError(msg)
    return result


def _integer(name: str, value: object, least: int) -> int:
    if isinstance(value, Default):
        return value
    # A bool is an int that nobody means; smdebug's configurations hold text.
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    number = whole_number(value)
    if number is None:
        msg = f"{name} must be a whole number, not {value!r}"
        raise ConfigurationError(msg)
    if number < least:
        msg = f"{name} must be at least {least}, not {number}"
        raise ConfigurationError(msg)
    return number


def _json(config: SaveConfigMode) -> dict[str, Any]:
    return {**dataclasses.asdict(config), "save_steps": sorted(config.save_steps)}


_DEFAULT = SaveConfigMode()
