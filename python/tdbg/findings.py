"""What a rule found, as a value that every layer may hold.

Implements docs/rules.md, "Findings".  The engine writes findings as events of the
run; the trial reads them back; actions and reports are given them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tdbg.modes import ModeKeys

__all__ = ["Finding", "Phase", "Severity"]

Phase = Literal["begin", "worse", "end"]


class Severity(enum.IntEnum):
    """How bad it is.  On disk: never renumber."""

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def label(self) -> str:
        """Its name as users write it."""
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> Severity:
        """The severity of that label.

        Raises:
            ValueError: If there is none.
        """
        try:
            return cls[label.upper()]
        except KeyError:
            labels = ", ".join(member.label for member in cls)
            msg = f"severity {label!r} is none of {labels}"
            raise ValueError(msg) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with one tensor, over a stretch of steps.

    Attributes:
        rule: Name of the rule.
        severity: How bad.
        step: Global step at which the rule noticed.
        mode: Mode of that step.
        tensor: Name of the tensor.
        message: What is wrong, with the measured numbers.
        value: What was measured, if it is one number.
        threshold: What it was compared with, if that is one number.
        advice: What to do about it.
        first_step: First step of the stretch at which the rule's condition held.
        last_step: Last one so far.
        n_steps: How many judged steps of the stretch it held at.
        phase: "begin" when it was first seen, "worse" when its severity has risen,
            "end" when it was gone.
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
        """Whether what was found has gone."""
        return self.phase == "end"

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold; numbers that are not finite become None."""
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
        """The finding that ``to_json`` made this of; unknown keys are ignored.

        Raises:
            ValueError: If it is not one.
        """
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in document.items() if key in known}
        try:
            values["severity"] = Severity.of(values["severity"])
            values["mode"] = ModeKeys[values["mode"]]
            return replace(cls(**values), step=int(values["step"]))
        except (AttributeError, KeyError, TypeError) as error:
            msg = f"not a finding: {error}"
            raise ValueError(msg) from error
