"""``smdebug.core.reduction_config``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tdbg.compat.smdebug.exceptions import (
    SMDebugTypeError,
    SMDebugValueError,
    translated,
)
from tdbg.compat.smdebug.left_out import refuse
from tdbg.config import schedules
from tdbg.config.messages import check_flag, check_known

__all__ = ["ALLOWED_NORMS", "ALLOWED_REDUCTIONS", "ReductionConfig"]

ALLOWED_REDUCTIONS = ["min", "max", "mean", "std", "variance", "sum", "prod"]
ALLOWED_NORMS = ["l1", "l2"]

_LISTS = ("reductions", "abs_reductions", "norms", "abs_norms")


class ReductionConfig(schedules.ReductionConfig):
    """Statistics instead of raw values.

    The statistics of a tensor are always computed together, so the lists change
    nothing but the result of ``to_json``.

    Raises:
        SMDebugTypeError: If a list is not iterable, or is text.
        SMDebugValueError: If a name is unknown, or a flag is no bool.
    """

    __slots__ = ()

    def __init__(
        self,
        reductions: Iterable[str] | None = None,
        abs_reductions: Iterable[str] | None = None,
        norms: Iterable[str] | None = None,
        abs_norms: Iterable[str] | None = None,
        save_raw_tensor: bool = False,
        save_shape: bool = False,
    ) -> None:
        fields: dict[str, Any] = {}
        lists: tuple[object, ...] = (reductions, abs_reductions, norms, abs_norms)
        for name, given in zip(_LISTS, lists, strict=True):
            if isinstance(given, str) or not isinstance(given, Iterable | None):
                msg = f"{name} must be a list of names, not {given!r}"
                raise SMDebugTypeError(msg)
            fields[name] = tuple(given or ())
        flags: dict[str, object] = {
            "save_raw_tensor": save_raw_tensor,
            "save_shape": save_shape,
        }
        with translated():
            for name, flag in flags.items():
                check_flag(name, flag)
            super().__init__(**fields, **flags)  # type: ignore[arg-type]
        for name in _LISTS:  # smdebug has lists, not tuples.
            object.__setattr__(self, name, list(getattr(self, name)))

    def to_json_dict(self) -> dict[str, Any]:
        """Return a mapping with one list of all reductions."""
        found = [
            *self.reductions,
            *(f"{name}_norm" for name in self.norms),
            *(f"abs_{name}" for name in self.abs_reductions),
            *(f"abs_{name}_norm" for name in self.abs_norms),
        ]
        return {
            "save_raw_tensor": self.save_raw_tensor,
            "reductions": ",".join(found),
            "save_shape": self.save_shape,
        }

    def to_json(self) -> str:
        """Return JSON."""
        return json.dumps(self.to_json_dict())

    @classmethod
    def from_dict(cls, params: Mapping[str, Any] | None) -> ReductionConfig | None:
        """Make a configuration from a mapping; returns None for None.

        ``reductions`` is one text such as ``mean,abs_max,l2_norm,abs_l1_norm``; the
        suffix ``_norm`` may be left out.

        Raises:
            SMDebugValueError: If a key or a name is unknown.
        """
        if params is None:
            return None
        given: object = params
        if not isinstance(given, Mapping):
            msg = f"{given!r} is not a mapping"
            raise SMDebugValueError(msg)
        names = ("reductions", "save_raw_tensor", "save_shape")
        with translated():
            check_known(params, names)
        found: dict[str, Any] = {name: [] for name in _LISTS}
        for item in str(params.get("reductions", "")).split(","):
            name = item.strip()
            if name:
                prefix = "abs_" if name.startswith("abs_") else ""
                name = name.removeprefix("abs_").removesuffix("_norm")
                kind = "norms" if name in ALLOWED_NORMS else "reductions"
                found[prefix + kind].append(name)
        for name in names[1:]:
            found[name] = params.get(name, False)
        return cls(**found)

    @classmethod
    def from_json(cls, json_str: str) -> ReductionConfig | None:
        """Make a configuration from JSON."""
        return cls.from_dict(json.loads(json_str))

    @classmethod
    def of_native(cls, native: schedules.ReductionConfig) -> ReductionConfig:
        """Make a configuration from one of tdbg's."""
        return cls(
            native.reductions,
            native.abs_reductions,
            native.norms,
            native.abs_norms,
            bool(native.save_raw_tensor),
            native.save_shape,
        )


__getattr__ = refuse(__name__)
