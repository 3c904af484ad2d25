"""Rules about tensors that hold nothing of use for several recorded steps in a row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.modes import TRAINING
from tdbg.needs import Needs, with_beginning
from tdbg.rules._base import built_in
from tdbg.rules._checks import check_number, finds
from tdbg.rules.named import OfNamedTensors
from tdbg.rules.window import Bools, Judgement, Table, Window, rows_of_lasting

__all__ = ["INPUTS", "OfLastingRows"]

INPUTS = {"input", "model_input", "prediction", "label"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OfLastingRows(OfNamedTensors):
    """Base of rules about rows that are bad at *patience* recorded steps in a row.

    Args:
        patience: Recorded steps in a row at which this must hold.
        min_count: Smaller tensors are not judged.
        collections: Where to look.

    Raises:
        ConfigurationError: If a parameter is out of its range or not of its kind.
    """

    patience: int = 3
    min_count: int = 8
    collections: tuple[str, ...] = ("outputs", "model_inputs")

    def __post_init__(self) -> None:
        OfNamedTensors.__post_init__(self)
        check_number(self, "patience", least=1, whole=True)
        check_number(self, "min_count", least=1, whole=True)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """The rows of the collections."""
        return with_beginning(Needs(collections=built_in(self.collections)))

    @property
    def look_back(self) -> int:
        """The steps that patience counts."""
        return rows_of_lasting(self.patience)

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge the rows of training."""
        for table in window.tables(*TRAINING):
            judged = table.known & (table["count"] >= self.min_count)
            judged &= _says_something(table, self.tensor_regex)[:, np.newaxis]
            yield self.judge(table, judged)

    @abstractmethod
    def judge(self, table: Table, judged: Bools) -> Judgement:
        """Judge the rows that are *judged*."""


def _says_something(table: Table, regex: str | None) -> Bools:
    """Which tensors are judged: not masks, indices, and states that begin at zero.

    Of the inputs of a model the first one: others are masks and states of recurrent
    layers.  What the expression names is judged whatever it is.
    """
    tensors = zip(table.names, table.roles, table.dtypes, strict=True)
    judged = [
        (
            ("float" in dtype or not dtype)
            and (role != "model_input" or name.endswith("_input_0"))
        )
        or (regex is not None and finds(regex, name))
        for name, role, dtype in tensors
    ]
    return np.array(judged, dtype=bool)
