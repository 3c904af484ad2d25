"""The exceptions of tdbg.

The tree::

    TdbgError
    ├── ConfigurationError (also ValueError)   something asked for can never work
    │   ├── InvalidCollectionConfiguration     a collection selects nothing
    │   └── UnknownRule                        no rule of that name
    ├── StorageError (also OSError)            the run directory or a file in it
    │   ├── NotARun                            no RUN.json, or not a readable one
    │   ├── RunInUse                           another living training writes to it
    │   ├── CorruptionError                    a checksum does not match
    │   └── UnsupportedFeature                 written by a newer tdbg
    ├── QueryError (also LookupError)          what was asked of a trial is not there
    │   ├── StepUnavailable                    the step was not saved, and never will be
    │   ├── StepNotYetAvailable                the step may still come
    │   ├── TensorUnavailable                  no tensor of that name so far
    │   ├── TensorUnavailableForStep           it has no value at that step
    │   ├── ShapeUnavailableForStep            nor a shape
    │   ├── InvalidWorker                      no worker of that name
    │   ├── MissingCollectionFiles             the run has no collections
    │   └── NoMoreData                         the training has ended before that step
    ├── RuleEvaluationConditionMet             a rule fired (smdebug's contract)
    ├── InsufficientInformationForRuleInvocation
    └── TrainingStopped                        somebody asked the training to stop

Exceptions that smdebug has too mean the same there.  ``TrainingStopped`` is the only
one that reaches a training once its hook is constructed.
"""

from __future__ import annotations

from typing import Self

__all__ = [
    "ConfigurationError",
    "CorruptionError",
    "InsufficientInformationForRuleInvocation",
    "InvalidCollectionConfiguration",
    "InvalidWorker",
    "MissingCollectionFiles",
    "NoMoreData",
    "NotARun",
    "QueryError",
    "RuleEvaluationConditionMet",
    "RunInUse",
    "ShapeUnavailableForStep",
    "StepNotYetAvailable",
    "StepUnavailable",
    "StorageError",
    "TdbgError",
    "TensorUnavailable",
    "TensorUnavailableForStep",
    "TrainingStopped",
    "UnknownRule",
    "UnsupportedFeature",
]


class TdbgError(Exception):
    """Base of everything that tdbg raises."""


class ConfigurationError(TdbgError, ValueError):
    """A configuration that can never work; names the value and the way out."""


class InvalidCollectionConfiguration(ConfigurationError):
    """A collection that was asked for selects nothing."""


class UnknownRule(ConfigurationError):
    """There is no rule of that name."""


class StorageError(TdbgError, OSError):
    """A run directory, or a file in it, could not be used.

    Attributes:
        file: Path of the file, or None.
        offset: Where in the file, in bytes, or None.
        kind: The kind of failure in one word ("damage", "io", ...), or None.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        offset: int | None = None,
        kind: str | None = None,
    ) -> None:
        super().__init__(message)
        self.file = file
        self.offset = offset
        self.kind = kind

    @classmethod
    def of(cls, error: OSError, what: str, path: object) -> Self:
        """The error of kind "io" for a path that the system refused to *what*.

        Example:
            >>> str(StorageError.of(OSError(28, "No space left"), "write", "/runs/a"))
            'cannot write /runs/a: No space left'
        """
        reason = error.strerror or error
        made = cls(f"cannot {what} {path}: {reason}", file=str(path), kind="io")
        made.errno = error.errno
        return made


class NotARun(StorageError):
    """The directory holds no run, or none that can be read."""


class RunInUse(StorageError):
    """Another training that lives writes to the run."""


class CorruptionError(StorageError):
    """Bytes are not what their checksum promises; nothing was returned."""


class UnsupportedFeature(StorageError):
    """The data is valid but needs a newer tdbg."""


class QueryError(TdbgError, LookupError):
    """A trial was asked for something that it does not have."""


class StepUnavailable(QueryError):
    """The step was not saved, and never will be."""


class StepNotYetAvailable(QueryError):
    """The step is not there yet and may still come."""


class TensorUnavailable(QueryError):
    """No tensor of that name has been saved so far."""


class TensorUnavailableForStep(QueryError):
    """The tensor has no value at that step."""


class ShapeUnavailableForStep(QueryError):
    """The tensor has no shape at that step."""


class InvalidWorker(QueryError):
    """The run has no worker of that name."""


class MissingCollectionFiles(QueryError):
    """The run holds no description of its collections."""


class NoMoreData(QueryError):
    """The training has ended before the step that was asked for."""


class RuleEvaluationConditionMet(TdbgError):
    """A rule's condition holds; raised by rules of smdebug's contract."""

    def __init__(self, rule_name: str, step: int, end_of_rule: bool = False) -> None:
        super().__init__(f"rule {rule_name} is met at step {step}")
        self.rule_name = rule_name
        self.step = step
        self.end_of_rule = end_of_rule


class InsufficientInformationForRuleInvocation(TdbgError):
    """A rule cannot decide from what was captured."""


class TrainingStopped(TdbgError):
    """Somebody who owns the run asked the training to stop.

    Raised at the beginning of a forward pass, never inside ``optimizer.step()``.

    Attributes:
        reason: Who asked and why, in one sentence.
        step: The last step that was made; None: there was none.
    """

    def __init__(self, reason: str, step: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.step = step
