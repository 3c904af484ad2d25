"""FeatureImportance: boosted trees that depend on a few features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.config.needs import Needs
from tdbg.config.quantities import join_names, percent, plural
from tdbg.rules.columns import streak_of_known
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_choice, check_number
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Bools,
    Description,
    Evaluation,
    Floats,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Severity

__all__ = ["FeatureImportance"]

PREFIX = "feature_importance/"
KINDS = ("weight", "gain", "cover", "total_gain", "total_cover")
# A feature that leaks the label takes all of this: trees still split by other
# features, but nothing is left for these to gain.
LEAK_KIND = "total_gain"
# The most important features must be less than this share of all features; of a few
# features, each naturally matters.
FEW = 0.25
# Splits for each of the most important features before their share is meaningful.
SPLITS = 10
# Importances say nothing where all rounds go less than this share of their way.
FEW_STEPS = 0.5


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureImportance(Rule):
    """Report boosted trees that depend on a few features, and useless features.

    Args:
        threshold: Largest share of all importance that the most important features may
            have together.
        nfeatures: Number of most important features.
        leak: Largest share of the gain of all splits that a single feature may have
            before the rule suspects that it leaks the label.
        low: A feature with less than this share of an even distribution is useless.
        kind: The importance: weight, gain, cover, total_gain or total_cover.
        patience: Consecutive recorded steps at which this must hold.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)

    threshold: float = 0.8
    nfeatures: int = 3
    leak: float = 0.95
    low: float = 0.01
    kind: str = "weight"
    patience: int = 3

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=1.0)
        check_number(self, "nfeatures", least=1, whole=True)
        check_number(self, "leak", above=0.0, most=1.0)
        check_number(self, "low", least=0.0, most=1.0)
        check_number(self, "patience", least=1, whole=True)
        check_choice(self, "kind", KINDS)

    @property
    def needs(self) -> Needs:
        """Rows of the importances."""
        return Needs(collections=frozenset({"feature_importance"}))

    @property
    def lookback(self) -> int:
        """The rows that ``patience`` needs."""
        return self.patience - 1

    @property
    def head_rows(self) -> int:
        """The first row of each feature, which shows that it exists."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Select importances of the requested kind, and gains."""
        kinds = {self.kind, LEAK_KIND}
        return any(tensor.name.startswith(f"{PREFIX}{kind}/") for kind in kinds)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the importances of each step together."""
        for table in window.tables():
            info = window.model_info_at(int(table.steps[-1]))
            facts = None if info is None else info.trees
            # Trees that hardly move the predictions are all like the first one.
            if facts is None or facts.way >= FEW_STEPS:
                yield from self._judge(table)

    def _judge(self, table: Table) -> Iterator[Evaluation]:
        found = _shares(table, self.kind)
        if found is not None:
            yield from self._judge_kind(table, found)
        gains = _shares(table, LEAK_KIND)
        if gains is not None:
            top = gains.share.max(axis=0)
            many = FEW * gains.features.sum(axis=0) > 1
            over = gains.judged & many & (top > self.leak)
            yield self._lasting(
                table,
                f"{PREFIX}{LEAK_KIND}/leak",
                over,
                gains,
                Severity.WARNING,
                lambda j: self._describe_leak(gains, j),
            )

    def _judge_kind(self, table: Table, found: _Shares) -> Iterator[Evaluation]:
        top = _sums(np.sort(found.share, axis=0)[::-1][: self.nfeatures])
        many = self.nfeatures < FEW * found.features.sum(axis=0)
        # Only the weight shows the number of splits.
        counts = self.kind == "weight"
        enough = found.total >= SPLITS * self.nfeatures * counts
        over = found.judged & many & enough & (top > self.threshold)
        useless = self._useless(found)
        least = found.judged & useless.any(axis=0)
        if counts:
            # A share of a few splits is at least one split.
            least &= found.total * self.low >= found.features.sum(axis=0)
        name = f"{PREFIX}{self.kind}"
        yield self._lasting(
            table,
            name,
            over,
            found,
            Severity.WARNING,
            lambda j: self._describe_top(found, float(top[j]), j),
        )
        yield self._lasting(
            table,
            f"{name}/*",
            least,
            found,
            Severity.INFO,
            lambda j: self._describe_useless(found, useless[:, j], j),
        )

    def _useless(self, found: _Shares) -> Bools:
        """Find, features x steps, features with next to no importance."""
        n_features = np.maximum(found.features.sum(axis=0), 1)
        return np.asarray(found.features & (found.share < self.low / n_features))

    def _describe_top(self, found: _Shares, top: float, j: int) -> Description:
        share = found.share[:, j]
        best = np.argsort(-share, kind="stable")[: self.nfeatures]
        shown = ", ".join(f"{found.names[i]} ({percent(100 * share[i])})" for i in best)
        n_features = int(found.features[:, j].sum())
        return Description(
            message=(
                f"The trees depend on {self.nfeatures:,} of "
                f"{plural(n_features, 'feature')}, which have {percent(100 * top)} of "
                f"the importance ({self.kind}): {shown}."
            ),
            value=top,
            threshold=self.threshold,
            advice=lambda words: (
                "Check whether one of them leaks the label: it is derived from the "
                "label, or known only afterwards. Otherwise, set "
                f"{words.column_sampling} below 1 to give other features a chance."
            ),
        )

    def _describe_leak(self, gains: _Shares, j: int) -> Description:
        best = int(gains.share[:, j].argmax())
        share = float(gains.share[best, j])
        return Description(
            message=(
                f"{gains.names[best]}, one of "
                f"{plural(int(gains.features[:, j].sum()), 'feature')}, has "
                f"{percent(100 * share)} of the gain of all splits. It probably leaks "
                "the label."
            ),
            value=share,
            threshold=self.leak,
            advice=(
                f"Check where {gains.names[best]} comes from. A feature that decides "
                "alone is usually derived from the label, or known only after it. "
                "Train without it and compare."
            ),
        )

    def _describe_useless(self, found: _Shares, useless: Bools, j: int) -> Description:
        names = [found.names[i] for i in np.flatnonzero(useless)]
        return Description(
            message=(
                f"{len(names):,} of "
                f"{plural(int(found.features[:, j].sum()), 'feature')} "
                f"{'has' if len(names) == 1 else 'have'} next to no importance "
                f"({self.kind}): {join_names(names, 5)}."
            ),
            value=float(len(names)),
            threshold=self.low,
            advice="Remove them: training is then faster and overfits less.",
        )

    def _lasting(
        self,
        table: Table,
        name: str,
        bad: Bools,
        found: _Shares,
        severity: Severity,
        describe: Callable[[int], Description],
    ) -> Evaluation:
        """Make verdicts on all features together, under one name."""
        # A step without any importance restarts the streak.
        streak = streak_of_known(bad, found.known)
        levels = np.where(found.judged & ~bad, OK, UNKNOWN).astype(np.int8)
        levels[streak >= self.patience] = severity
        start = table.start
        return table.judge_one(name, levels[start:], lambda j: describe(j + start))


@dataclass(frozen=True, slots=True)
class _Shares:
    """The share of each feature in the total importance.

    Attributes:
        names: The features.
        share: Features x steps: the share; 0 where it is unknown.
        features: Features x steps: whether the feature exists by then.
        judged: Steps: whether any feature has any importance.
        known: Steps: whether anything is known.
        total: Steps: the importance of all features.
    """

    names: list[str]
    share: Floats
    features: Bools
    judged: Bools
    known: Bools
    total: Floats


def _shares(table: Table, kind: str) -> _Shares | None:
    """Return the importances of a kind; None where there are none."""
    prefix = f"{PREFIX}{kind}/"
    rows = [i for i, name in enumerate(table.names) if name.startswith(prefix)]
    if not rows:
        return None
    known = table.known[rows] & (table["count"][rows] == 1)
    known &= table.not_finite[rows] == 0
    importance = np.where(known, np.maximum(table["mean"][rows], 0.0), 0.0)
    total = _sums(importance)
    judged = known.any(axis=0) & (total > 0)
    return _Shares(
        names=[table.names[i].removeprefix(prefix) for i in rows],
        share=importance / np.where(judged, total, 1.0),
        # A feature that no tree uses any more has no row.
        features=np.logical_or.accumulate(table.present[rows], axis=1),
        judged=judged,
        known=np.asarray(table.known[rows].any(axis=0)),
        total=total,
    )


def _sums(values: Floats) -> Floats:
    """Return the sum of each column, independent of other columns to the last bit."""
    return np.asarray(np.cumsum(values, axis=0)[-1])
