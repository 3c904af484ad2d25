"""NLPSequenceRatio: token sequences that consist mostly of one token."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import Kind
from tdbg.config.needs import Needs
from tdbg.config.quantities import exact, percent, plural
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
# Least number of tokens other than the watched ones.
MIN_OTHERS = 100
# The usual padding token, a zero, which statistics of labels count.  Labels that the
# loss ignores hold at most this share of the padding of the inputs.
PADDING = 0
OF_IGNORED = 0.5
# Significance of a share of few tokens: a quantile of the normal distribution.
CERTAINTY = 1.96


OF_TIME = (
    "The labels hardly contain it, so the loss ignores it as padding, and it only "
    "costs time. To save that time, batch sequences of similar length, or pack them."
)
OF_PADDING = (
    "If that is padding, batch sequences of similar length, pack them, or truncate the "
    "longest, and mask padding in attention and loss. If it is the unknown token, the "
    "vocabulary does not fit the text."
)
OF_UNKNOWN = (
    " No word of a text is as frequent, so it probably stands for unknown words, which "
    "your vocabulary does not have."
)
OF_VOCABULARY = (
    "Look words up in the form in which you counted them: in small letters, split by "
    "the same tokenizer, from the vocabulary that you trained with. If the token is "
    "padding, name it in token_values, and mask it in attention and loss."
)


@dataclass(frozen=True, slots=True)
class _Frequent:
    """A token, its share of some tokens, and its limit, both as percentages."""

    token: int
    percent: float
    limit: float
    n: int
    is_watched: bool = True

    @property
    def of(self) -> str:
        """The tokens that the share is one of."""
        return "tokens" if self.is_watched else "tokens that are not padding"


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of some batches, and the number of their sequences."""

    values: Ints
    n_sequences: int


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class NLPSequenceRatio(Rule):
    """Report token sequences that consist mostly of one token.

    Where labels show that the loss ignores the padding, which then only costs time, the
    finding is an info.

    Args:
        token_values: Tokens to watch, such as padding.
        token_thresholds_percent: Largest percentage of each watched token; a single
            number holds for all of them.
        any_percent: Largest percentage of any other token among the remaining tokens.
        min_vocabulary: The rule skips embeddings with fewer rows, which hold no
            vocabulary.
        min_tokens: Least number of tokens to judge by.
        max_steps: Most recorded steps to combine.
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
        """The data that a first verdict needs."""
        return (
            f"{plural(self.min_tokens, 'token')} as the input of an embedding with at "
            f"least {plural(self.min_vocabulary, 'row')}"
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
        """The steps that one verdict sums up, and the rows between them."""
        return self.max_steps * INTERVAL - 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Select labels and inputs; model info says which inputs feed embeddings."""
        if self.tensor_regex is not None:
            return finds(self.tensor_regex, tensor.name)
        return tensor.role in {"input", "model_input", "label"}

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the steps of training."""
        for table in window.tables(*TRAINING):
            # A decoder embeds one position a call: its first call sees nothing but the
            # token that begins a sequence.
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
        # One number for each sample is a category, and no sequence.
        n_labels = [
            shape[:1]
            for shape, role in zip(table.shapes, table.roles, strict=True)
            if role == "label"
        ]
        shape = table.shapes[table.names.index(name)]
        if len(shape) == 1 and shape in n_labels:
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
        # An input that also has another name may have values but no rows; then the rows
        # of other tensors show which steps are complete.
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
                    f"{percent(found.percent)} of the last {found.n:,} {found.of} are "
                    f"token {found.token}; the limit is {exact(found.limit)}%."
                    f"{'' if found.is_watched else OF_UNKNOWN}"
                ),
                value=found.percent,
                threshold=found.limit,
                advice=OF_TIME
                if severities[j] == Severity.INFO
                else OF_PADDING
                if found.is_watched
                else OF_VOCABULARY,
            )

        return table.judge_one(name, severities, describe)

    def _last_tokens(
        self, table: Table, name: str, columns: NDArray[np.intp]
    ) -> _Tokens:
        """Return the fewest last batches with enough tokens, or all batches.

        REQUIRES: there is at least one.
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
        """Return the token that most exceeds its limit; with few samples, for sure."""
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
            share = 100.0 * float(counts[k]) / len(rest)
            shares.append(
                _Frequent(
                    *(int(unique[k]), share, self.any_percent, len(rest)),
                    is_watched=False,
                )
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
    """Return whether labels for each token hold far less padding than the inputs.

    REQUIRES: the tokens are in row *i*.
    """
    tokens = table["count"][i, columns][table.known[i, columns]]
    for label, role in enumerate(table.roles):
        if role != "label" or "int" not in table.dtypes[label]:
            continue
        known = table.known[label, columns]
        count = table["count"][label, columns][known]
        zero = table["zero"][label, columns][known].sum()
        # Labels of whole texts are fewer than tokens.
        is_of_tokens = len(count) and len(tokens) and count.max() >= tokens.min()
        if is_of_tokens and 100.0 * zero < OF_IGNORED * found.percent * count.sum():
            return True
    return False


def _at_least(share: float, n: int) -> float:
    """Return the lower end of the Wilson interval of a share of *n* samples."""
    z2 = CERTAINTY**2
    spread = CERTAINTY * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return (share + z2 / (2 * n) - spread) / (1 + z2 / n)
