"""The base of rules about time: signs in bins of 10 s, and when they are a finding.

A rule says for each bin whether it shows the problem.  Three bad bins among the last
four make a finding, and three good ones in a row end it.  A bin that cannot be judged
says nothing.

Thread safety: rules are immutable.
"""

from __future__ import annotations

import math
import statistics
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tdbg.config.needs import Needs
from tdbg.config.quantities import percent
from tdbg.rules.profile import Bin, ProfileWindow
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.window import OK, UNKNOWN, Description, Evaluation, Window
from tdbg.run.findings import Severity

__all__ = ["TRAINING", "Sign", "TimeRule", "check_optional", "gain_severity", "shorter"]

#: The name of a verdict on the training as a whole.
TRAINING = "training"
# How many of the last bins that could be judged must be bad.
BAD, KNOWN = 3, 4
# Among how many bins these are looked for: where steps take 20 s, every other bin has
# none.
SPAN = 12
# Gains that are worth a word, and those that are worth a warning.
INFO_GAIN, WARNING_GAIN = 0.03, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """What a bin shows.

    Attributes:
        severity: How bad it is; None: nothing is wrong.
        describe: Says it in words and numbers; called only for a finding.
    """

    severity: Severity | None
    describe: Callable[[], Description]


def gain_severity(gain: float) -> Severity | None:
    """Return how bad it is to forgo a gain, as a share of the time of a step."""
    if gain >= WARNING_GAIN:
        return Severity.WARNING
    return Severity.INFO if gain >= INFO_GAIN else None


def shorter(gain: float) -> str:
    """Return a gain in words: "38% shorter steps"."""
    return f"{percent(100 * gain)} shorter steps"


def check_optional(
    rule: Rule, parameter: str, *, least: float = -math.inf, above: float = -math.inf
) -> None:
    """Check that a parameter is None or a number within bounds.

    Raises:
        ConfigurationError: If it is not.
    """
    if getattr(rule, parameter) is not None:
        check_number(rule, parameter, least=least, above=above)


class TimeRule(Rule):
    """Base class of rules about time.

    Attributes:
        tables: The tables of the profile that it reads.
        reach: How many bins before a bin its sign depends on.
    """

    __slots__ = ()

    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO, Severity.WARNING)
    tables: ClassVar[frozenset[str]] = frozenset({"step"})
    reach: ClassVar[int] = 0

    @property
    def needs(self) -> Needs:
        """Tables of the profile; nothing of tensors."""
        return Needs(statistics=False, profile=self.tables)

    @property
    def lookback_bins(self) -> int:
        """The bins that decide whether a problem lasts, and those of the first."""
        return SPAN - 1 + self.reach

    @property
    def first_verdict(self) -> str:
        """Return that a bin of usual steps must have passed."""
        return "10 s of training after the first 20 steps and 10 s"

    @abstractmethod
    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Return what a bin shows, by the name of what is judged.

        A name that is missing could not be judged.  The result may depend on this bin,
        the ``reach`` bins before it and the last ``lookback_steps`` steps.
        """

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the new bins by their signs and by those before them."""
        profile = window.profile
        first = max(0, profile.start - SPAN + 1)
        bins = profile.bins[first:]
        if not bins:
            return
        signs = [self.signs(profile, first + k) for k in range(len(bins))]
        for name in sorted({name for each in signs for name in each}):
            series = [each.get(name) for each in signs]
            yield from self._judge(name, bins, series, profile.start - first)

    def _judge(
        self, name: str, bins: Sequence[Bin], signs: Sequence[Sign | None], start: int
    ) -> Iterator[Evaluation]:
        for i in range(start, len(bins)):
            sign, since = signs[i], bins[i].first_step
            if sign is None or bins[i].last_step < 0:
                continue
            level: int = OK
            if sign.severity is not None:
                recent = [
                    (each, k)
                    for k in range(max(0, i - SPAN + 1), i + 1)
                    if (each := signs[k]) is not None
                ][-KNOWN:]
                bad = [
                    (int(each.severity), k)
                    for each, k in recent
                    if each.severity is not None
                ]
                level = UNKNOWN
                if len(bad) >= BAD:
                    level = statistics.median_low(severity for severity, _ in bad)
                    since = bins[bad[0][1]].first_step
            yield Evaluation.of_one(
                name,
                np.array([bins[i].last_step], np.int64),
                bins[i].mode,
                np.array([level]),
                _described(sign, max(0, since)),
            )


def _described(sign: Sign, since: int) -> Callable[[int], Description]:
    def describe(_: int) -> Description:
        found = sign.describe()
        return found if found.since is not None else replace(found, since=since)

    return describe
