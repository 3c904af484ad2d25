"""``smdebug.core.save_config``: one interval, for values and statistics alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tdbg import config
from tdbg.compat.smdebug.exceptions import SMDebugTypeError, SMDebugValueError
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys

__all__ = ["DEFAULT_SAVE_CONFIG_INTERVAL", "SaveConfig", "SaveConfigMode"]

DEFAULT_SAVE_CONFIG_INTERVAL = 500


class SaveConfigMode:
    """When a mode's tensors are saved.

    At each of ``save_steps``, and at steps s with ``start_step <= s < end_step``
    that ``save_interval`` divides. Whole numbers may be given as text.

    Raises:
        SMDebugValueError: If a number is none, or out of range.
    """

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
        try:
            # As DESIGN has it for this face: both intervals alike.
            self.native = config.SaveConfigMode(
                save_interval=interval,  # type: ignore[arg-type]
                statistics_interval=interval,  # type: ignore[arg-type]
                start_step=0 if start_step is None else start_step,  # type: ignore[arg-type]
                end_step=end_step,  # type: ignore[arg-type]
                save_steps=[] if save_steps is None else save_steps,  # type: ignore[arg-type]
            )
        except ConfigurationError as error:
            raise SMDebugValueError(str(error)) from error

    @property
    def save_interval(self) -> int:
        """Saved at every step that it divides."""
        return self.native.save_interval

    @property
    def start_step(self) -> int:
        """The first step."""
        return self.native.start_step

    @property
    def end_step(self) -> int | None:
        """The first step that is not saved any more; None: there is none."""
        return self.native.end_step

    @property
    def save_steps(self) -> list[int]:
        """Further steps."""
        return sorted(self.native.save_steps)

    def should_save_step(self, step_num: int) -> bool:
        """Whether this step is saved."""
        return self.native.should_save(step_num)

    def to_json_dict(self) -> dict[str, Any]:
        """As a mapping."""
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
        """From a mapping, and one for what it leaves out; None for None.

        Raises:
            SMDebugTypeError: If one of them is no mapping.
            SMDebugValueError: If a value is bad.
        """
        if params is None:
            return None
        names = ("save_interval", "start_step", "end_step", "save_steps")
        given: dict[str, Any] = {}
        sources: tuple[object, ...] = (default_values or {}, params)
        for source in sources:
            if not isinstance(source, Mapping):
                msg = f"{source!r} is no mapping"
                raise SMDebugTypeError(msg)
            given.update({key: source[key] for key in names if key in source})
            for key in source:
                if key not in names:
                    msg = f"unknown setting {key!r}; {config.nearest(key, names)}"
                    raise SMDebugValueError(msg)
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
        mode_save_configs: Of single modes; those that it leaves out follow the hook.
        save_interval: As of ``SaveConfigMode``, of all modes.
        start_step: Likewise.
        end_step: Likewise.
        save_steps: Likewise.

    Raises:
        SMDebugValueError: If a mode or a number is bad.
    """

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
                msg = f"mode_save_configs: {mode!r} is no mode; use modes.TRAIN, ..."
                raise SMDebugValueError(msg)
            if value is not None and not isinstance(value, SaveConfigMode):
                msg = f"mode_save_configs: {value!r} is no SaveConfigMode"
                raise SMDebugValueError(msg)
        self.mode_save_configs = {
            mode: mode_save_configs.get(mode) for mode in ModeKeys
        }

    def get_save_config(self, mode: ModeKeys) -> SaveConfigMode:
        """Of one mode.

        Raises:
            SMDebugValueError: If it follows the hook.
        """
        found = self.mode_save_configs[mode]
        if found is None:
            msg = f"mode {mode.name} follows the hook"
            raise SMDebugValueError(msg)
        return found

    def set_save_config(self, mode: ModeKeys, save_config_mode: SaveConfigMode) -> None:
        """Set that of one mode; before this is given to a hook or collection.

        Raises:
            SMDebugValueError: If it is no SaveConfigMode.
        """
        given: object = save_config_mode
        if not isinstance(given, SaveConfigMode):
            msg = f"expected a SaveConfigMode, not {given!r}"
            raise SMDebugValueError(msg)
        self.mode_save_configs[mode] = given

    def of(
        self, mode: ModeKeys, inherited: config.SaveConfigMode | None = None
    ) -> config.SaveConfigMode:
        """The schedules of a mode, for tdbg's policy; *inherited* are the hook's."""
        own = self.mode_save_configs[mode]
        if own is not None:
            return own.native
        return inherited or SaveConfigMode().native

    def should_save_step(self, mode: ModeKeys, step_num: int) -> bool:
        """Whether this step of *mode* is saved."""
        return self.get_save_config(mode).should_save_step(step_num)

    def merge_default_save_config(self, default_save_config: SaveConfig) -> None:
        """Take from another one what this leaves out."""
        for mode, own in self.mode_save_configs.items():
            if own is None:
                other = default_save_config.mode_save_configs[mode]
                self.mode_save_configs[mode] = other or SaveConfigMode()

    def to_json_dict(self) -> dict[str, Any]:
        """As a mapping of the names of modes."""
        return {
            mode.name: None if own is None else own.to_json_dict()
            for mode, own in self.mode_save_configs.items()
        }

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps(self.to_json_dict())

    @classmethod
    def from_dict(
        cls,
        params: Mapping[Any, Any] | None,
        default_values: Mapping[str, Any] | None = None,
    ) -> SaveConfig | None:
        """From a mapping of modes, or of their names, to SaveConfigMode or mappings.

        Raises:
            SMDebugValueError: If a mode or a value is bad.
        """
        if params is None:
            return None
        found: dict[ModeKeys, SaveConfigMode | None] = {}
        for key, value in params.items():
            if isinstance(key, str) and key not in ModeKeys.__members__:
                msg = f"{key!r} is no mode; {config.nearest(key, ModeKeys.__members__)}"
                raise SMDebugValueError(msg)
            mode = ModeKeys[key] if isinstance(key, str) else key
            if isinstance(value, Mapping):
                value = SaveConfigMode.from_dict(value, default_values)  # noqa: PLW2901
            found[mode] = value
        return cls(found)

    @classmethod
    def from_json(cls, json_str: str) -> SaveConfig | None:
        """From JSON."""
        return cls.from_dict(json.loads(json_str))

    @classmethod
    def from_save_config_mode(cls, save_config_mode: SaveConfigMode) -> SaveConfig:
        """The same for all modes."""
        return cls(dict.fromkeys(ModeKeys, save_config_mode))

    @classmethod
    def parse(cls, obj: object) -> SaveConfig:
        """From anything that one can be made of; the default from None.

        Raises:
            SMDebugTypeError: If it can be made of nothing like that.
        """
        if isinstance(obj, Mapping):
            obj = cls.from_dict(obj)
        if obj is None:
            return cls()
        if isinstance(obj, SaveConfig):
            return obj
        if isinstance(obj, SaveConfigMode):
            return cls.from_save_config_mode(obj)
        if isinstance(obj, config.SaveConfig):
            return cls.of_native(obj)
        msg = f"{obj!r} is no SaveConfig"
        raise SMDebugTypeError(msg)

    @classmethod
    def of_native(cls, native: config.SaveConfig) -> SaveConfig:
        """From one of tdbg's, by its intervals of values."""
        return cls({mode: _of_mode(native.of(mode)) for mode in ModeKeys})

    def native(self) -> config.SaveConfig:
        """As one of tdbg's; modes that are left out follow the hook."""
        own = self.mode_save_configs
        found = {mode: item.native for mode, item in own.items() if item is not None}
        return config.SaveConfig(found)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SaveConfig):
            return NotImplemented
        return self.mode_save_configs == other.mode_save_configs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SaveConfig({self.to_json_dict()!r})"


def _of_mode(native: config.SaveConfigMode) -> SaveConfigMode:
    return SaveConfigMode(
        native.save_interval,
        native.start_step,
        native.end_step,
        sorted(native.save_steps),
    )
