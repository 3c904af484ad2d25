"""``smdebug.exceptions``: its names, with its arguments.

Each is tdbg's exception of the same meaning too, so that code of either library
catches what the other half of a program raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tdbg import errors
from tdbg.modes import ModeKeys

__all__ = [
    "IndexReaderException",
    "InsufficientInformationForRuleInvocation",
    "InvalidCollectionConfiguration",
    "InvalidWorker",
    "MissingCollectionFiles",
    "NoMoreData",
    "NoMoreProfilerData",
    "RuleEvaluationConditionMet",
    "SMDebugCustomerError",
    "SMDebugError",
    "SMDebugNotImplementedError",
    "SMDebugRuntimeError",
    "SMDebugTypeError",
    "SMDebugValueError",
    "ShapeUnavailableForStep",
    "StepNotYetAvailable",
    "StepUnavailable",
    "TensorUnavailable",
    "TensorUnavailableForStep",
    "translated",
]


class SMDebugError(errors.TdbgError):
    """Base of the errors that smdebug names."""


class SMDebugCustomerError(SMDebugError):
    """The user can mend this error."""


class SMDebugTypeError(SMDebugError, errors.ConfigurationError, TypeError):
    """An argument has the wrong type."""


class SMDebugRuntimeError(SMDebugError, errors.ConfigurationError, RuntimeError):
    """The call cannot work now."""


class SMDebugNotImplementedError(SMDebugError, NotImplementedError):
    """tdbg does not have this."""


class SMDebugValueError(SMDebugError, errors.ConfigurationError):
    """An argument has a bad value."""


class InvalidCollectionConfiguration(
    SMDebugError, errors.InvalidCollectionConfiguration
):
    """The collection selects nothing."""

    def __init__(self, c_name: str) -> None:
        super().__init__(c_name)
        self.c_name = c_name

    def __str__(self) -> str:
        return (
            f"collection {self.c_name!r} selects nothing: give it an include_regex, "
            "tensor names or modules"
        )


class _OfStep(SMDebugError):
    """Base of errors about a step of a mode."""

    _what = ""

    def __init__(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> None:
        super().__init__(step, mode)
        self.step = step
        self.mode = mode

    def __str__(self) -> str:
        return f"step {self.step} of mode {_name(self.mode)} {self._what}"


class StepNotYetAvailable(_OfStep, errors.StepNotYetAvailable):
    """The step may still come."""

    _what = "is not there yet"


class StepUnavailable(_OfStep, errors.StepUnavailable):
    """The step was not saved, and never will be."""

    _what = "was not saved"


class NoMoreData(SMDebugError, errors.NoMoreData):
    """The training ended before the step."""

    def __init__(self, step: int, mode: ModeKeys, last_step: int) -> None:
        super().__init__(step, mode, last_step)
        self.step = step
        self.mode = mode
        self.last_step = last_step

    def __str__(self) -> str:
        return (
            f"step {self.step} of mode {_name(self.mode)} will not come: the training "
            f"has ended, its last is {self.last_step}"
        )


class TensorUnavailable(SMDebugError, errors.TensorUnavailable):
    """No tensor of that name was saved so far."""

    def __init__(self, tname: str) -> None:
        super().__init__(tname)
        self.tname = tname

    def __str__(self) -> str:
        return f"tensor {self.tname!r} was not saved"


class TensorUnavailableForStep(SMDebugError, errors.TensorUnavailableForStep):
    """The tensor has no value at the step."""

    def __init__(
        self,
        tname: str,
        step: int,
        mode: ModeKeys = ModeKeys.GLOBAL,
        has_reductions: bool = False,
    ) -> None:
        super().__init__(tname, step, mode, has_reductions)
        self.tname = tname
        self.step = step
        self.mode = mode
        self.has_reductions = has_reductions

    def __str__(self) -> str:
        text = (
            f"tensor {self.tname!r} has no value at step {self.step} of mode "
            f"{_name(self.mode)}"
        )
        if self.has_reductions:
            text += "; its statistics are there: use reduction_value(s)"
        return text


class ShapeUnavailableForStep(SMDebugError, errors.ShapeUnavailableForStep):
    """The tensor has no shape at the step."""

    def __init__(self, tname: str, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> None:
        super().__init__(tname, step, mode)
        self.tname = tname
        self.step = step
        self.mode = mode

    def __str__(self) -> str:
        return (
            f"tensor {self.tname!r} has no shape at step {self.step} of mode "
            f"{_name(self.mode)}"
        )


class InvalidWorker(SMDebugError, errors.InvalidWorker):
    """There is no such worker, or it did not save the tensor at the step."""

    def __init__(self, worker: str) -> None:
        super().__init__(worker)
        self.worker = worker

    def __str__(self) -> str:
        return f"invalid worker: {self.worker}"


class NoMoreProfilerData(SMDebugError):
    """The profile ends before the time that was asked for."""

    def __init__(self, timestamp: float) -> None:
        super().__init__(timestamp)
        self.timestamp = timestamp

    def __str__(self) -> str:
        return f"there is no profiler data after {self.timestamp}"


class MissingCollectionFiles(SMDebugError, errors.NotARun):
    """The directory holds no run."""

    def __init__(self, message: str = "there is no run") -> None:
        super().__init__(message)


class IndexReaderException(SMDebugError):
    """A file of a run cannot be read."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RuleEvaluationConditionMet(SMDebugError, errors.RuleEvaluationConditionMet):
    """A rule's condition holds."""

    def __init__(self, rule_name: str, step: int, end_of_rule: bool = False) -> None:
        super().__init__(rule_name, step, end_of_rule)
        self.args = (rule_name, step, end_of_rule)

    def __str__(self) -> str:
        return f"rule {self.rule_name} is met at step {self.step}"


class InsufficientInformationForRuleInvocation(
    SMDebugError, errors.InsufficientInformationForRuleInvocation
):
    """A rule cannot decide from what was captured."""

    def __init__(self, rule_name: str, message: str) -> None:
        super().__init__(rule_name, message)
        self.rule_name = rule_name
        self.message = message

    def __str__(self) -> str:
        return f"rule {self.rule_name} cannot decide: {self.message}"


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise tdbg's ConfigurationError as SMDebugValueError."""
    try:
        yield
    except errors.ConfigurationError as error:
        raise SMDebugValueError(str(error)) from error


def _name(mode: object) -> str:
    return mode.name if isinstance(mode, ModeKeys) else str(mode)
