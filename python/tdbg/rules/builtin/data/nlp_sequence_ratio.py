"""NLPSequenceRatio: token sequences that are mostly one token."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import Kind
from tdbg.config.needs import Needs
from tdbg.errors import ConfigurationError
from tdbg.modes import TRAINING
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number, check_regex, finds
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Description,
    Evaluation,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Severity
from tdbg.run.model_info import owner_of

__all__ = ["NLPSequenceRatio"]

Ints = NDArray[np.int64]

INTERVAL = 10
# The least number of tokens besides the watched ones.
MIN_OTHERS = 100
# The usual padding, which rows of labels count; and the share of it that is left there
# of what inputs have, at most, where the loss ignores it.
PADDING = 0
OF_IGNORED = 0.5
# Significance of a share of few tokens, as a quantile of the normal distribution.
CERTAINTY = 1.96


OF_TIME = (
    "the labels hardly have it, so the loss ignores it as padding: batch sequences of "
    "like length, or pack them, to save the time that it takes"
)


@dataclass(frozen=True, slots=True)
class _Frequent:
    """A token, its share of a number of tokens, and the limit, in per cent."""

    token: int
    percent: float
    limit: float
    n: int
    of: str = "tokens"


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of some batches, and the number of their sequences."""

    values: Ints
    n_sequences: int


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class NLPSequenceRatio(Rule):
    """Report token sequences of which one token makes up too much.

    Information, where labels show that the loss ignores the padding: then it only costs
    time.

    Args:
        token_values: Tokens to watch, as padding.
        token_thresholds_percent: The largest percentage of each of them; one number
            holds for all.
        any_percent: The largest percentage of any other token, of what those leave.
        min_vocabulary: Embeddings of fewer rows are no vocabulary, and not judged.
        min_tokens: Tokens to judge by, at least.
        max_steps: Recorded steps to take together, at most.
        tensor_regex: Judge tensors of such names; None: inputs of embeddings.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)

    token_values: tuple[int, ...] = (PADDING,)
    token_thresholds_percent: tuple[float, ...] = (60.0,)
    any_percent: float = 60.0
    min_vocabulary: int = 10
    min_tokens: int = 1000
    max_steps: int = 20
    tensor_regex: str | None = None

    def __post_init__(self) -> None:
        self._check_tokens()
        check_number(self, "any_percent", above=0.0, most=100.0)
        check_number(self, "min_vocabulary", least=1, whole=True)
        check_number(self, "min_tokens", least=1, whole=True)
        check_number(self, "max_steps", least=1, whole=True)
        check_regex(self, "tensor_regex")

    @property
    def first_verdict(self) -> str:
        """What its first verdict needs."""
        return (
            f"{self.min_tokens} tokens that an embedding of {self.min_vocabulary} rows "
            "or more was given"
        )

    def _check_tokens(self) -> None:
        # Check at run time: users may pass anything.
        tokens: object = self.token_values
        limits: object = self.token_thresholds_percent
        if not (isinstance(tokens, tuple) and all(isinstance(t, int) for t in tokens)):
            msg = f"{self.name}.token_values is {tokens!r}; give whole numbers, as (0,)"
            raise ConfigurationError(msg)
        sound = (
            isinstance(limits, tuple)
            and len(limits) in {1, len(tokens)}
            and all(
                isinstance(limit, int | float) and 0 < limit <= 100 for limit in limits
            )
        )
        if not sound:
            msg = (
                f"{self.name}.token_thresholds_percent is {limits!r}; give one "
                "percentage above 0 for all tokens, or one for each"
            )
            raise ConfigurationError(msg)

    @property
    def needs(self) -> Needs:
        """Values of the inputs of embeddings, and their rows."""
        return Needs(
            collections=frozenset({"inputs"}),
            modules=frozenset({Kind.EMBEDDING}),
            raw=True,
            interval=INTERVAL,
        )

    @property
    def lookback(self) -> int:
        """The steps that one verdict sums up, and rows at steps between them."""
        return self.max_steps * INTERVAL - 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Select inputs, of which model info says what is of embeddings; and labels."""
        if self.tensor_regex is not None:
            return finds(self.tensor_regex, tensor.name)
        return tensor.role in {"input", "model_input", "label"}

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the steps of training."""
        for table in window.tables(*TRAINING):
            # A decoder embeds a position in each of several calls: all first ones are
            # the token that sequences begin with.
            several = {name.partition("@")[0] for name in table.names if "@" in name}
            for i, name in enumerate(table.names):
                is_whole = name.partition("@")[0] not in several
                integers = "int" in table.dtypes[i] and is_whole
                if integers and self._is_of_vocabulary(window, table, name):
                    yield self._judge(table, i)

    def _is_of_vocabulary(self, window: Window, table: Table, name: str) -> bool:
        if self.tensor_regex is not None:
            return True
        model_info = window.model_info_at(int(table.steps[-1]))
        if model_info is None or model_info.kind_of(name) != Kind.EMBEDDING:
            return False
        path = name.rpartition("_input_")[0]
        weight = next(
            (
                parameter
                for each, parameter in model_info.parameters.items()
                if owner_of(each) == path
            ),
            None,
        )
        return weight is None or weight.shape[0] >= self.min_vocabulary

    def _judge(self, table: Table, i: int) -> Evaluation:
        name = table.names[i]
        # An input that another name has too may have values only: a step without
        # loss is then known by the rows of others.
        has_values = np.isin(table.steps, table.value_steps(name))
        rows = np.flatnonzero(table.known.any(axis=0) & has_values)
        severities = np.full(len(table.steps) - table.start, UNKNOWN, np.int8)
        worst: dict[int, _Frequent] = {}
        for at in range(int(np.searchsorted(rows, table.start)), len(rows)):
            if table.value(name, int(table.steps[rows[at]])) is None:
                continue
            last = rows[max(0, at + 1 - self.max_steps) : at + 1]
            tokens = self._last_tokens(table, name, last)
            j = int(rows[at]) - table.start
            found = self._worst(tokens)
            if found is not None:
                ignored = found.token == PADDING and _is_ignored(table, i, last, found)
                severities[j] = Severity.INFO if ignored else Severity.WARNING
                worst[j] = found
            elif len(tokens.values) >= self.min_tokens:
                severities[j] = OK

        def describe(j: int) -> Description:
            found = worst[j]
            return Description(
                message=(
                    f"{found.percent:.0f} % of the last {found.n} {found.of} are token "
                    f"{found.token}, where {found.limit:g} % are allowed"
                ),
                value=found.percent,
                threshold=found.limit,
                advice=OF_TIME
                if severities[j] == Severity.INFO
                else (
                    f"if {found.token} is padding: batch sequences of like length, "
                    "pack them, cut what is too long, and mask padding in attention "
                    "and loss; if it is the unknown token, the vocabulary does not fit "
                    "the text"
                ),
            )

        return table.judge_one(name, severities, describe)

    def _last_tokens(
        self, table: Table, name: str, columns: NDArray[np.intp]
    ) -> _Tokens:
        """The fewest last batches that are enough, or all batches.

        REQUIRES: there is one at least.
        """
        parts: list[Ints] = []
        n = n_sequences = 0
        for column in columns[::-1].tolist():
            values = table.value(name, int(table.steps[column]))
            if values is None:
                continue
            parts.append(values.astype(np.int64).ravel())
            n += len(parts[-1])
            # The order of the axes, batch and sequence, is unknown.
            n_sequences += min(values.shape[:2]) if values.ndim > 1 else 1
            if n >= self.min_tokens:
                break
        return _Tokens(np.concatenate(parts), n_sequences)

    def _worst(self, given: _Tokens) -> _Frequent | None:
        """The token that most exceeds its limit; with few samples, surely."""
        tokens = given.values
        if not len(tokens):
            return None
        limits = self.token_thresholds_percent
        if len(limits) < len(self.token_values):
            limits *= len(self.token_values)
        n = len(tokens)
        shares = [
            _Frequent(token, 100.0 * np.count_nonzero(tokens == token) / n, limit, n)
            for token, limit in zip(self.token_values, limits, strict=True)
        ]
        # Padding says nothing about the vocabulary.
        rest = tokens[~np.isin(tokens, self.token_values)]
        if len(rest) >= MIN_OTHERS:
            unique, counts = np.unique(rest, return_counts=True)
            k = int(np.argmax(counts))
            percent, what = 100.0 * float(counts[k]) / len(rest), "other tokens"
            shares.append(
                _Frequent(int(unique[k]), percent, self.any_percent, len(rest), what)
            )
        found = [each for each in shares if each.percent > each.limit]
        if n < self.min_tokens:
            # Tokens of a sequence are correlated: each sequence counts once.
            found = [
                each
                for each in found
                if 100.0 * _at_least(each.percent / 100.0, given.n_sequences)
                > each.limit
            ]
        return max(found, key=lambda each: each.percent - each.limit, default=None)


def _is_ignored(
    table: Table, i: int, columns: NDArray[np.intp], found: _Frequent
) -> bool:
    """Whether labels of each token have much less of the padding than inputs.

    REQUIRES: the tokens are in row *i*.
    """
    tokens = table["count"][i, columns][table.known[i, columns]]
    for label, role in enumerate(table.roles):
        if role != "label" or "int" not in table.dtypes[label]:
            continue
        known = table.known[label, columns]
        count = table["count"][label, columns][known]
        zero = table["zero"][label, columns][known].sum()
        # Labels of whole texts are fewer than the tokens.
        is_of_tokens = len(count) and len(tokens) and count.max() >= tokens.min()
        if is_of_tokens and 100.0 * zero < OF_IGNORED * found.percent * count.sum():
            return True
    return False


def _at_least(share: float, n: int) -> float:
    """Lower end of the Wilson interval of a share that was found in *n* samples."""
    z2 = CERTAINTY**2
    spread = CERTAINTY * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return (share + z2 / (2 * n) - spread) / (1 + z2 / n)
