"""``smdebug.core.save_config``: one interval, for values and statistics alike."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from typing import Any

from tdbg.compat.smdebug.exceptions import (
    SMDebugRuntimeError,
    SMDebugTypeError,
    SMDebugValueError,
    translated,
)
from tdbg.compat.smdebug.left_out import refuse
from tdbg.config import schedules
from tdbg.config.messages import check_known, nearest
from tdbg.modes import ModeKeys

__all__ = [
    "DEFAULT_SAVE_CONFIG_END_STEP",
    "DEFAULT_SAVE_CONFIG_INTERVAL",
    "DEFAULT_SAVE_CONFIG_SAVE_STEPS",
    "DEFAULT_SAVE_CONFIG_START_STEP",
    "SaveConfig",
    "SaveConfigMode",
    "n_edits",
]

DEFAULT_SAVE_CONFIG_INTERVAL = int(schedules.SAVE_INTERVAL)
DEFAULT_SAVE_CONFIG_START_STEP = 0
DEFAULT_SAVE_CONFIG_END_STEP = None
DEFAULT_SAVE_CONFIG_SAVE_STEPS: list[int] = []

# Counts what was changed within schedules, whichever collections have them.
_edits = itertools.count(1)
_latest = [0]


def n_edits() -> int:
    """Return how many times a ``SaveConfig`` was changed, counting all of them."""
    return _latest[0]


def _note_edit() -> None:
    _latest[0] = next(_edits)


def _field(name: str, text: str) -> Any:
    """Make a property of ``SaveConfigMode``; changes hold from the next step on."""

    def get(self: SaveConfigMode) -> Any:
        value = getattr(self.native, name)
        return sorted(value) if name == "save_steps" else value

    def put(self: SaveConfigMode, value: object) -> None:
        self._change(name, value)

    return property(get, put, doc=text)


def _field_of_modes(name: str) -> Any:
    """Make a property of ``SaveConfig`` that stands for all its modes."""

    def get(self: SaveConfig) -> Any:
        found = [getattr(self.get_save_config(mode), name) for mode in ModeKeys]
        if any(value != found[0] for value in found):
            msg = f"{name} differs by mode: use get_save_config(mode).{name}"
            raise SMDebugValueError(msg)
        return found[0]

    def put(self: SaveConfig, value: object) -> None:
        # One schedule may be that of several modes.
        for mode in [self.get_save_config(mode) for mode in ModeKeys]:
            setattr(mode, name, value)

    return property(get, put, doc=f"``{name}`` of all modes.")


class SaveConfigMode:
    """When the tensors of a mode are saved.

    Tensors are saved at each of ``save_steps``, and at steps s with ``start_step <= s <
    end_step`` that ``save_interval`` divides. Whole numbers may be given as text.
    What is changed later holds from the next step on.

    Raises:
        SMDebugValueError: If an argument is not a number, or out of range.
    """

    __slots__ = ("_is_fixed", "native")

    def __init__(
        self,
        save_interval: int | str | None = None,
        start_step: int | str | None = None,
        end_step: int | str | None = None,
        save_steps: list[int] | None = None,
    ) -> None:
        interval = (
            DEFAULT_SAVE_CONFIG_INTERVAL if save_interval is None else save_interval
        )
        self._is_fixed = False
        with translated():
            # smdebug knows one interval, for values and statistics alike.
            self.native = schedules.SaveConfigMode(
                save_interval=interval,  # type: ignore[arg-type]
                statistics_interval=interval,  # type: ignore[arg-type]
                start_step=0 if start_step is None else start_step,  # type: ignore[arg-type]
                end_step=end_step,  # type: ignore[arg-type]
                save_steps=[] if save_steps is None else save_steps,  # type: ignore[arg-type]
            )

    save_interval = _field("save_interval", "Tensors are saved at what it divides.")
    start_step = _field("start_step", "The first step.")
    end_step = _field("end_step", "The first step that is not saved; None: none is.")
    save_steps = _field("save_steps", "Further steps that are saved, sorted.")

    def copy(self, *, is_fixed: bool = False) -> SaveConfigMode:
        """Return a schedule of its own, which cannot be changed if *is_fixed*."""
        made = SaveConfigMode()
        made.native, made._is_fixed = self.native, is_fixed
        return made

    def check_changeable(self) -> None:
        """Refuse a change of what is fixed.

        Raises:
            SMDebugRuntimeError: If this is a schedule of a hook.
        """
        if self._is_fixed:
            msg = (
                "the schedules of a hook are given to it when it is made; change those "
                "of its collections"
            )
            raise SMDebugRuntimeError(msg)

    def _change(self, name: str, value: object) -> None:
        self.check_changeable()
        changed = {name: value}
        if name == "save_interval":
            changed["statistics_interval"] = value
        with translated():
            self.native = dataclasses.replace(self.native, **changed)  # type: ignore[arg-type]
        _note_edit()

    def should_save_step(self, step_num: int) -> bool:
        """Return whether tensors are saved at this step."""
        return self.native.should_save(step_num)

    def to_json_dict(self) -> dict[str, Any]:
        """Return a mapping in smdebug's form."""
        return {
            "save_interval": self.save_interval,
            "save_steps": self.save_steps,
            "start_step": self.start_step,
            "end_step": self.end_step,
        }

    @classmethod
    def from_dict(
        cls,
        params: Mapping[str, Any] | None,
        default_values: Mapping[str, Any] | None = None,
    ) -> SaveConfigMode | None:
        """Make a schedule from a mapping; returns None for None.

        Args:
            params: The arguments of the constructor.
            default_values: The arguments that *params* leaves out.

        Raises:
            SMDebugTypeError: If one of the two is not a mapping.
            SMDebugValueError: If a value is bad.
        """
        if params is None:
            return None
        names = ("save_interval", "start_step", "end_step", "save_steps")
        given: dict[str, Any] = {}
        sources: tuple[object, ...] = (default_values or {}, params)
        for source in sources:
            if not isinstance(source, Mapping):
                msg = f"{source!r} is not a mapping"
                raise SMDebugTypeError(msg)
            given.update({key: source[key] for key in names if key in source})
            with translated():
                check_known(source, names)
        return cls(**given)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SaveConfigMode):
            return NotImplemented
        return self.native == other.native

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{k}={v!r}" for k, v in self.to_json_dict().items())
        return f"SaveConfigMode({values})"


class SaveConfig:
    """When tensors are saved, by mode.

    Args:
        mode_save_configs: Schedules of single modes; other modes follow the hook.
        save_interval: As for ``SaveConfigMode``, for all modes.
        start_step: Likewise.
        end_step: Likewise.
        save_steps: Likewise.

    Raises:
        SMDebugValueError: If a mode or a number is bad.
    """

    __slots__ = ("mode_save_configs",)

    save_interval = _field_of_modes("save_interval")
    start_step = _field_of_modes("start_step")
    end_step = _field_of_modes("end_step")
    save_steps = _field_of_modes("save_steps")

    def __init__(
        self,
        mode_save_configs: Mapping[ModeKeys, SaveConfigMode | None] | None = None,
        save_interval: int | str | None = None,
        start_step: int | str | None = None,
        end_step: int | str | None = None,
        save_steps: list[int] | None = None,
    ) -> None:
        self.mode_save_configs: dict[ModeKeys, SaveConfigMode | None]
        if mode_save_configs is None:
            same = SaveConfigMode(save_interval, start_step, end_step, save_steps)
            self.mode_save_configs = dict.fromkeys(ModeKeys, same)
            return
        given: object = mode_save_configs
        if not isinstance(given, Mapping):
            msg = f"mode_save_configs must map modes to SaveConfigMode, not {given!r}"
            raise SMDebugValueError(msg)
        for mode, value in given.items():
            if not isinstance(mode, ModeKeys):
                msg = f"mode_save_configs: {mode!r} is not a mode; use modes.TRAIN, ..."
                raise SMDebugValueError(msg)
            if value is not None and not isinstance(value, SaveConfigMode):
                msg = f"mode_save_configs: {value!r} is not a SaveConfigMode"
                raise SMDebugValueError(msg)
        self.mode_save_configs = {
            mode: mode_save_configs.get(mode) for mode in ModeKeys
        }

    def get_save_config(self, mode: ModeKeys) -> SaveConfigMode:
        """Return the schedule of one mode.

        Raises:
            SMDebugValueError: If the mode follows the hook.
        """
        found = self.mode_save_configs[mode]
        if found is None:
            msg = f"mode {mode.name} follows the hook"
            raise SMDebugValueError(msg)
        return found

    def set_save_config(self, mode: ModeKeys, save_config_mode: SaveConfigMode) -> None:
        """Set the schedule of one mode, from the next step on.

        Raises:
            SMDebugValueError: If *save_config_mode* is not a SaveConfigMode.
            SMDebugRuntimeError: If these are the schedules of a hook.
        """
        given: object = save_config_mode
        if not isinstance(given, SaveConfigMode):
            msg = f"expected a SaveConfigMode, not {given!r}"
            raise SMDebugValueError(msg)
        present = self.mode_save_configs[mode]
        if present is not None:
            present.check_changeable()
        self.mode_save_configs[mode] = given
        _note_edit()

    def copy(self, *, is_fixed: bool = False) -> SaveConfig:
        """Schedules of their own, which cannot be changed if *is_fixed*."""
        return SaveConfig(
            {
                mode: None if own is None else own.copy(is_fixed=is_fixed)
                for mode, own in self.mode_save_configs.items()
            }
        )

    def of(
        self, mode: ModeKeys, inherited: schedules.SaveConfigMode | None = None
    ) -> schedules.SaveConfigMode:
        """Return the schedules of a mode; *inherited* are those of the hook."""
        own = self.mode_save_configs[mode]
        if own is not None:
            return own.native
        return inherited or SaveConfigMode().native

    def should_save_step(self, mode: ModeKeys, step_num: int) -> bool:
        """Return whether tensors are saved at this step of *mode*."""
        return self.get_save_config(mode).should_save_step(step_num)

    def merge_default_save_config(self, default_save_config: SaveConfig) -> None:
        """Copy the schedules of modes that this one leaves out."""
        for mode, own in self.mode_save_configs.items():
            if own is None:
                other = default_save_config.mode_save_configs[mode]
                self.mode_save_configs[mode] = other or SaveConfigMode()

    def to_json_dict(self) -> dict[str, Any]:
        """Return a mapping from names of modes, in smdebug's form."""
        return {
            mode.name: None if own is None else own.to_json_dict()
            for mode, own in self.mode_save_configs.items()
        }

    def to_json(self) -> str:
        """Return JSON in smdebug's form."""
        return json.dumps(self.to_json_dict())

    @classmethod
    def from_dict(
        cls,
        params: Mapping[Any, Any] | None,
        default_values: Mapping[str, Any] | None = None,
    ) -> SaveConfig | None:
        """Make schedules from a mapping of modes or names; returns None for None.

        The values of the mapping are SaveConfigMode or mappings.

        Raises:
            SMDebugValueError: If a mode or a value is bad.
        """
        if params is None:
            return None
        found: dict[ModeKeys, SaveConfigMode | None] = {}
        for key, value in params.items():
            if isinstance(key, str) and key not in ModeKeys.__members__:
                modes = ModeKeys.__members__
                msg = f"{key!r} is not a mode; {nearest(key, modes)}"
                raise SMDebugValueError(msg)
            mode = ModeKeys[key] if isinstance(key, str) else key
            if isinstance(value, Mapping):
                value = SaveConfigMode.from_dict(value, default_values)  # noqa: PLW2901
            found[mode] = value
        return cls(found)

    @classmethod
    def from_json(cls, json_str: str) -> SaveConfig | None:
        """Make schedules from JSON in smdebug's form."""
        return cls.from_dict(json.loads(json_str))

    @classmethod
    def from_save_config_mode(cls, save_config_mode: SaveConfigMode) -> SaveConfig:
        """Make schedules that are the same for all modes."""
        return cls(dict.fromkeys(ModeKeys, save_config_mode))

    @classmethod
    def parse(cls, obj: object) -> SaveConfig:
        """Make schedules from a mapping, a SaveConfigMode, or None (the default).

        Raises:
            SMDebugTypeError: If *obj* has another type.
        """
        if isinstance(obj, Mapping):
            obj = cls.from_dict(obj)
        if obj is None:
            return cls()
        if isinstance(obj, SaveConfig):
            return obj
        if isinstance(obj, SaveConfigMode):
            return cls.from_save_config_mode(obj)
        if isinstance(obj, schedules.SaveConfig):
            return cls.of_native(obj)
        msg = f"{obj!r} is not a SaveConfig"
        raise SMDebugTypeError(msg)

    @classmethod
    def of_native(cls, native: schedules.SaveConfig) -> SaveConfig:
        """Make schedules from tdbg's; the interval is that of values."""
        return cls({mode: _of_mode(native.of(mode)) for mode in ModeKeys})

    def native(self) -> schedules.SaveConfig:
        """Return tdbg's schedules; modes that are left out follow the hook."""
        own = self.mode_save_configs
        found = {mode: item.native for mode, item in own.items() if item is not None}
        return schedules.SaveConfig(found)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SaveConfig):
            return NotImplemented
        return self.mode_save_configs == other.mode_save_configs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SaveConfig({self.to_json_dict()!r})"


def _of_mode(native: schedules.SaveConfigMode) -> SaveConfigMode:
    return SaveConfigMode(
        native.save_interval,
        native.start_step,
        native.end_step,
        sorted(native.save_steps),
    )


__getattr__ = refuse(__name__)
