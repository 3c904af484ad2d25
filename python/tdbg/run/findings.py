"""What a rule found, as a value that every layer may hold.

Implements docs/rules.md, "Findings".  The engine writes findings as events of the
run; the trial reads them back; actions and reports are given them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from tdbg.modes import ModeKeys
from tdbg.run.json_values import is_integer

__all__ = ["Finding", "Phase", "Severity"]

Phase = Literal["begin", "worse", "end"]


class Severity(enum.IntEnum):
    """How bad a finding is.  On disk: never renumber."""

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def label(self) -> str:
        """The name of the severity as users write it."""
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> Severity:
        """The severity with that label.

        Raises:
            ValueError: If no severity has it.
        """
        try:
            return cls[label.upper()]
        except KeyError:
            labels = ", ".join(member.label for member in cls)
            msg = f"severity {label!r} is none of {labels}"
            raise ValueError(msg) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem of one tensor, over a stretch of steps.

    Attributes:
        rule: Name of the rule.
        severity: How bad the problem is.
        step: Global step at which the rule noticed the problem.
        mode: Mode of that step.
        tensor: Name of the tensor.
        message: What is wrong, with the measured numbers.
        value: What was measured, if it is one number.
        threshold: What the value was compared with, if that is one number.
        advice: What to do about the problem.
        first_step: First step of the stretch at which the rule's condition held.
        last_step: Last such step so far.
        n_steps: Number of judged steps of the stretch at which the condition held.
        phase: "begin" when the rule first saw the problem, "worse" when the severity
            has risen, "end" when the problem has gone.
    """

    rule: str
    severity: Severity
    step: int
    mode: ModeKeys
    tensor: str
    message: str
    value: float | None = None
    threshold: float | None = None
    advice: str = ""
    first_step: int
    last_step: int
    n_steps: int = 1
    phase: Phase = "begin"

    @property
    def is_over(self) -> bool:
        """Whether the problem has gone."""
        return self.phase == "end"

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for JSON; numbers that are not finite become None."""
        document = {field.name: getattr(self, field.name) for field in fields(self)}
        document["severity"] = self.severity.label
        document["mode"] = self.mode.name
        for name in ("value", "threshold"):
            number = document[name]
            if number is not None and not math.isfinite(number):
                document[name] = None
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Finding:
        """Return the finding of a document of ``to_json``; ignores unknown keys.

        Raises:
            ValueError: If the document is not that of a finding.
        """
        known = {field.name: field.type for field in fields(cls)}
        values = {key: value for key, value in document.items() if key in known}
        try:
            values["severity"] = Severity.of(values["severity"])
            values["mode"] = ModeKeys[values["mode"]]
            found = cls(**values)
        except (AttributeError, KeyError, TypeError) as error:
            msg = f"not a finding: {error}"
            raise ValueError(msg) from error
        for name, value in values.items():
            if not _FITS.get(str(known[name]), _is_any)(value):
                msg = f"not a finding: {name} is {value!r}"
                raise ValueError(msg)
        return found


def _is_any(_: object) -> bool:
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# What a field of a document may hold, by the field's type.
_FITS: dict[str, Callable[[object], bool]] = {
    "int": is_integer,
    "str": lambda value: isinstance(value, str),
    "float | None": lambda value: value is None or _is_number(value),
    "Phase": lambda value: value in get_args(Phase),
}
