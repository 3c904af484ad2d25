"""TensorRule and LastingRule: base classes of rules about tensors by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.config.needs import Needs, with_beginning
from tdbg.modes import TRAINING
from tdbg.rules.rule import (
    Rule,
    built_in,
    check_names,
    check_number,
    check_regex,
    finds,
    in_collections,
)
from tdbg.rules.window import (
    Bools,
    Evaluation,
    Table,
    TensorInfo,
    Window,
    rows_of_lasting,
)
from tdbg.run.model_info import ModelInfo

__all__ = ["INPUTS", "LastingRule", "TensorRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRule(Rule):
    """Base class of rules about tensors that the user may choose.

    Args:
        collections: Collections to look in.
        tensor_regex: Look at tensors with matching names too.

    Raises:
        ConfigurationError: If a parameter is not of its kind.
    """

    collections: tuple[str, ...] = ()
    tensor_regex: str | None = None

    def __post_init__(self) -> None:
        check_names(self, "collections")
        check_regex(self, "tensor_regex")

    @property
    def needs(self) -> Needs | tuple[Needs, ...]:
        """Rows of the collections; the expression by itself captures nothing."""
        return Needs(collections=built_in(self.collections))

    def selects(self, tensor: TensorInfo) -> bool:
        """Select the tensors of the collections, or that the expression matches."""
        return self.is_named(tensor)

    def is_named(self, tensor: TensorInfo) -> bool:
        """Return whether the collections or the expression select a tensor."""
        if in_collections(tensor, self.collections):
            return True
        return self.tensor_regex is not None and finds(self.tensor_regex, tensor.name)


INPUTS = {"input", "model_input", "prediction", "label"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingRule(TensorRule):
    """Base class of rules about rows that are bad for *patience* steps in a row.

    Args:
        patience: Consecutive recorded steps at which this must hold.
        min_count: Least number of elements of a tensor to judge.
        collections: Collections to look in.

    Raises:
        ConfigurationError: If a parameter is out of its range or not of its kind.
    """

    patience: int = 3
    min_count: int = 8
    collections: tuple[str, ...] = ("outputs", "model_inputs")

    def __post_init__(self) -> None:
        TensorRule.__post_init__(self)
        check_number(self, "patience", least=1, whole=True)
        check_number(self, "min_count", least=1, whole=True)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of the collections."""
        return with_beginning(Needs(collections=built_in(self.collections)))

    @property
    def lookback(self) -> int:
        """The rows that ``patience`` needs."""
        return rows_of_lasting(self.patience)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the steps of training."""
        for table in window.tables(*TRAINING):
            judged = table.known & (table["count"] >= self.min_count)
            judged &= _are_judged(table, self.tensor_regex)[:, np.newaxis]
            model_info = window.model_info_at(int(table.steps[-1]))
            yield self.judge(table, judged, model_info)

    @abstractmethod
    def judge(
        self, table: Table, judged: Bools, model_info: ModelInfo | None
    ) -> Evaluation:
        """Judge the rows that are *judged*."""

    def is_chosen(self, name: str) -> bool:
        """Return whether the expression matches a name that the rule always judges."""
        return self.tensor_regex is not None and finds(self.tensor_regex, name)


def _are_judged(table: Table, regex: str | None) -> Bools:
    """Find the tensors to judge: no masks, no indices, no states that start at zero.

    Among inputs of a model, only the first counts, since the others are masks and
    states of recurrent layers.  Tensors that the expression matches always count.
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
