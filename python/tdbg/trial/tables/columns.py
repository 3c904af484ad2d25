"""The columns of every table: name, type, unit and meaning, in one list each.

Conversions, SQL and docs/tables.md take them from here.

Thread safety: constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tdbg.config.messages import nearest
from tdbg.errors import QueryError

__all__ = ["TABLES", "Column", "Kind", "TableColumns"]

#: What a column holds.  "word" is text of which there are few values, held as numbers
#: of a dictionary; "time" an instant in ns since 1970 UTC; "numbers" and "values" a
#: number, or a number or text, by name.
Kind: TypeAlias = Literal[
    "word", "text", "int64", "uint64", "float64", "bool", "time", "numbers", "values"
]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its name.
        kind: What it holds.
        unit: Unit of its numbers; empty if they have none.
        meaning: What it says, in a phrase.
        nullable: Whether rows may have no value in it.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    nullable: bool = False


class TableColumns(Sequence[Column]):
    """The columns of a table, in their order."""

    def __init__(self, table: str, columns: Iterable[Column]) -> None:
        self.table = table
        self._columns = tuple(columns)
        self._by_name = {each.name: each for each in self._columns}

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, index: int) -> Column:  # type: ignore[override]
        return self._columns[index]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._by_name)

    def named(self, names: Iterable[str] | None) -> list[Column]:
        """Return these columns, in the order given; None: all.

        Raises:
            QueryError: If there is no such column; the message proposes the nearest.
        """
        if names is None:
            return list(self._columns)
        if isinstance(names, str):
            names = [names]
        return [self._found(name) for name in names]

    def _found(self, name: str) -> Column:
        if name not in self._by_name:
            what = nearest(name, self.names)
            msg = f"table {self.table!r} has no column {name!r}; {what}"
            raise QueryError(msg)
        return self._by_name[name]


_STEP = Column("step", "int64", "steps", "training step, as your loop counts it")
_MODE = Column("mode", "word", "", "TRAIN, EVAL, PREDICT or GLOBAL")
_STEPS = (
    _STEP,
    _MODE,
    Column("mode_step", "int64", "steps", "the step in the count of its mode"),
    Column("global_step", "int64", "steps", "the step among those of all modes"),
)


def _counts(*columns: tuple[str, str]) -> list[Column]:
    return [Column(name, "uint64", "elements", told) for name, told in columns]


def _numbers(*columns: tuple[str, str]) -> list[Column]:
    return [Column(name, "float64", "", told) for name, told in columns]


_STATISTICS = (
    Column("tensor", "word", "", "name of the tensor"),
    Column("role", "word", "", "weight, gradient, output, loss and so on"),
    *_STEPS,
    *_counts(
        ("count", "all elements"),
        ("nan", "elements that are NaN"),
        ("positive_infinity", "elements that are +Inf"),
        ("negative_infinity", "elements that are -Inf"),
        ("zero", "elements that are zero"),
    ),
    *_numbers(
        ("min", "least finite element; +Inf if there is none"),
        ("max", "greatest finite element; -Inf if there is none"),
        ("abs_min", "least absolute value; +Inf if there is none"),
        ("mean", "mean of the finite elements"),
        ("m2", "sum of their squared deviations from the mean"),
        ("l1", "sum of their absolute values"),
        ("l2", "square root of the sum of their squares"),
        ("std", "their population standard deviation; NaN if there are none"),
        ("rms", "root of their mean square; NaN if there are none"),
        ("abs_max", "greatest absolute value; NaN if there are none"),
        ("zero_share", "zero elements as a share of all; NaN if there are none"),
    ),
)

_SCALARS = (
    Column("name", "word", "", "name of the scalar"),
    *_STEPS,
    Column("value", "float64", "", "what was saved"),
    Column("time", "time", "", "when it was saved, in UTC"),
)

_STEP_ROWS = (
    *_STEPS,
    Column("time", "time", "", "when the step ended, in UTC"),
    Column("duration", "float64", "s", "time of the step; 0 if it was not timed"),
    Column("capture", "float64", "s", "part of it that tdbg took"),
    Column("complete", "bool", "", "all workers have recorded it"),
    Column("lossless", "bool", "", "and nothing of it was lost"),
    Column("settled", "bool", "", "nothing more will come"),
    Column("skipped", "bool", "", "the gradient scaler skipped the update"),
    *(
        Column(name, "uint64", "records", told)
        for name, told in (
            ("offered", "records that were to be written"),
            ("written", "records that were written"),
            ("dropped", "records that were dropped"),
            ("failed", "records that the disk refused"),
        )
    ),
    Column("micro_batches", "int64", "", "micro-batches of the step"),
    Column("workers", "int64", "", "workers that recorded it"),
    Column("generation", "int64", "", "changes where a training was started again"),
)

_FINDINGS = (
    Column("rule", "word", "", "name of the rule"),
    Column("severity", "word", "", "info, warning or error"),
    Column("tensor", "word", "", "what the finding is about"),
    _STEP,
    _MODE,
    Column("global_step", "int64", "steps", "the step among those of all modes", True),
    Column("first_step", "int64", "steps", "first step of the problem"),
    Column("last_step", "int64", "steps", "last step of the problem so far"),
    Column("n_steps", "int64", "steps", "steps at which it was there"),
    Column("phase", "word", "", "begin, worse or end"),
    Column("value", "float64", "", "what was measured", True),
    Column("threshold", "float64", "", "what it was compared with", True),
    Column("message", "text", "", "what is wrong"),
    Column("advice", "text", "", "what to do about it"),
    Column("cause", "word", "", "rule that found the cause", True),
    Column("gain", "float64", "", "share of a step's time that the advice saves", True),
)

_EVENTS = (
    Column("kind", "word", "", "configuration, change, finding, status, message"),
    Column("severity", "word", "", "none, info, warning or error"),
    Column("global_step", "int64", "steps", "step that it belongs to", True),
    Column("time", "time", "", "when it was written, in UTC"),
    Column("writer", "word", "", "directory of the process that wrote it"),
    Column("data", "text", "", "what it says, as JSON"),
)

_RUNS = (
    Column("path", "text", "", "directory of the run"),
    Column("state", "word", "", "running, stalled, closed, dead or unreadable"),
    Column("created", "time", "", "when the run was made, in UTC"),
    Column("updated", "time", "", "when its last recorded step ended, in UTC", True),
    Column("duration", "float64", "s", "from the one to the other", True),
    Column("steps", "int64", "steps", "training steps that were made", True),
    Column("evaluated", "int64", "steps", "steps of evaluation and prediction", True),
    Column("recorded", "int64", "steps", "steps that were recorded", True),
    Column("rate", "float64", "steps/s", "speed of the newest steps", True),
    Column("cost", "float64", "", "time that tdbg adds, as a share of a step", True),
    Column("bytes", "int64", "bytes", "size of the run's files", True),
    Column("lost_records", "int64", "records", "records that were lost", True),
    Column("loss", "float64", "", "last loss; NaN if it was not finite", True),
    Column("best_loss", "float64", "", "least finite value of that loss", True),
    Column(
        "verdict", "word", "", "starting, unjudged, ok, info, warning or error", True
    ),
    Column("sentence", "text", "", "how the run is, in words", True),
    Column("errors", "int64", "", "faults that are there now: errors", True),
    Column("warnings", "int64", "", "faults that are there now: warnings", True),
    Column("notes", "int64", "", "findings that accuse nothing", True),
    Column("last", "numbers", "", "last value of each loss and metric", True),
    Column("best", "numbers", "", "best finite value of each loss and metric", True),
    Column("settings", "values", "", "hyperparameters and configuration", True),
    Column("error", "text", "", "why the run cannot be read", True),
)

#: The columns of each table, by its name.  Over several runs, each table begins with
#: the column ``run``.
TABLES = {
    name: TableColumns(name, columns)
    for name, columns in {
        "statistics": _STATISTICS,
        "scalars": _SCALARS,
        "steps": _STEP_ROWS,
        "findings": _FINDINGS,
        "events": _EVENTS,
        "runs": _RUNS,
    }.items()
}
