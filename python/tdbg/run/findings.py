"""What a rule found, as a value that every layer may hold.

Implements docs/rules.md, "Findings".  The engine writes findings as events of the
run; the trial reads them back; actions and reports are given them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from tdbg.modes import ModeKeys
from tdbg.run.json_values import is_integer
from tdbg.shown import Shown

__all__ = ["Cause", "Evidence", "Finding", "Phase", "Severity", "Stage", "Statistic"]

# Where global steps stand in the training.
StepsAt = Callable[[Sequence[int]], Sequence[int]]

Phase = Literal["begin", "worse", "end"]
# Those of an envelope, which can be drawn, and the mean of |x| over what is not zero,
# which is drawn beside the rms.
Statistic = Literal["l2", "rms", "mean", "std", "abs_max", "zero_share", "abs_mean"]


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


class Stage(enum.IntEnum):
    """Where a finding stands in the chain from causes to consequences.

    A finding may bring about those of later stages.  On disk: never rename.
    """

    SETUP = 1
    """How the training is set up or fed: a fact, whatever the weights are."""
    NUMBERS = 2
    """Numbers grow beyond use: updates, gradients, anything that is not finite."""
    UNITS = 3
    """Units that pass nothing on: dead, saturated."""
    ZEROS = 4
    """Outputs that are all zero."""
    GRADIENTS = 5
    """Gradients that do not reach a layer."""
    RATE = 6
    """Updates that are switched off: a fact, as SETUP is."""
    STANDSTILL = 7
    """Weights that do not change, answers that are all alike."""
    LEARNING = 8
    """The model does not learn."""
    VALIDATION = 9
    """It does not get better on data held back."""
    CONTENTION = 11
    """The training does not get the processor time or memory that it asks for."""
    STORAGE = 12
    """Reading data takes the time."""
    PREPARATION = 13
    """Preparing data on the processor takes the time."""
    LOADING = 14
    """The training waits for its data loader."""
    HOST = 15
    """Code of the host besides loading takes the time: a fact of its own."""
    COMMUNICATION = 16
    """Ranks wait for each other."""
    USE = 17
    """Devices are not used well."""
    PACE = 18
    """Some steps take longer than others."""

    @property
    def label(self) -> str:
        """The name of the stage as documents have it."""
        return self.name.lower()

    @property
    def is_fact(self) -> bool:
        """Whether no other finding can have brought it about."""
        return self in (Stage.SETUP, Stage.RATE)

    @property
    def is_of_time(self) -> bool:
        """Whether it is about time: the second chain, apart from the first."""
        return self >= Stage.CONTENTION


@dataclass(frozen=True, slots=True)
class Cause:
    """The finding that brought another one about: its rule, tensor and first step.

    Attributes:
        rule: Name of its rule.
        tensor: Name of its tensor.
        first_step: Its ``first_step``.
        first_global_step: Its ``first_global_step``.
    """

    rule: str
    tensor: str
    first_step: int
    first_global_step: int | None = None

    @property
    def identity(self) -> tuple[str, str, int]:
        """The ``identity`` of the finding."""
        first = self.first_global_step
        return self.rule, self.tensor, self.first_step if first is None else first


@dataclass(frozen=True, slots=True)
class Evidence:
    """Which chart of the tensor shows a finding, and where its threshold lies in it.

    Attributes:
        statistic: The statistic of the tensor that the rule judged, or the one that
            shows best what it judged.
        limit: The value of that statistic beyond which the tensor is accused, in the
            statistic's unit; None where the rule compares something else, such as two
            tensors.
    """

    statistic: Statistic
    limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Shown):
    """One problem of one tensor, over a stretch of steps.

    Steps are training steps, as the training's own loop counts them; a step of
    evaluation is the number of training steps before it.  Their global numbers, which
    count evaluation, too, are beside them.

    Attributes:
        rule: Name of the rule.
        severity: How bad the problem is.
        step: Step at which the rule noticed the problem.
        mode: Mode of that step.
        tensor: Name of the tensor.
        message: What is wrong, with the measured numbers.
        value: What was measured, if it is one number.
        threshold: What the value was compared with, if that is one number.
        advice: What to do about the problem.
        first_step: First step of the stretch at which the rule's condition held.
        last_step: Last such step so far.
        n_steps: Number of judged steps of the stretch at which the condition held.
        global_step: Global number of ``step``; None in what a rule makes, whose steps
            are global ones.
        first_global_step: That of ``first_step``.
        last_global_step: That of ``last_step``.
        phase: "begin" when the rule first saw the problem, "worse" when the severity
            has risen, "end" when the problem has gone, and all that follows from it.
        stage: Where the problem stands in the chain from causes to consequences;
            None: outside of it.
        cause: The finding that this one follows from, or None.
        evidence: Which chart of the tensor shows it, or None: the rule does not say.
        gain: The share of the time of a step that following the advice saves, from 0
            to 1; None: not known, or the advice is not about time.
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
    global_step: int | None = None
    first_global_step: int | None = None
    last_global_step: int | None = None
    phase: Phase = "begin"
    stage: Stage | None = None
    cause: Cause | None = None
    evidence: Evidence | None = None
    gain: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the problem has gone."""
        return self.phase == "end"

    @property
    def identity(self) -> tuple[str, str, int]:
        """Rule, tensor and first global step, which tell it from others."""
        first = self.first_global_step
        return self.rule, self.tensor, self.first_step if first is None else first

    def in_training(self, training_steps: StepsAt) -> Finding:
        """Return a finding of a rule, whose steps are global, by training steps.

        Args:
            training_steps: ``Trial.training_steps_at`` of its run.
        """
        cause = self.cause
        given = [self.step, self.first_step, self.last_step]
        if cause is not None:
            given.append(cause.first_step)
        step, first, last, *of_cause = training_steps(given)
        return replace(
            self,
            step=step,
            first_step=first,
            last_step=last,
            global_step=self.step,
            first_global_step=self.first_step,
            last_global_step=self.last_step,
            cause=cause
            and Cause(cause.rule, cause.tensor, of_cause[0], cause.first_step),
        )

    def in_global_steps(self) -> Finding:
        """Return the finding as a rule made it, and as a run holds it."""
        if self.global_step is None:
            return self
        cause, steps = self.cause, (self.first_global_step, self.last_global_step)
        if cause is not None and cause.first_global_step is not None:
            cause = Cause(cause.rule, cause.tensor, cause.first_global_step)
        return replace(
            self,
            step=self.global_step,
            first_step=self.first_step if steps[0] is None else steps[0],
            last_step=self.last_step if steps[1] is None else steps[1],
            global_step=None,
            first_global_step=None,
            last_global_step=None,
            cause=cause,
        )

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for JSON; numbers that are not finite become None."""
        document = {field.name: getattr(self, field.name) for field in fields(self)}
        document["severity"] = self.severity.label
        document["mode"] = self.mode.name
        document["stage"] = None if self.stage is None else self.stage.label
        document["cause"] = None if self.cause is None else asdict(self.cause)
        for each in (document, document["cause"] or {}):
            unknown = [name for name in _GLOBAL if each.get(name, 0) is None]
            for name in unknown:
                del each[name]
        evidence = self.evidence
        document["evidence"] = None if evidence is None else asdict(evidence)
        if evidence is not None and not _is_finite(evidence.limit):
            document["evidence"]["limit"] = None
        for name in ("value", "threshold", "gain"):
            if not _is_finite(document[name]):
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
            if values.get("stage") is not None:
                # One of a later tdbg's is outside of the chain.
                values["stage"] = Stage.__members__.get(values["stage"].upper())
            if values.get("cause") is not None:
                values["cause"] = Cause(**values["cause"])
            if values.get("evidence") is not None:
                values["evidence"] = _evidence(values["evidence"])
            found = cls(**values)
        except (AttributeError, KeyError, TypeError) as error:
            msg = f"not a finding: {error}"
            raise ValueError(msg) from error
        for name, value in values.items():
            if not _FITS.get(str(known[name]), _is_any)(value):
                msg = f"not a finding: {name} is {value!r}"
                raise ValueError(msg)
        return found


# Left out of a document where they are None.
_GLOBAL = ("global_step", "first_global_step", "last_global_step")


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _evidence(told: Any) -> Evidence | None:
    """The evidence of a document; None of a later tdbg's, which nobody can draw.

    Raises:
        TypeError: If it is no evidence.
    """
    found = Evidence(**told)
    if not _is_number_or_none(found.limit):
        msg = f"the limit of its evidence is {found.limit!r}"
        raise TypeError(msg)
    return found if found.statistic in get_args(Statistic) else None


def _is_any(_: object) -> bool:
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_number_or_none(value: object) -> bool:
    return value is None or _is_number(value)


def _is_integer_or_none(value: object) -> bool:
    return value is None or is_integer(value)


def _is_cause(value: object) -> bool:
    if not isinstance(value, Cause):
        return False
    texts = value.rule, value.tensor
    steps = is_integer(value.first_step) and _is_integer_or_none(
        value.first_global_step
    )
    return steps and all(isinstance(text, str) for text in texts)


# What a field of a document may hold, by the field's type.
_FITS: dict[str, Callable[[object], bool]] = {
    "int": is_integer,
    "int | None": _is_integer_or_none,
    "str": lambda value: isinstance(value, str),
    "float | None": _is_number_or_none,
    "Phase": lambda value: value in get_args(Phase),
    "Cause | None": lambda value: value is None or _is_cause(value),
}
